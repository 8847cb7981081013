"""The two ways an answer leaves: one JSON object, or a stream of events while it is being made.

The status of a stream is sent with the first event of the engine, so that what is refused before
is refused with a status of its own; what fails later is an `error` event, and only a complete
answer ends with `done`.
"""

from __future__ import annotations

import asyncio

from app.errors import FairgateError, TooSlow
from app.summaries.hang_up import Send
from app.summaries.jobs import Plan
from app.summaries.limits import SummaryLimits
from app.summaries.results import Fragment, Json, Result
from app.web.answers import Headers, answer_of, encode, error_body, error_headers, retry_after

_WORKING = b": working\n\n"

# Ends of a line to many clients' line readers, though not to the standard: U+0085, U+2028, U+2029.
_SEPARATORS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


class Exchange:
    """One answer on its way, told how its making goes: this one keeps it all to itself.

    Either `finish` or `fail` is called once, as the last.
    """

    def __init__(self, send: Send, limits: SummaryLimits) -> None:
        self._send = send
        self._limits = limits

    async def accepted(self, plan: Plan) -> None:
        """The work will be done; nothing can be refused from here on."""

    def waiting(self, position: int, eta_seconds: float) -> None:
        """It waits for its turn; 1 is next."""

    def working(self) -> None:
        """It waits no longer."""

    async def delta(self, document: int, text: str) -> None:
        """More of the summary of a document."""

    async def fragment(self, document: int, fragment: Fragment) -> None:
        """A part of a document is summarised."""

    async def result(self, document: int, result: Result) -> None:
        """One of several documents is done."""

    async def keep_awake(self) -> None:
        """Run beside the work until cancelled."""

    async def finish(self, answer: Json, queue_seconds: float | None) -> None:
        """Send the answer; the time it queued is in the headers only if it did."""
        headers: Headers = []
        if queue_seconds is not None:
            headers.append((b"x-fairgate-queue-ms", b"%d" % round(queue_seconds * 1000)))
        await self._respond(200, answer, headers)

    async def fail(self, error: FairgateError) -> None:
        """Send the error with its status."""
        await self._respond(answer_of(error).status, error_body(error), error_headers(error))

    async def _respond(self, status: int, body: object, headers: Headers) -> None:
        data = encode(body)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(data)),
            *headers,
        ]
        await write(
            self._send,
            {"type": "http.response.start", "status": status, "headers": headers},
            {"type": "http.response.body", "body": data, "more_body": False},
            seconds=self._limits.write_seconds,
        )


class EventStream(Exchange):
    """Server-sent events: `plan`, `fragment`, `delta`, `result`, then `done` or `error`."""

    def __init__(self, send: Send, limits: SummaryLimits) -> None:
        super().__init__(send, limits)
        self._open = False
        self._writing = False
        self._sent_seconds = 0.0
        self._comment = _WORKING

    async def accepted(self, plan: Plan) -> None:
        """Send the status and the plan."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache, no-transform"),
            (b"x-accel-buffering", b"no"),
        ]
        self._open = True
        await write(
            self._send,
            {"type": "http.response.start", "status": 200, "headers": headers},
            seconds=self._limits.write_seconds,
        )
        await self._event("plan", plan.as_json())

    def waiting(self, position: int, eta_seconds: float) -> None:
        """Remember what the next comment says."""
        self._comment = b": queued position=%d eta=%.1f\n\n" % (position, eta_seconds)

    def working(self) -> None:
        """Say so in the next comment."""
        self._comment = _WORKING

    async def delta(self, document: int, text: str) -> None:
        """Send the text."""
        await self._event("delta", {"document": document, "text": text})

    async def fragment(self, document: int, fragment: Fragment) -> None:
        """Send the part's summary."""
        await self._event("fragment", {"document": document, **fragment.as_json()})

    async def result(self, document: int, result: Result) -> None:
        """Send the document's result, before the others are there."""
        await self._event("result", result.as_json(document))

    async def keep_awake(self) -> None:
        """Send a comment after each silence, so that no proxy on the way gives up."""
        silence = self._limits.silence_seconds
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(max(silence / 50, self._sent_seconds + silence - now()))
            silent = now() >= self._sent_seconds + silence
            if self._open and silent and not self._writing:
                await self._body(self._comment)

    async def finish(self, answer: Json, queue_seconds: float | None) -> None:
        """Send `done` with the whole answer, and end the stream."""
        await self._event("done", answer, more=False)

    async def fail(self, error: FairgateError) -> None:
        """Before the stream has begun an ordinary answer, else an `error` event that ends it."""
        if not self._open:
            await super().fail(error)
        else:
            seconds = retry_after(error)
            rest = {} if seconds is None else {"retry_after_seconds": seconds}
            await self._event("error", {**error_body(error), **rest}, more=False)

    async def _event(self, name: str, data: Json, *, more: bool = True) -> None:
        line = encode(data)
        for separator, escape in _SEPARATORS:
            line = line.replace(separator, escape)
        await self._body(b"event: %s\ndata: %s\n\n" % (name.encode(), line), more=more)

    async def _body(self, data: bytes, *, more: bool = True) -> None:
        self._writing = True
        await write(
            self._send,
            {"type": "http.response.body", "body": data, "more_body": more},
            seconds=self._limits.write_seconds,
        )
        self._writing = False
        self._sent_seconds = asyncio.get_running_loop().time()


async def write(send: Send, *messages: Json, seconds: float) -> None:
    """Send `messages`, which waits while the client does not read.

    Raises:
        TooSlow: it has not read for so long.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            for message in messages:
                await send(message)
    except TimeoutError:
        if not limit.expired():
            raise
        raise TooSlow("the answer was not read for too long") from None
