"""How one answer is made: it is accounted for, streamed from the engine, and ends exactly once."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from app.chat.breaker import Breaker
from app.chat.limits import ChatLimits
from app.engine.api import Api, End, TextEngine, Work
from app.errors import Draining, FairgateError, TooSlow
from app.web.answers import as_fairgate_error
from app.web.caller import Caller

logger = logging.getLogger(__name__)


class MakeWork(Protocol):
    """Says how one turn of a caller counts; raises a `FairgateError` where it may not even try."""

    def __call__(self, caller: Caller, api: Api, *, streamed: bool, batch: bool = False) -> Work:
        """The work of one turn."""


class Halt(enum.Enum):
    """Why an answer was ended from outside, where nothing was wrong."""

    STOPPED = "the client said stop"
    LEFT = "the client has gone for good"


Cause = Halt | FairgateError


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How an answer ended: with `end`, with a `problem`, or by a `halt`."""

    work: Work | None = None
    end: End | None = None
    problem: FairgateError | None = None
    halt: Halt | None = None

    def record(self) -> None:
        """Tell the work how it ended, once the client has its last byte or never will."""
        if self.work is None:
            return
        if self.end is not None:
            self.work.end("finished")
        elif self.problem is None:
            self.work.end("aborted")
        elif isinstance(self.problem, TooSlow):
            self.work.end("aborted", self.problem.code)
        elif isinstance(self.problem, Draining) and self.work.queue_seconds is not None:
            self.work.end("failed", self.problem.code)
        else:
            self.work.end_with(self.problem)


class Answering:
    """What sockets share: the engine, the accounting, and the group that their answers run in.

    Answers outlive sockets, so they do not run in the tasks of these. `ending` is set once nothing
    new may begin.
    """

    def __init__(
        self, *, engine: Callable[[], TextEngine], make_work: MakeWork, limits: ChatLimits
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.ending: FairgateError | None = None
        self._make_work = make_work
        self._group: asyncio.TaskGroup | None = None

    def open(self, group: asyncio.TaskGroup | None) -> None:
        """Run answers in `group` from now on."""
        self._group = group

    def start(self, answer: Coroutine[Any, Any, None]) -> None:
        """Run `answer` beside whatever else goes on."""
        if self._group is None:
            answer.close()
            raise RuntimeError("chat is not running: enter Switchboard.running() first")
        self._group.create_task(self._guarded(answer))

    @staticmethod
    async def _guarded(answer: Coroutine[Any, Any, None]) -> None:
        """One answer that fails where nobody expected it must not take the others with it."""
        try:
            await answer
        except Exception:
            logger.exception("chat.failed")

    def check_open(self) -> None:
        """Raise `ending`, once it is set."""
        if self.ending is not None:
            raise self.ending

    async def answer(
        self,
        caller: Caller,
        breaker: Breaker[Cause],
        speak: Callable[[Work], Coroutine[Any, Any, End]],
    ) -> Outcome:
        """Let `speak` stream an answer until its end, its failure, or `breaker`."""
        outcome = Outcome()
        try:
            self.check_open()
            outcome.work = self._make_work(caller, "chat", streamed=True)
            outcome.end = await breaker.run(speak(outcome.work))
            if outcome.end is None:
                cause = breaker.reason
                outcome.halt = cause if isinstance(cause, Halt) else None
                outcome.problem = None if isinstance(cause, Halt) else cause
        except FairgateError as problem:
            outcome.problem = problem
        except Exception as error:
            logger.exception("chat.turn_failed", extra={"request_id": caller.request_id})
            outcome.problem = as_fairgate_error(error)
        except BaseException:
            outcome.record()
            raise
        return outcome
