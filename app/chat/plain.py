"""Plain mode: one message in, the pieces of one answer out, and the close code says how it went."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from app.chat.answering import Answering, Cause, Halt
from app.chat.breaker import Breaker
from app.chat.connection import Connection, Verdict
from app.chat.models import model_for
from app.chat.text import clean
from app.engine.api import End, Message, Options, Piece, Work
from app.errors import FairgateError, Internal, InvalidApiKey, InvalidRequest
from app.web.caller import Caller


class PlainTalk:
    """One message and its answer. Frames that come later are ignored; leaving ends the answer."""

    def __init__(self, answering: Answering, connection: Connection) -> None:
        self._answering = answering
        self._connection = connection
        self._breaker: Breaker[Cause] = Breaker()

    @property
    def busy(self) -> bool:
        """Always: the socket closes with its only answer."""
        return True

    async def run(self, message: str, now: float) -> None:
        """Answer `message`; the caller is known by the handshake, or not at all."""
        caller = self._connection.caller
        if caller is None:
            self._connection.finish(Verdict.of(InvalidApiKey("no key")))
            return
        self._answering.start(self._answer(message, replace(caller, arrived_seconds=now)))
        while not self._connection.closing:
            await self._connection.next_text()

    def cut(self, problem: FairgateError) -> None:
        """End the answer with `problem` and close."""
        self._breaker.trip(problem)

    def left(self, *, goodbye: bool) -> None:
        """End the answer that nobody reads."""
        self._breaker.trip(Halt.LEFT)

    async def _answer(self, message: str, caller: Caller) -> None:
        outcome = await self._answering.answer(
            caller, self._breaker, lambda work: self._speak(message, caller, work)
        )
        problem = outcome.problem
        self._connection.finish(Verdict(1000, "") if problem is None else Verdict.of(problem))
        outcome.record()

    async def _speak(self, text: str, caller: Caller, work: Work) -> End:
        if not text:
            raise InvalidRequest("the message is empty")
        engine, limits = self._answering.engine(), caller.tenant.limits
        served, most = engine.model, self._answering.limits.plain_max_tokens
        model = model_for(caller.tenant, served)
        tokens = most if limits.output_tokens is None else min(most, limits.output_tokens)
        message = Message(role="user", content=clean(text))
        prompt = await engine.render([message], model=None if model == served.name else model)
        end: End | None = None
        async with aclosing(engine.generate(prompt, Options(max_tokens=tokens), work)) as events:
            async for event in events:
                if isinstance(event, Piece):
                    await self._connection.outlet.post(event.text)
                elif isinstance(event, End):
                    end = event
        if end is None:
            raise Internal("the engine ended an answer without an end")
        return end
