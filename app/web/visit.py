"""One request at the door: its id, its caller, its answer's headers, its line in the log."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from app import logs
from app.errors import FairgateError, InvalidRequest, TooLarge
from app.tenants.model import Tenant
from app.web.answers import Headers, answer_of, encode, error_body, error_headers
from app.web.caller import Caller, WorkClass

log = logs.get_logger(__name__)

GOOD_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
# Clients may not say these; vLLM's routes would listen to them.
DROPPED = frozenset({b"x-data-parallel-rank", b"x-vllm-priority", b"x-session-id", b"x-request-id"})
# Asked every few seconds by probes: not worth a line each.
QUIET_PATHS = frozenset({"/health"})


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

    @property
    def tenant(self) -> str | None:
        """The id of whoever came, where that is known yet."""
        return None if self.caller is None else self.caller.tenant.id

    @property
    def seconds(self) -> float:
        """Since arrival."""
        return time.monotonic() - self.arrived_seconds

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
        write = log.debug if self._scope["path"] in QUIET_PATHS else log.info
        write(
            "request.ended",
            method=self._scope.get("method", "WEBSOCKET"),
            path=self._scope["path"],
            status=self._status,
            tenant=self.tenant,
            seconds=round(self.seconds, 4),
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
