"""The door: every request gets an id and a caller here, or a refusal. Pure ASGI.

Outside in: request id and access log, Origin and Host, readiness, key, size and kind of the body.
Whoever passes finds its `Caller` in `scope["state"]["caller"]`: None on a WebSocket whose key
comes in a `hello` frame, which asks `scope["state"]["caller_for"]` once it knows the tenant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from app import logs
from app.errors import (
    FairgateError,
    Forbidden,
    InvalidApiKey,
    UnsupportedMediaType,
)
from app.tenants.model import Tenant
from app.web.answers import as_fairgate_error
from app.web.caller import Keys
from app.web.origins import Origins
from app.web.visit import BoundedBody, Visit

log = logs.get_logger(__name__)

# Longer keys are nobody's, and hashing them is work for nothing.
LONGEST_KEY_BYTES = 512
SUBPROTOCOL_KEY = b"bearer."
OPEN_PATHS = frozenset({"/health"})
FOREIGN = "this origin or host may not call here: see FAIRGATE_ALLOWED_ORIGINS"


class Visits:
    """How many HTTP requests are inside, and when there are none."""

    def __init__(self) -> None:
        self._inside = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self._inside += 1
        self._none.clear()

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._none.set()

    async def over(self) -> None:
        """Wait until nobody is inside."""
        await self._none.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorRules:
    """What the door is built with; sizes in bytes.

    `closed()` is why nothing new is taken (loading, draining, dead engine), or None.
    `on_refused` hears of everyone turned away here: the tenant's id where it was known, the path,
    the error, and seconds since arrival.
    """

    keys: Keys
    closed: Callable[[], FairgateError | None]
    origins: Origins
    visits: Visits
    on_refused: Callable[[str | None, str, FairgateError, float], None] = lambda *_: None
    max_body_bytes: int
    open_paths: frozenset[str] = OPEN_PATHS
    socket_path: str = "/chat"


class Door:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, rules: DoorRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request in, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        visit = Visit(scope, send)
        with logs.bound(request_id=visit.request_id):
            if scope["type"] == "http":
                with self._rules.visits:
                    await self._serve(scope, receive, visit)
            else:
                await self._serve(scope, receive, visit)

    async def _serve(self, scope: Scope, receive: Receive, visit: Visit) -> None:
        try:
            try:
                self._admit(scope, visit)
                if scope["type"] == "http":
                    receive = BoundedBody(receive, self._rules.max_body_bytes, visit).receive
            except FairgateError as error:
                self._rules.on_refused(visit.tenant, scope["path"], error, visit.seconds)
                raise
            await self._app(scope, receive, visit.send)
        except FairgateError as error:
            await visit.refuse(error)
        except Exception as error:
            log.exception("request.failed", path=scope["path"])
            await visit.refuse(as_fairgate_error(error))
        finally:
            visit.log_line()

    def _admit(self, scope: Scope, visit: Visit) -> None:
        rules = self._rules
        # With keys, a page of another origin is CORS' matter, but for sockets, which CORS ignores.
        guarded = rules.keys.anonymous or scope["type"] == "websocket"
        if guarded and rules.origins.foreign(scope, strict=rules.keys.anonymous):
            raise Forbidden(FOREIGN)
        if scope["path"] in rules.open_paths:
            return
        if (closed := rules.closed()) is not None:
            visit.extra_headers.append((b"connection", b"close"))
            raise closed
        tenant = self._tenant(scope)
        state = scope.setdefault("state", {})
        state["caller_for"] = visit.caller_for
        state["caller"] = None if tenant is None else visit.caller_for(tenant)
        if scope["type"] == "http":
            check_body_kind(visit.headers)

    def _tenant(self, scope: Scope) -> Tenant | None:
        key = bearer_key(scope["headers"]) or subprotocol_key(scope)
        waits_for_hello = scope["type"] == "websocket" and scope["path"] == self._rules.socket_path
        if key is None and waits_for_hello and not self._rules.keys.anonymous:
            return None
        return self._rules.keys.tenant_of(key)


def check_body_kind(headers: dict[bytes, bytes]) -> None:
    """Bodies are plain UTF-8.

    Raises:
        UnsupportedMediaType: compressed, or in another encoding.
    """
    coding = headers.get(b"content-encoding", b"identity").strip().lower()
    if coding not in (b"identity", b""):
        raise UnsupportedMediaType("send the body uncompressed: no content-encoding is read here")
    kind = headers.get(b"content-type", b"").lower()
    if kind.startswith(b"application/json") and b"charset=" in kind:
        charset = kind.split(b"charset=", 1)[1].split(b";")[0].strip(b" \"'")
        if charset not in (b"utf-8", b"utf8", b"us-ascii"):
            raise UnsupportedMediaType("send JSON as UTF-8")


def bearer_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key of the Authorization header; None without one.

    Raises:
        InvalidApiKey: a header that is no `Bearer KEY`.
    """
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        return None
    scheme, _, key = values[-1].strip().partition(b" ")
    key = key.strip()
    if scheme.lower() != b"bearer" or not key or len(key) > LONGEST_KEY_BYTES:
        raise InvalidApiKey("send the key as `Authorization: Bearer KEY`")
    return key.decode("latin-1")


def subprotocol_key(scope: Scope) -> str | None:
    """The key that a browser's WebSocket sends as subprotocol `bearer.KEY`."""
    for protocol in scope.get("subprotocols", ()):
        name = protocol.encode("latin-1", "replace")
        if name.startswith(SUBPROTOCOL_KEY) and len(name) <= LONGEST_KEY_BYTES:
            return str(protocol[len(SUBPROTOCOL_KEY) :])
    return None
