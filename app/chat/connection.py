"""One open socket: its life from the first frame to the close frame."""

from __future__ import annotations

import logging
from asyncio import timeout
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from app.chat.breaker import Breaker
from app.chat.outlet import AsgiMessage, Outlet
from app.errors import FairgateError, Internal, TooLarge, UnsupportedMediaType
from app.tenants.model import Tenant
from app.web.answers import answer_of
from app.web.caller import Caller

logger = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[AsgiMessage]]

# With these a client says goodbye; 1005 is a close frame without a code.
GOODBYES = frozenset({1000, 1001, 1005})


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the server closes a socket; `frame` is its last word."""

    code: int
    reason: str
    frame: str | None = None

    @classmethod
    def of(cls, problem: FairgateError, frame: str | None = None) -> Verdict:
        """What the one table says about `problem`."""
        return cls(answer_of(problem).close, problem.code, frame)


class Left(Exception):
    """The client is gone; `goodbye` where it closed by itself instead of getting lost."""

    def __init__(self, *, goodbye: bool) -> None:
        super().__init__(goodbye)
        self.goodbye = goodbye


class Talk(Protocol):
    """What goes on over a socket: a session, or one plain answer."""

    @property
    def busy(self) -> bool:
        """Whether an answer is on its way."""

    def cut(self, problem: FairgateError) -> None:
        """End it all with `problem`, the running answer first, and close the socket."""

    def left(self, *, goodbye: bool) -> None:
        """The socket is gone."""


class Connection:
    """Reads the socket, and closes it for whoever says so first.

    `caller` is None until the key is known, and `caller_for` makes it of the key's tenant; `talk`
    is None until the first frame says which mode this is.
    """

    __slots__ = (
        "_breaker",
        "_deaf",
        "_max_frame_bytes",
        "_receive",
        "caller",
        "caller_for",
        "heard_seconds",
        "outlet",
        "talk",
    )

    def __init__(
        self,
        *,
        receive: Receive,
        outlet: Outlet,
        caller_for: Callable[[Tenant], Caller],
        max_frame_bytes: int,
    ) -> None:
        self.outlet = outlet
        self.caller_for = caller_for
        self.caller: Caller | None = None
        self.talk: Talk | None = None
        self.heard_seconds: float | None = None
        self._receive = receive
        self._max_frame_bytes = max_frame_bytes
        self._breaker: Breaker[Verdict] = Breaker()
        self._deaf = False

    @property
    def busy(self) -> bool:
        """Whether an answer is on its way."""
        return self.talk is not None and self.talk.busy

    @property
    def closing(self) -> bool:
        """Whether the socket's end is decided."""
        return self._breaker.reason is not None

    def finish(self, verdict: Verdict) -> None:
        """Close the socket soon; the first verdict counts."""
        self._breaker.trip(verdict)

    def end(self, problem: FairgateError) -> None:
        """End whatever goes on with `problem`, then close."""
        if self.talk is None:
            self.finish(Verdict.of(problem))
        else:
            self.talk.cut(problem)

    def deadline(self, seconds: float | None, verdict: Verdict | None = None) -> None:
        """Close with `verdict` in `seconds`; None takes that back."""
        self._breaker.deadline(seconds, verdict)

    async def next_text(self) -> str:
        """The next text frame.

        Raises:
            Left: there will be none.
        """
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                # uvicorn names a reason, if an empty one, only where a close frame has come.
                closed = "reason" in message
                raise Left(goodbye=closed and message.get("code") in GOODBYES)
            text = message.get("text")
            if self._deaf:
                continue
            if text is None:
                self._deaf = True
                self.end(UnsupportedMediaType("frames are text; this one is binary"))
            elif len(text) > self._max_frame_bytes:
                self._deaf = True
                self.end(TooLarge(f"a frame has at most {self._max_frame_bytes} bytes"))
            else:
                return str(text)

    async def run(self, talk: Coroutine[Any, Any, None], *, closing_seconds: float) -> None:
        """Let `talk` go on until the client leaves or a verdict falls, then close.

        A peer that does not read cannot be told: after `closing_seconds` it is left alone.
        """
        goodbye = False
        try:
            goodbye = await self._until_the_end(talk, closing_seconds)
        finally:
            self.outlet.abandon()
            if self.talk is not None:
                self.talk.left(goodbye=goodbye)

    async def _until_the_end(self, talk: Coroutine[Any, Any, None], closing_seconds: float) -> bool:
        try:
            await self._breaker.run(talk)
        except Left as left:
            return left.goodbye
        except Exception:
            logger.exception("chat.failed")
            self.finish(Verdict.of(Internal("internal error")))
        verdict = self._breaker.reason
        if verdict is not None:
            with suppress(TimeoutError):
                async with timeout(closing_seconds):
                    await self.outlet.close(verdict.code, verdict.reason, last=verdict.frame)
        return False
