"""Summarising a text in parts: each part on its own, then their summaries, until one is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from app.engine.api import Message
from app.errors import FairgateError
from app.summaries.draft import Draft
from app.summaries.hang_up import one_error
from app.summaries.jobs import Parts
from app.summaries.lengths import most_words, words_for
from app.summaries.making import Making
from app.summaries.prompts import final_messages, merge_messages, part_messages
from app.summaries.results import Cost, Fragment, Summary
from app.summaries.splitter import Span
from app.summaries.words import count_words, first_sentences
from app.summaries.writer import Written

# What a text is made of where the model has no words for it.
_STAND_IN_WORDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A summary on its way up, with its tokens."""

    text: str
    tokens: int


class MapReduce:
    """The summary of one document in parts; used once.

    A part that fails twice is reported in its fragment, and the summary is made of the others.
    """

    def __init__(self, making: Making, index: int, job: Parts) -> None:
        self._making = making
        self._index = index
        self._job = job
        self._cost = Cost()
        self._words = words_for(job.shape.part_room)

    async def run(self) -> Summary:
        """The summary.

        Raises:
            FairgateError: no part could be summarised, or the end failed.
        """
        fragments = await self._fragments()
        pieces = [await self._piece(f.summary) for f in fragments if f.summary is not None]
        while len(pieces) > 1 and self._tokens(pieces) > self._job.shape.final_tokens:
            pieces = await self._merged(pieces)
        written = await self._final([piece.text for piece in pieces])
        return Summary(
            text=written.text,
            strategy="map_reduce",
            finish_reason=written.finish_reason,
            truncated=written.truncated,
            fragments=tuple(fragments),
            cost=self._cost,
        )

    async def _fragments(self) -> list[Fragment]:
        spans = self._job.spans
        fragments: dict[int, Fragment] = {}

        async def do(index: int) -> None:
            fragments[index] = await self._fragment(index, spans[index])

        with one_error():
            async with asyncio.TaskGroup() as group:
                for index in range(len(spans)):
                    group.create_task(do(index))
        failed = [f.error for f in fragments.values() if f.error is not None]
        if len(failed) == len(spans):
            raise failed[0]
        return [fragments[index] for index in range(len(spans))]

    async def _fragment(self, index: int, span: Span) -> Fragment:
        text = self._job.text[span.start : span.end]
        messages = part_messages(text, self._making.plan.brief, self._words)
        make = partial(Fragment, index=index, start=span.start, end=span.end)
        try:
            summary = await self._summary(messages, limit=len(text.strip()))
        except FairgateError as error:
            if self._making.ends_all(error):
                raise
            fragment = make(summary=None, error=error)
        else:
            own = first_sentences(text, min(_STAND_IN_WORDS, self._words))
            fragment = make(summary=summary or own, verbatim=not summary)
        await self._making.exchange.fragment(self._index, fragment)
        return fragment

    async def _merged(self, pieces: list[Piece]) -> list[Piece]:
        """One level up: groups of neighbours that fit one call, side by side."""
        groups = list(self._groups(pieces))
        merged: dict[int, Piece] = {}

        async def do(index: int) -> None:
            texts = [piece.text for piece in groups[index]]
            messages = merge_messages(texts, self._making.plan.brief, self._words)
            summary = await self._summary(messages, limit=sum(map(len, texts)))
            own = first_sentences("\n\n".join(texts), self._words)
            merged[index] = await self._piece(summary or own)

        with one_error():
            async with asyncio.TaskGroup() as group:
                for index in range(len(groups)):
                    group.create_task(do(index))
        return [merged[index] for index in range(len(groups))]

    async def _summary(self, messages: list[Message], *, limit: int) -> str:
        """The text of one call below the last; empty where the model found no words."""
        making, room = self._making, self._job.shape.part_room
        async with making.gate.place():
            call = await making.call(messages, room)
            written = await making.write(call, partial(Draft, max_characters=limit))
        self._cost += written.cost
        return written.text

    async def _final(self, texts: list[str]) -> Written:
        making = self._making
        brief, room = making.plan.brief, self._job.shape.final_room
        make_draft = partial(
            Draft,
            style=brief.style,
            max_words=most_words(brief),
            max_characters=len(self._job.text.strip()),
        )
        show = partial(making.exchange.delta, self._index)
        async with making.gate.place():
            call = await making.call(final_messages(texts, brief), room)
            written = await making.write(call, make_draft, show)
        self._cost += written.cost
        if written.text:
            return written
        own = first_sentences("\n\n".join(texts), min(most_words(brief), _STAND_IN_WORDS))
        await show(own)
        return Written(
            text=own, finish_reason=written.finish_reason, truncated=False, cost=written.cost
        )

    async def _piece(self, text: str) -> Piece:
        """`text`, cut where it takes more tokens now than the model needed to write it."""
        most = self._job.shape.part_room
        while (tokens := await self._making.engine.count(text)) > most:
            shorter = first_sentences(text, count_words(text) * most // tokens)
            text = shorter if len(shorter) < len(text) else text[: len(text) * most // tokens - 1]
        return Piece(text=text, tokens=tokens)

    def _tokens(self, pieces: list[Piece]) -> int:
        beside = self._job.shape.summary_tokens - self._job.shape.part_room
        return sum(piece.tokens + beside for piece in pieces)

    def _groups(self, pieces: list[Piece]) -> Iterator[list[Piece]]:
        group: list[Piece] = []
        for piece in pieces:
            if self._tokens([*group, piece]) > self._job.shape.merge_tokens:
                yield group
                group = []
            group.append(piece)
        yield group
