"""Carrying out a plan: all documents of one request, side by side, within its bounds."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from app.engine.api import TextEngine, Work
from app.errors import Draining, EngineDead, FairgateError, Loading, TimedOut
from app.summaries.draft import Draft
from app.summaries.exchange import Exchange
from app.summaries.hang_up import one_error
from app.summaries.planner import Job, Plan, Single, Unreadable, Verbatim, words_of
from app.summaries.results import Cost, Fragment, Result, Summary, Timing
from app.summaries.words import first_sentences
from app.summaries.writer import Writer

# These end the whole request, whichever document they hit; any other is that document's own.
_FATAL = (EngineDead, Draining, Loading, TimedOut)

# A source's own first sentences stand in for a summary up to this many words.
_STAND_IN_WORDS = 60


class Summarizer:
    """The making of one request's summaries; built for it and used once.

    The first engine call goes alone until it shows a sign of life: by its place in the queue the
    request is accepted or refused as a whole. Then the others follow, `parallel_calls` at a time.
    """

    def __init__(
        self, engine: TextEngine, work: Work, plan: Plan, exchange: Exchange, parallel_calls: int
    ) -> None:
        self._work = work
        self._plan = plan
        self._exchange = exchange
        self._writer = Writer(engine, work, self)
        self._places = asyncio.Semaphore(parallel_calls)
        self._accepted = asyncio.Event()
        self._queue_seconds: float | None = None
        self._ttft_seconds: float | None = None

    async def run(self) -> list[Result]:
        """What became of each document, in order.

        Raises:
            FairgateError: refused as a whole, or all is over; the only document's error.
        """
        jobs = self._plan.jobs
        first = next((i for i, job in enumerate(jobs) if isinstance(job, Single)), None)
        if first is None:
            await self.sign_of_life()
        results: dict[int, Result] = {}

        async def do(index: int) -> None:
            results[index] = await self._result(index)

        with one_error():
            async with asyncio.TaskGroup() as group:
                if first is not None:
                    group.create_task(do(first))
                    await self._accepted.wait()
                for index in range(len(jobs)):
                    if index != first:
                        group.create_task(do(index))
        return [results[index] for index in range(len(jobs))]

    @property
    def timing(self) -> Timing:
        """How long it all took, until now."""
        return Timing(
            queue_seconds=self._queue_seconds,
            ttft_seconds=self._ttft_seconds,
            total_seconds=time.monotonic() - self._work.arrived_seconds,
        )

    async def sign_of_life(self) -> None:
        """Accept the request, once."""
        if not self._accepted.is_set():
            await self._exchange.accepted(self._plan)
            self._accepted.set()

    def waiting(self, position: int, eta_seconds: float) -> None:
        """Pass it on."""
        self._exchange.waiting(position, eta_seconds)

    def started(self, queue_seconds: float) -> None:
        """Keep the first call's wait: it is the request's."""
        self._exchange.working()
        if self._queue_seconds is None:
            self._queue_seconds = queue_seconds

    def spoke(self) -> None:
        """Keep the time of the first piece."""
        if self._ttft_seconds is None:
            self._ttft_seconds = time.monotonic() - self._work.arrived_seconds

    async def _result(self, index: int) -> Result:
        """A document's summary or its own error; whatever ends the request is raised."""
        outcome: Summary | FairgateError
        try:
            async with self._places:
                outcome = await self._summary(index, self._plan.jobs[index])
        except FairgateError as error:
            if not (self._plan.many and self._accepted.is_set()) or isinstance(error, _FATAL):
                raise
            outcome = error
        result = Result(id=self._plan.ids[index], outcome=outcome)
        if self._plan.many:
            await self._exchange.result(index, result)
        return result

    async def _summary(self, index: int, job: Job) -> Summary:
        match job:
            case Unreadable():
                raise job.error
            case Verbatim():
                return await self._own_words(index, job.text, job.text.strip(), Cost())
            case Single():
                return await self._single(index, job)

    async def _single(self, index: int, job: Single) -> Summary:
        brief = self._plan.brief
        make_draft = partial(
            Draft,
            style=brief.style,
            max_words=words_of(brief),
            max_characters=len(job.text.strip()),
        )
        show = partial(self._exchange.delta, index)
        written = await self._writer.write(job.call, make_draft, show)
        if not written.text:
            own = first_sentences(job.text, words_of(brief) or _STAND_IN_WORDS)
            return await self._own_words(index, job.text, own, written.cost)
        fragment = Fragment(index=0, start=0, end=len(job.text), summary=written.text)
        await self._exchange.fragment(index, fragment)
        return Summary(
            text=written.text,
            finish_reason=written.finish_reason,
            truncated=written.truncated,
            fragments=(fragment,),
            cost=written.cost,
        )

    async def _own_words(self, index: int, text: str, own: str, cost: Cost) -> Summary:
        """A summary in the source's own words, where the model has none that are shorter."""
        await self._exchange.delta(index, own)
        fragment = Fragment(index=0, start=0, end=len(text), summary=own)
        await self._exchange.fragment(index, fragment)
        return Summary(text=own, verbatim=True, fragments=(fragment,), cost=cost)
