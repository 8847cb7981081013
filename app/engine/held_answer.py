"""One HTTP answer of vLLM's routes, held back until it is true.

The start of an event stream waits for the engine's first output, so that a refusal is still a
status; after `Patience.commit_seconds` it goes out alone and comment lines keep proxies awake. A
failure after that is one explicit error event in the API's own shape, and nothing after it: no
`[DONE]`. Errors of plain answers get the house's body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.engine.api import Work
from app.engine.api_errors import FOREIGN_PREFIXES, body_for, event_for, foreign_error, status_of
from app.errors import FairgateError, TooSlow
from app.web.answers import Headers, as_fairgate_error, encode, error_headers

# vLLM's /v1/responses sends these before it has asked the engine; they are held with the start.
PRELUDE = (b"event: response.created", b"event: response.in_progress")
STREAM_HEADERS: Headers = [
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds a stream waits with its status, between comments, and for a stuck reader."""

    commit_seconds: float = 10.0
    comment_seconds: float = 5.0
    stall_seconds: float = 30.0


class HeldAnswer:
    """The answer to one request; `work` is None where the engine is not asked."""

    def __init__(self, path: str, work: Work | None, send: Send, patience: Patience) -> None:
        self._path = path
        self._work = work
        self._send = send
        self._patience = patience
        self._owner: asyncio.Task[None] | None = asyncio.current_task()
        self._lock = asyncio.Lock()  # orders the sends before the answer flows; never after
        self._start: Message | None = None
        self._prelude: list[Message] = []
        self._error_body: bytearray | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._sending_since: float | None = None
        self._place: tuple[int, float] | None = None
        self._streamed = self._committed = self._flowing = self._ended = self._gone = False
        self._quiet = True
        if work is not None:
            work.on_queued = self._told

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        """Run `app` for one request and see to its end."""

        async def watched_receive() -> Message:
            message = await receive()
            self._gone |= message["type"] == "http.disconnect" and not self._ended
            return message

        try:
            await app(scope, watched_receive, self._hold)
            if self._error is not None:
                await self._fail(self._error)
        except asyncio.CancelledError:
            if not self._stuck() or self._owner is None:
                raise
            self._owner.uncancel()
            self._record(TooSlow("the reader did not read"))
        except Exception as error:
            known = self._error
            await self._fail(known or as_fairgate_error(error))
            if known is None:
                raise
        finally:
            await self._stop_keeper()
            if self._work is not None:
                self._work.end("aborted")

    @property
    def _error(self) -> FairgateError | None:
        return None if self._work is None else self._work.error

    async def _hold(self, message: Message) -> None:
        if self._flowing and self._error is None:
            await self._pass(message)  # the hot path: an answer under way
        elif self._ended:
            return
        elif message["type"] == "http.response.start":
            await self._begin(message)
        elif self._streamed:
            await self._stream(message)
        else:
            await self._plain(message)

    async def _pass(self, message: Message) -> None:
        body = message["body"]
        if body.startswith(FOREIGN_PREFIXES):
            await self._fail(foreign_error(body)[0])
            return
        if not message.get("more_body", False):
            self._end_well()
        self._quiet = False
        self._sending_since = asyncio.get_running_loop().time()
        await self._send(message)
        self._sending_since = None

    async def _begin(self, message: Message) -> None:
        headers = message["headers"]
        kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
        self._start = message
        if kind.startswith(b"text/event-stream"):
            self._streamed = True
            self._keeper = asyncio.create_task(self._keep())
        elif message["status"] >= 400 or self._error is not None:
            self._error_body = bytearray()
        else:
            self._flowing = self._committed = True
            message["headers"] = [*headers, *self._own_headers()]
            await self._send(message)

    async def _plain(self, message: Message) -> None:
        """Gather an error's body, then answer in our own words or with theirs under our code."""
        if self._error_body is None or self._start is None:
            return
        self._error_body += message.get("body", b"")
        if message.get("more_body", False):
            return
        if self._error is not None:
            await self._fail(self._error)
            return
        status = self._start["status"]
        error, kind = foreign_error(bytes(self._error_body), status)
        kept = [header for header in self._start["headers"] if header[0].lower() == b"allow"]
        self._record(error)
        await self._answer(status, encode(body_for(self._path, error, kind)), error, kept)

    async def _stream(self, message: Message) -> None:
        """What comes before a stream flows, or after it failed."""
        body = message["body"]
        if self._error is not None:
            await self._fail(self._error)
        elif body.startswith(FOREIGN_PREFIXES):
            await self._fail(foreign_error(body)[0])
        else:
            async with self._lock:
                if body.startswith(PRELUDE) and not self._committed:
                    self._prelude.append(message)
                    return
                await self._commit()
                self._flowing = True
            await self._pass(message)

    async def _commit(self) -> None:
        """Send the status line and what was held behind it; under the lock."""
        if self._committed or self._start is None:
            return
        self._committed = True
        self._start["headers"] += [*STREAM_HEADERS, *self._own_headers()]
        await self._send(self._start)
        for held in self._prelude:
            await self._send(held)

    async def _keep(self) -> None:
        """Beside a stream: its commitment, comments in its silences, the end of a stuck reader."""
        await asyncio.sleep(self._patience.commit_seconds)
        while not self._ended:
            if self._stuck():
                if self._owner is not None:
                    self._owner.cancel()
                return
            if self._quiet and self._sending_since is None and self._error is None:
                async with self._lock:
                    await self._commit()
                    if not self._ended:
                        await self._send(self._comment())
            self._quiet = True
            await asyncio.sleep(self._patience.comment_seconds)

    def _comment(self) -> Message:
        text = ": working\n\n"
        if self._place is not None and (self._work is None or self._work.queue_seconds is None):
            text = f": queued position={self._place[0]} eta={self._place[1]:.1f}\n\n"
        return {"type": "http.response.body", "body": text.encode(), "more_body": True}

    def _stuck(self) -> bool:
        since = self._sending_since
        now = asyncio.get_running_loop().time()
        return since is not None and now - since >= self._patience.stall_seconds

    async def _fail(self, error: FairgateError) -> None:
        """End the answer with `error`: as a status where there is none yet, else as an event."""
        async with self._lock:
            if self._ended:
                return
            self._record(error)
            if self._gone:
                return
            if self._streamed and self._committed:
                event = event_for(self._path, error)
                await self._send({"type": "http.response.body", "body": event, "more_body": False})
            elif not self._committed:
                await self._answer(status_of(error), encode(body_for(self._path, error)), error)

    async def _answer(
        self,
        status: int,
        raw: bytes,
        error: FairgateError,
        kept: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(raw)),
            *error_headers(error),
            *self._own_headers(),
            *kept,
        ]
        self._committed = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": raw, "more_body": False})

    def _record(self, error: FairgateError) -> None:
        self._ended, self._flowing = True, False
        if self._work is not None:
            if self._gone or isinstance(error, TooSlow):
                self._work.end("aborted", error.code)
            self._work.end_with(error)

    def _end_well(self) -> None:
        self._ended = True
        if self._work is not None:
            self._work.end("aborted" if self._gone else "finished")

    def _told(self, position: int, eta_seconds: float) -> None:
        self._place = (position, eta_seconds)

    def _own_headers(self) -> Headers:
        if self._work is None or self._work.queue_seconds is None:
            return []
        queue_ms = round(1000 * self._work.queue_seconds)
        return [(b"x-fairgate-queue-ms", b"%d" % queue_ms), *self._work.headers]

    async def _stop_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
