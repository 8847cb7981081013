"""What each document needs, counted with the served model's tokenizer before it is queued."""

from __future__ import annotations

from app.engine.api import Message, TextEngine
from app.errors import ContextLengthExceeded, TooLarge
from app.summaries.ask import ask_job
from app.summaries.jobs import Job, Parts, Plan, Single, Unreadable, Verbatim
from app.summaries.lengths import is_its_own_summary, room_of, words_for
from app.summaries.prompts import (
    final_messages,
    merge_messages,
    part_messages,
    summary_messages,
)
from app.summaries.request import Source, SummaryRequest
from app.summaries.shape import Overheads, shape_of
from app.summaries.splitter import density, split, surely_exceeds
from app.summaries.writer import Call


class Planner:
    """Makes plans for one engine; a document may need `most_calls` calls."""

    def __init__(self, engine: TextEngine, most_calls: int) -> None:
        self._engine = engine
        self._most_calls = most_calls

    async def plan(self, request: SummaryRequest) -> Plan:
        """The plan for all documents of `request`.

        Raises:
            NotFound: no such model.
            ContextLengthExceeded, TooLarge: the only document is too long; one of several carries
                that itself.
        """
        jobs = tuple([await self._job(request, source) for source in request.sources])
        if not request.many and isinstance(jobs[0], Unreadable):
            raise jobs[0].error
        return Plan(
            brief=request.brief,
            model=request.model,
            many=request.many,
            ids=tuple(source.id for source in request.sources),
            jobs=jobs,
        )

    async def _job(self, request: SummaryRequest, source: Source) -> Job:
        if source.error is not None:
            return Unreadable(error=source.error)
        if request.brief.question is not None:
            return await ask_job(self._engine, source.text, request.brief, request.model)
        if is_its_own_summary(source.text, request.brief):
            return Verbatim(text=source.text)
        return await self._summary(request, source)

    async def _summary(self, request: SummaryRequest, source: Source) -> Job:
        wanted, least = room_of(request.brief)
        context = self._engine.model.context_tokens
        try:
            far_beyond = await surely_exceeds(source.text, context, self._engine.count)
            if far_beyond and self._most_calls > 1:
                return await self._parts(request, source.text)
            messages = summary_messages(source.text, request.brief)
            prompt = await self._engine.render(messages, model=request.model)
            prompt_tokens = len(prompt.token_ids)
            if prompt_tokens + least <= context:
                call = Call(prompt=prompt, max_tokens=min(wanted, context - prompt_tokens))
                return Single(text=source.text, call=call)
            if self._most_calls == 1:
                return Unreadable(error=_too_long(prompt_tokens, least, context))
            return await self._parts(request, source.text)
        except (ContextLengthExceeded, TooLarge) as error:
            return Unreadable(error=error)

    async def _parts(self, request: SummaryRequest, text: str) -> Parts:
        overheads = await self._overheads(request)
        wanted, _ = room_of(request.brief)
        about_tokens = round(len(text) / await density(text, self._engine.count))
        shape = shape_of(self._engine.model.context_tokens, overheads, wanted, about_tokens)
        if about_tokens > 2 * self._most_calls * shape.part_tokens:
            raise _too_many(about_tokens, self._most_calls)
        spans = await split(text, shape.part_tokens, self._engine.count)
        spans = [span for span in spans if not text[span.start : span.end].isspace()]
        parts = Parts(text=text, spans=tuple(spans), shape=shape)
        if parts.calls > self._most_calls:
            raise _too_many(sum(span.tokens for span in spans), self._most_calls)
        return parts

    async def _overheads(self, request: SummaryRequest) -> Overheads:
        brief = request.brief
        words = words_for(2**20)  # as many digits as any number of words will have

        async def tokens(messages: list[Message]) -> int:
            return len((await self._engine.render(messages, model=request.model)).token_ids)

        return Overheads(
            part=await tokens(part_messages("", brief, words)),
            merge=await tokens(merge_messages([], brief, words)),
            final=await tokens(final_messages([], brief)),
        )


def _too_long(prompt_tokens: int, room: int, context: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"the text is {prompt_tokens:,} tokens with its instructions and its summary needs room "
        f"for {room:,} more, but the model's context is {context:,} tokens: send the text in parts",
        param="text",
    )


def _too_many(text_tokens: int, most_calls: int) -> TooLarge:
    return TooLarge(
        f"the text is {text_tokens:,} tokens and would need more than the {most_calls:,} calls of "
        "the model that one document may take: send it in parts",
        param="text",
    )
