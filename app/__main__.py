"""The command line, `python -m app` or `fairgate`: it parses and hands over, nothing else."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable

USAGE = """\
usage: fairgate COMMAND

  serve [MODEL] [flags]   serve MODEL, or the embedded one, with the flags of `vllm serve`;
                          `serve --help` lists them
  check                   find every problem of the settings and the tenants file
  key new                 make a key for a tenant
  model                   prepare the embedded model and print its folder

  --help                  print this
  --version               print the version

Settings come from FAIRGATE_* variables and .env: see .env.example."""

INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a failure, 2 for a wrong command line."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    command, rest = arguments[0], arguments[1:]
    if command == "serve":
        return _serve(rest)
    if command in {"--help", "-h", "help"} or (
        command in COMMANDS and rest in (["--help"], ["-h"])
    ):
        print(USAGE)
        return 0
    if command in {"--version", "-V"}:
        return _version()
    if command not in COMMANDS:
        return _wrong(f"no command {command!r}; did you mean {_nearest(command)!r}?")
    return COMMANDS[command](rest)


def _serve(arguments: list[str]) -> int:
    from app.server import serve

    return serve(arguments)


def _check(arguments: list[str]) -> int:
    if arguments:
        return _wrong(f"check takes no argument {arguments[0]!r}")
    from app.settings import check, load_settings
    from app.tenants.file import TenantsFileError, read_tenants

    problems = check()
    if not problems and (tenants_file := load_settings().tenants_file) is not None:
        try:
            read_tenants(tenants_file)
        except TenantsFileError as error:
            problems = list(error.problems)
    print("\n".join(problems) if problems else "ok")
    return 1 if problems else 0


def _key(arguments: list[str]) -> int:
    if arguments != ["new"]:
        return _wrong("key takes one argument: new")
    from app.tenants.keys import key_hash, new_key

    key = new_key()
    print(key)
    print(f"keys: [{key_hash(key)}]")
    print("The first line is the key, shown only now: give it to the tenant.", file=sys.stderr)
    print("The second goes into the tenant's entry in the tenants file.", file=sys.stderr)
    return 0


def _model(arguments: list[str]) -> int:
    if arguments:
        return _wrong(f"model takes no argument {arguments[0]!r}")
    from app.engine.embedded_model import EmbeddedModelError, prepare
    from app.settings import SettingsError, load_settings

    try:
        folder = prepare(load_settings().cache_dir, every_byte=True)
    except SettingsError as error:
        return _failed(*error.problems)
    except EmbeddedModelError as error:
        return _failed(str(error))
    print(folder)
    return 0


def _version() -> int:
    from importlib.metadata import version

    print("fairgate", version("fairgate"))
    return 0


def _nearest(command: str) -> str:
    return difflib.get_close_matches(command, ["serve", *COMMANDS], n=1, cutoff=0)[0]


def _wrong(line: str) -> int:
    print(f"fairgate: {line}", file=sys.stderr)
    return 2


def _failed(*lines: str) -> int:
    for line in lines:
        print(f"fairgate: {line}", file=sys.stderr)
    return 1


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "check": _check,
    "key": _key,
    "model": _model,
}

if __name__ == "__main__":
    sys.exit(main())
