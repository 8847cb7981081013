"""One request inside the engine, watched where its output arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from app.admission.dispatcher import Turn
from app.engine.api import Work
from app.errors import TimedOut

OUT_OF_TIME = "the answer took longer than this tenant's request_seconds"


class Run:
    """One request inside the engine, watched at its collector; ends its turn with the engine."""

    __slots__ = ("_collector", "_forward", "_gathered", "_started", "_timer", "_work", "turn")

    def __init__(self, turn: Turn, work: Work, *, gather: bool) -> None:
        self.turn = turn
        self._work = work
        self._gathered: list[Any] | None = [] if gather else None
        self._started = False
        self._collector: Any = None
        self._forward: Callable[[Any], None] = lambda _: None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, collector: Any, deadline_seconds: float | None) -> None:
        """Observe every `put()` of `collector`, what it already holds included."""
        self._collector = collector
        self._forward = collector.put
        early, collector.output = collector.output, None
        collector.ready.clear()
        collector.put = self._put
        if early is not None:
            self._put(early)
        if deadline_seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, deadline_seconds - time.monotonic()), self.end_with, TimedOut(OUT_OF_TIME)
            )

    def end_with(self, error: Exception) -> None:
        """Give the reader `error` as the next thing it gets."""
        self._forward(error)

    def close(self) -> None:
        """Stop watching; the collector is done with."""
        if self._timer is not None:
            self._timer.cancel()
        if self._collector is not None:
            # An instance attribute over the method: leaving it would keep a reference cycle.
            del self._collector.put

    def _put(self, output: Any) -> None:
        """Per engine output: count, end the turn when the engine has, pass on."""
        if isinstance(output, Exception):
            self._forward(output)
            return
        if not self._started:
            self._started = True
            self._work.cached_tokens += output.num_cached_tokens or 0
            self.turn.first_token(cached_tokens=output.num_cached_tokens or 0)
        completions = getattr(output, "outputs", None)
        if isinstance(completions, list):
            count = 0
            for completion in completions:
                count += len(completion.token_ids)
            if count:
                self._work.completion_tokens += count
                self.turn.tokens(count)
        if output.finished and not gave_up(output):
            self.turn.finish()
        if self._gathered is None:
            self._forward(output)
        else:
            self._gather(output)

    def _gather(self, output: Any) -> None:
        """A reader that wants only the whole answer is woken only for that."""
        gathered = self._gathered
        assert gathered is not None  # noqa: S101 - the caller checked; this is for the type
        if not gathered:
            gathered.append(output)
        elif gathered[0] is not output:
            gathered[0].add(output, aggregate=True)
        if output.finished:
            self._forward(gathered.pop())


def gave_up(output: Any) -> bool:
    """Whether the engine ended an answer without completing it."""
    completions = getattr(output, "outputs", None)
    return isinstance(completions, list) and any(
        completion.finish_reason in ("abort", "error") for completion in completions
    )
