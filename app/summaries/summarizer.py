"""Carrying out a plan: all documents of one request, side by side, within its bounds."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from app.engine.api import TextEngine, Work
from app.errors import FairgateError, Internal
from app.summaries.draft import Draft
from app.summaries.exchange import Exchange
from app.summaries.gate import Gate
from app.summaries.hang_up import one_error
from app.summaries.jobs import Asked, Job, Parts, Plan, Single, Unreadable, Verbatim
from app.summaries.lengths import most_words
from app.summaries.making import Making
from app.summaries.map_reduce import MapReduce
from app.summaries.results import Cost, Fragment, Reply, Result, Summary, Timing
from app.summaries.words import first_sentences
from app.summaries.writer import Writer

# A source's own first sentences stand in for a summary up to this many words.
_STAND_IN_WORDS = 60


class Summarizer:
    """The making of one request's summaries; built for it and used once."""

    def __init__(
        self, engine: TextEngine, work: Work, plan: Plan, exchange: Exchange, parallel_calls: int
    ) -> None:
        self._work = work
        self._plan = plan
        self._making = Making(
            engine=engine,
            plan=plan,
            writer=Writer(engine, work, self),
            gate=Gate(parallel_calls),
            exchange=exchange,
        )
        self._told = False
        self._queue_seconds: float | None = None
        self._ttft_seconds: float | None = None

    async def run(self) -> list[Result]:
        """What became of each document, in order.

        Raises:
            FairgateError: refused as a whole, or all is over; the only document's error.
        """
        if not self._plan.calls:
            await self.sign_of_life()
            self._making.gate.open()
        results: dict[int, Result] = {}

        async def do(index: int) -> None:
            results[index] = await self._result(index)

        with one_error():
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._plan.jobs)):
                    group.create_task(do(index))
        return [results[index] for index in range(len(results))]

    @property
    def timing(self) -> Timing:
        """How long it all took, until now."""
        return Timing(
            queue_seconds=self._queue_seconds,
            ttft_seconds=self._ttft_seconds,
            total_seconds=time.monotonic() - self._work.arrived_seconds,
        )

    async def sign_of_life(self) -> None:
        """Tell the client that its request is in, once."""
        if not self._told:
            self._told = True
            await self._making.exchange.accepted(self._plan)

    def waiting(self, position: int, eta_seconds: float) -> None:
        """Pass it on."""
        self._making.exchange.waiting(position, eta_seconds)

    def started(self, queue_seconds: float) -> None:
        """Let the other calls follow the first, and keep its wait: it is the request's."""
        self._making.exchange.working()
        self._making.gate.open()
        if self._queue_seconds is None:
            self._queue_seconds = queue_seconds

    def spoke(self) -> None:
        """Keep the time of the first piece."""
        if self._ttft_seconds is None:
            self._ttft_seconds = time.monotonic() - self._work.arrived_seconds

    async def _result(self, index: int) -> Result:
        """A document's summary or its own error; whatever ends the request is raised."""
        outcome: Summary | Reply | FairgateError
        try:
            outcome = await self._summary(index, self._plan.jobs[index])
        except FairgateError as error:
            if not self._plan.many or self._making.ends_all(error):
                raise
            outcome = error
        result = Result(id=self._plan.ids[index], outcome=outcome)
        if self._plan.many:
            await self._making.exchange.result(index, result)
        return result

    async def _summary(self, index: int, job: Job) -> Summary | Reply:
        match job:
            case Unreadable():
                await self._making.gate.opened()
                raise job.error
            case Verbatim():
                await self._making.gate.opened()
                return await self._own_words(index, job.text, job.text.strip(), Cost())
            case Single():
                return await self._single(index, job)
            case Parts():
                return await MapReduce(self._making, index, job).run()
            case Asked():
                return await self._reply(index, job)

    async def _single(self, index: int, job: Single) -> Summary:
        making, brief = self._making, self._plan.brief
        make_draft = partial(
            Draft,
            style=brief.style,
            max_words=most_words(brief),
            max_characters=len(job.text.strip()),
        )
        async with making.gate.place():
            written = await making.writer.write(
                job.call, make_draft, partial(making.exchange.delta, index)
            )
        if not written.text:
            own = first_sentences(job.text, min(most_words(brief), _STAND_IN_WORDS))
            return await self._own_words(index, job.text, own, written.cost)
        fragment = Fragment(index=0, start=0, end=len(job.text), summary=written.text)
        await making.exchange.fragment(index, fragment)
        return Summary(
            text=written.text,
            finish_reason=written.finish_reason,
            truncated=written.truncated,
            fragments=(fragment,),
            cost=written.cost,
        )

    async def _reply(self, index: int, job: Asked) -> Reply:
        making, brief = self._making, self._plan.brief
        make_draft = partial(Draft, style=brief.style, max_words=most_words(brief))
        async with making.gate.place():
            written = await making.writer.write(
                job.call, make_draft, partial(making.exchange.delta, index)
            )
        if not written.text:
            raise Internal("the model has no words for this; ask it in other words")
        return Reply(
            text=written.text,
            finish_reason=written.finish_reason,
            truncated=written.truncated,
            passages=job.passages,
            cost=written.cost,
        )

    async def _own_words(self, index: int, text: str, own: str, cost: Cost) -> Summary:
        """A summary in the source's own words, where the model has none that are shorter."""
        await self._making.exchange.delta(index, own)
        fragment = Fragment(index=0, start=0, end=len(text), summary=own, verbatim=True)
        await self._making.exchange.fragment(index, fragment)
        return Summary(text=own, verbatim=True, fragments=(fragment,), cost=cost)
