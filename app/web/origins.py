"""Whose pages may call us: `Origin` and `Host` against our addresses and the allowed origins."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.types import Scope

DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
HostPort = tuple[str, int]


def parsed_origin(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host in lower case and port of an origin; None for `null` and for what is none."""
    try:
        parts = urlsplit(origin)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None or parts.path or parts.query or parts.fragment:
        return None
    return parts.scheme, parts.hostname.lower(), port


def parsed_host(value: str, scheme: str) -> HostPort | None:
    """Host in lower case and port of a `Host` header; None where it is malformed."""
    parsed = parsed_origin(f"{scheme}://{value}")
    return None if parsed is None else parsed[1:]


def is_loopback(host: str) -> bool:
    """Whether a name or an address can only be this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Origins:
    """Compares by scheme, host and port, never by the beginning of a string.

    `allowed` are the configured origins; `own_host` is the address that the server listens on.
    """

    def __init__(self, allowed: tuple[str, ...], own_host: str) -> None:
        self._allowed = {parsed for text in allowed if (parsed := parsed_origin(text)) is not None}
        self._own_host = own_host.lower()

    def foreign(self, scope: Scope, *, strict: bool) -> bool:
        """Whether this request comes from a page that has no business here.

        Without `strict` only a present `Origin` is looked at: same host as asked for, or allowed.
        With it (nobody needs a key) the `Host` must be one of ours too, or a page could reach us
        under a name that it has pointed at this machine.
        """
        headers = dict(scope["headers"])  # of duplicates the last one counts, as for the framework
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], str(scope["scheme"]))
        host = parsed_host(headers.get(b"host", b"").decode("latin-1"), scheme)
        if strict and (host is None or not self._ours(host, scope)):
            return True
        origin = headers.get(b"origin")
        if origin is None:
            return False
        parsed = parsed_origin(origin.decode("latin-1"))
        if parsed is None:
            return True
        return parsed not in self._allowed and parsed[1:] != host

    def _ours(self, host: HostPort, scope: Scope) -> bool:
        name = host[0]
        if is_loopback(name) or name == self._own_host:
            return True
        server = scope.get("server")
        if server is not None and name == server[0]:
            return True
        return any(host == allowed[1:] for allowed in self._allowed)
