"""A question about a text: about all of it where it fits, else about the passages that matter."""

from __future__ import annotations

import asyncio

from app.engine.api import Prompt, TextEngine
from app.errors import ContextLengthExceeded
from app.summaries.jobs import Asked, Unreadable
from app.summaries.lengths import room_of
from app.summaries.prompts import answer_messages, passage_messages
from app.summaries.request import Brief
from app.summaries.results import Passage
from app.summaries.retrieval import ranked
from app.summaries.splitter import Span, split, surely_exceeds
from app.summaries.writer import Call

# Passages of a few paragraphs, and as many of them as a small model can still tell apart.
_PASSAGE_TOKENS = 256
_SHOWN_TOKENS = 3072

# For the number of each passage and what joins differently in the prompt.
_BESIDE_TOKENS = 8


async def ask_job(
    engine: TextEngine, text: str, brief: Brief, model: str | None
) -> Asked | Unreadable:
    """The one call that answers `brief.question`."""
    context = engine.model.context_tokens
    wanted, _ = room_of(brief)
    if not await surely_exceeds(text, context, engine.count):
        whole = await engine.render(answer_messages(text, brief), model=model)
        if len(whole.token_ids) + wanted <= context:
            return Asked(text=text, call=Call(prompt=whole, max_tokens=wanted), passages=())
    empty = await engine.render(passage_messages([""], brief), model=model)
    room = min(wanted, (context - len(empty.token_ids)) // 3)
    left = context - len(empty.token_ids) - room
    if room < _BESIDE_TOKENS or left < 4 * _BESIDE_TOKENS:
        return Unreadable(error=_too_small(context))
    size = min(_PASSAGE_TOKENS, left // 2) - _BESIDE_TOKENS
    spans = await split(text, size, engine.count)
    chosen = await asyncio.to_thread(_chosen, text, spans, brief.question or "", left)
    while True:
        passages = [text[span.start : span.end].strip() for span in chosen]
        prompt = await engine.render(passage_messages(passages, brief), model=model)
        if len(prompt.token_ids) + room <= context or len(chosen) == 1:
            return _asked(text, chosen, prompt, min(room, context - len(prompt.token_ids)))
        chosen = chosen[:-1]


def _chosen(text: str, spans: list[Span], question: str, left_tokens: int) -> list[Span]:
    """The best passages that fit, in the order of the text; its beginning where none matches."""
    passages = [text[span.start : span.end] for span in spans]
    order = ranked(passages, question) or list(range(len(spans)))
    chosen: list[Span] = []
    left = min(left_tokens, _SHOWN_TOKENS)
    for index in order:
        cost = spans[index].tokens + _BESIDE_TOKENS
        if cost > left:
            break
        left -= cost
        chosen.append(spans[index])
    return sorted(chosen or [spans[order[0]]], key=lambda span: span.start)


def _asked(text: str, spans: list[Span], prompt: Prompt, room: int) -> Asked:
    passages = tuple(
        Passage(index=number, start=span.start, end=span.end)
        for number, span in enumerate(spans, 1)
    )
    return Asked(text=text, call=Call(prompt=prompt, max_tokens=room), passages=passages)


def _too_small(context: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"the text does not fit, and the model's context of {context:,} tokens is too small even "
        "for a passage of it beside the question",
        param="text",
    )
