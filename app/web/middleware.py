"""The door: every request gets an id and a caller here, or a refusal. Pure ASGI.

Outside in: request id and access log, Origin and Host, readiness, key, size and kind of the body.
Whoever passes finds its `Caller` in `scope["state"]["caller"]`: None on a WebSocket whose key
comes in a `hello` frame, which asks `scope["state"]["caller_for"]` once it knows the tenant.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import logs
from app.errors import (
    FairgateError,
    Forbidden,
    InvalidApiKey,
    InvalidRequest,
    TooLarge,
    UnsupportedMediaType,
)
from app.tenants.model import Tenant
from app.web.answers import (
    Headers,
    answer_of,
    as_fairgate_error,
    encode,
    error_body,
    error_headers,
)
from app.web.caller import Caller, Keys, WorkClass
from app.web.origins import Origins

log = logs.get_logger(__name__)

GOOD_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
# Clients may not say these; vLLM's routes would listen to them.
DROPPED = frozenset({b"x-data-parallel-rank", b"x-vllm-priority", b"x-session-id", b"x-request-id"})
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
    """

    keys: Keys
    closed: Callable[[], FairgateError | None]
    origins: Origins
    visits: Visits
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
            self._admit(scope, visit)
            if scope["type"] == "http":
                receive = BoundedBody(receive, self._rules.max_body_bytes, visit).receive
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


class Visit:
    """One request at the door: its id, its answer's headers, its line in the log."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._status = 0
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.arrived_seconds = time.monotonic()
        asked = self.headers.get(b"x-request-id", b"")
        self.request_id = asked.decode() if GOOD_ID.fullmatch(asked) else uuid.uuid4().hex
        self.caller: Caller | None = None
        self.extra_headers: Headers = [(b"x-request-id", self.request_id.encode())]
        self.oversized: TooLarge | None = None
        # Upstream code reads the id from the header: it finds ours, and nothing of DROPPED.
        scope["headers"] = [
            *((name, value) for name, value in scope["headers"] if name not in DROPPED),
            (b"x-request-id", self.request_id.encode()),
        ]

    def caller_for(self, tenant: Tenant) -> Caller:
        """This request's caller; what it asks for in headers is bounded by its tenant.

        Raises:
            InvalidRequest: a header of ours with a value that means nothing.
        """
        self.caller = Caller(
            tenant=tenant,
            request_id=self.request_id,
            arrived_seconds=self.arrived_seconds,
            work_class=self._work_class(tenant),
            max_wait_seconds=self._max_wait(),
        )
        return self.caller

    def _work_class(self, tenant: Tenant) -> WorkClass | None:
        match self.headers.get(b"x-fairgate-class", b"").strip().lower():
            case b"batch":
                return "batch"
            case b"" | b"interactive":
                return "batch" if tenant.work_class == "batch" else None
            case _:
                raise InvalidRequest(
                    "x-fairgate-class is `interactive` or `batch`", param="x-fairgate-class"
                )

    def _max_wait(self) -> float | None:
        raw = self.headers.get(b"x-fairgate-max-wait", b"").strip()
        if not raw:
            return None
        try:
            seconds = float(raw)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= 86_400:
            raise InvalidRequest(
                "x-fairgate-max-wait is a number of seconds", param="x-fairgate-max-wait"
            )
        return seconds

    async def send(self, message: Message) -> None:
        """Pass a message on; the first one gets the request id."""
        kind = message["type"]
        if kind == "http.response.body":  # the hot path
            if self.oversized is None:
                await self._send(message)
            return
        if kind in ("http.response.start", "websocket.http.response.start"):
            if self.oversized is not None:
                return
            self._status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self.extra_headers]
        elif kind == "websocket.accept":
            self._status = 101
            message["headers"] = [*message.get("headers", ()), *self.extra_headers]
        await self._send(message)

    async def refuse(self, error: FairgateError) -> None:
        """Answer with `error` where nothing has been answered yet."""
        if self._status:
            return
        self._status = answer_of(error).status
        raw = encode(error_body(error))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(raw)),
            *error_headers(error),
            *self.extra_headers,
        ]
        prefix = "websocket." if self._scope["type"] == "websocket" else ""
        start: dict[str, Any] = {
            "type": f"{prefix}http.response.start",
            "status": self._status,
            "headers": headers,
        }
        await self._send(start)
        await self._send({"type": f"{prefix}http.response.body", "body": raw})

    def log_line(self) -> None:
        """One line per request, probes of `/health` at debug."""
        write = log.debug if self._scope["path"] in OPEN_PATHS else log.info
        write(
            "request.ended",
            method=self._scope.get("method", "WEBSOCKET"),
            path=self._scope["path"],
            status=self._status,
            tenant=None if self.caller is None else self.caller.tenant.id,
            seconds=round(time.monotonic() - self.arrived_seconds, 4),
        )


class BoundedBody:
    """Counts a body as it arrives and refuses what is too large, however its reader reacts."""

    def __init__(self, receive: Receive, limit_bytes: int, visit: Visit) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._visit = visit
        self._seen_bytes = 0
        announced = visit.headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit_bytes:
            # The connection stays open: closing it under a client that still sends would reset it
            # before the client has read why. The server drops what still arrives.
            raise self._error()

    def _error(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._limit_bytes} bytes: send less at once")

    async def receive(self) -> Message:
        """The next message of the client.

        Raises:
            TooLarge: once the body passes the limit.
        """
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen_bytes += len(message.get("body", b""))
            if self._seen_bytes > self._limit_bytes:
                # The framework turns whatever is raised while it reads into a 400 of its own.
                error = self._error()
                await self._visit.refuse(error)
                self._visit.oversized = error
                raise error
        return message
