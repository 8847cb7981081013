"""The few of vLLM's flags that the server needs before vLLM is there to parse them.

Importing vLLM takes many seconds, and both ports listen before that. The whole command line is
parsed by vLLM's own parser later (`engine/launch.py`), which is where a wrong flag is found.
"""

from __future__ import annotations

import argparse
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


class FlagError(ValueError):
    """A flag of the server's has a value that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlags:
    """What the command line says about the server itself; None is left to the settings.

    `enable_ssl_refresh` reloads certificate and key when their files change.
    """

    host: str | None = None
    port: int | None = None
    root_path: str | None = None
    uvicorn_log_level: str | None = None
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = int(ssl.CERT_NONE)
    ssl_ciphers: str | None = None
    enable_ssl_refresh: bool = False


def read_server_flags(argv: Sequence[str]) -> ServerFlags:
    """Pick the server's flags out of `argv`, `--config FILE` included; the rest is passed over.

    Raises:
        FlagError: a value that does not fit its flag.
    """
    arguments = [_with_dashes(word) for word in argv]
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--root-path")
    parser.add_argument("--uvicorn-log-level", choices=LEVELS)
    parser.add_argument("--ssl-keyfile")
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--ssl-ca-certs")
    parser.add_argument("--ssl-cert-reqs", type=int, default=int(ssl.CERT_NONE))
    parser.add_argument("--ssl-ciphers")
    parser.add_argument(
        "--enable-ssl-refresh", action=argparse.BooleanOptionalAction, default=False
    )
    found, _rest = parser.parse_known_args([*_from_config(arguments), *arguments])
    flags = ServerFlags(**vars(found))
    if flags.port is not None and not 0 < flags.port < 65536:
        raise FlagError(f"--port {flags.port}: a port is between 1 and 65535")
    if (flags.ssl_keyfile is None) != (flags.ssl_certfile is None):
        raise FlagError("--ssl-keyfile and --ssl-certfile belong together")
    return flags


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(message)


def _with_dashes(word: str) -> str:
    # vLLM takes --ssl_keyfile for --ssl-keyfile, but leaves what follows = or . alone.
    name = re.match(r"--[^=.]*", word)
    return name.group().replace("_", "-") + word[name.end() :] if name else word


def _from_config(arguments: Sequence[str]) -> list[str]:
    """vLLM's `--config FILE` as words; they go first, so that the command line wins over them."""
    if "--config" not in arguments[:-1]:
        return []
    path = arguments[arguments.index("--config") + 1]
    import yaml  # noqa: PLC0415  only needed where --config is given

    try:
        values = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise FlagError(f"--config {path}: {error}") from None
    if not isinstance(values, dict):
        raise FlagError(f"--config {path}: expected one flag a line, such as `port: 8080`")
    return [
        f"--{key}" if value is True else f"--{key}={value}"
        for key, value in ((str(key).replace("_", "-"), value) for key, value in values.items())
        if isinstance(value, bool | int | str) and value is not False
    ]
