"""A session at work: its turn runs here, and its frames go to the socket it is attached to."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace

from app.chat import frames
from app.chat.answering import Answering, Cause, Halt, Outcome
from app.chat.breaker import Breaker
from app.chat.connection import Connection, Verdict
from app.chat.fitting import fit
from app.chat.protocol import Say
from app.chat.session import Session, Turn
from app.engine.api import End, Event, Piece, Queued, Started, Usage, Work
from app.errors import FairgateError, Internal
from app.web.caller import Caller

# After an error with one of these codes a socket is of no more use.
CLOSING_CODES = frozenset({"engine_dead", "too_slow", "unsupported_media_type", "too_large"})


class LiveSession:
    """One session, attached to one socket at a time or to none; at most one turn runs."""

    def __init__(self, session: Session, answering: Answering) -> None:
        self.session = session
        self.connection: Connection | None = None
        self._answering = answering
        self._breaker: Breaker[Cause] = Breaker()
        self._over = asyncio.Event()
        self._report_timer: asyncio.TimerHandle | None = None

    def begin(self, frame: Say, caller: Caller, now: float) -> None:
        """Answer a message, as a request of its own.

        Raises:
            Busy: another one is being answered.
        """
        turn = self.session.begin(frame, now)
        self._breaker, self._over = Breaker(), asyncio.Event()
        request_id = f"{caller.request_id}-{self.session.turns}"
        caller = replace(caller, request_id=request_id, arrived_seconds=now)
        self._answering.start(self._answer(turn, caller, self._breaker, self._over))

    async def stop(self) -> None:
        """End the running turn and wait until the engine has let it go."""
        self._breaker.trip(Halt.STOPPED)
        await self._over.wait()

    def cut(self, problem: FairgateError) -> None:
        """End the running turn with `problem`."""
        self._breaker.trip(problem)

    def leave(self) -> None:
        """Nobody will hear the running turn: end it."""
        self._breaker.trip(Halt.LEFT)

    async def _answer(
        self, turn: Turn, caller: Caller, breaker: Breaker[Cause], over: asyncio.Event
    ) -> None:
        outcome = await self._answering.answer(
            caller, breaker, lambda work: self._speak(turn, work)
        )
        try:
            frame = self._last_frame(turn, outcome)
        finally:
            over.set()
        problem, ending = outcome.problem, self._answering.ending
        if self.connection is not None:
            self.connection.heard_seconds = time.monotonic()
            if problem is not None and problem.code in CLOSING_CODES:
                self.connection.finish(Verdict.of(problem, frame))
            elif ending is not None:
                self.connection.finish(Verdict.of(ending, frame))
            else:
                await self._post(frame)
        outcome.record()

    def _last_frame(self, turn: Turn, outcome: Outcome) -> str:
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        if outcome.end is not None:
            return self.session.done(outcome.end)
        if outcome.problem is not None:
            return self.session.failed(outcome.problem)
        work = outcome.work
        usage = Usage(
            prompt_tokens=turn.prompt_tokens,
            cached_tokens=0 if work is None else work.cached_tokens,
            completion_tokens=0 if work is None else work.completion_tokens,
        )
        return self.session.stopped(usage, time.monotonic())

    async def _speak(self, turn: Turn, work: Work) -> End:
        engine, history = self._answering.engine(), self.session.history
        fitted = await fit(
            engine, history, turn.content, model=turn.model, max_tokens=turn.options.max_tokens
        )
        turn.prompt_tokens = len(fitted.prompt.token_ids)
        clock, delta = time.monotonic, self.session.delta
        end: End | None = None
        async with aclosing(engine.generate(fitted.prompt, turn.options, work)) as events:
            async for event in events:
                if isinstance(event, Piece):
                    await self._post(delta(event.text, clock()))
                elif isinstance(event, End):
                    end = event
                else:
                    await self._before_speaking(turn, event, fitted.forgotten)
        if end is None:
            raise Internal("the engine ended an answer without an end")
        return end

    async def _before_speaking(self, turn: Turn, event: Event, forgotten: int) -> None:
        if isinstance(event, Queued):
            turn.reports.changed(event.position, event.eta_seconds)
            await self._report(turn)
        elif isinstance(event, Started):
            if forgotten:
                self.session.history.forget(forgotten)
                await self._post(frames.trimmed(turn.id, forgotten))
            await self._post(self.session.started(event.queue_seconds))

    async def _report(self, turn: Turn) -> None:
        """Report where `turn` stands if that is due, else when it is."""
        if self.session.turn is not turn or turn.queue_seconds is not None:
            return
        now = time.monotonic()
        report = self.session.queue_report(now)
        if report is not None:
            await self._post(report)
            return
        seconds = turn.reports.due_in(now)
        if seconds is not None and self._report_timer is None:
            loop = asyncio.get_running_loop()
            self._report_timer = loop.call_later(seconds, self._report_late, turn)

    def _report_late(self, turn: Turn) -> None:
        self._report_timer = None
        self._answering.start(self._report(turn))

    async def _post(self, frame: str) -> None:
        connection = self.connection
        if connection is not None:
            await connection.outlet.post(frame)
