"""What each document needs, counted with the served model's tokenizer before it is queued."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.api import TextEngine
from app.errors import ContextLengthExceeded, FairgateError
from app.summaries.prompts import summary_messages
from app.summaries.request import Brief, Source, SummaryRequest
from app.summaries.results import Json
from app.summaries.words import exceeds_words
from app.summaries.writer import Call

# Room for a summary where no `max_words` says how long it is, and the words of a headline.
_ROOM_TOKENS = {"paragraph": 320, "bullets": 400, "headline": 48}
_HEADLINE_WORDS = 16

# Words cost up to about 3 tokens each where a small vocabulary meets a language it was not made
# for. Generous is cheap: the writer ends the call as soon as the words are there.
_TOKENS_PER_WORD = 3
_TOKENS_EVER = 32

# A text of so few words is its own summary.
_SHORT_WORDS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Nothing to do but to say why."""

    error: FairgateError


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbatim:
    """A text that is no longer than the summary that was asked for: it is the summary."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """A text that fits the context with its instructions and room for the summary."""

    text: str
    call: Call


Job = Unreadable | Verbatim | Single


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a request will cost at most, known before it is queued.

    `levels` is how many engine calls follow one another; `tokens` counts prompts and output.
    """

    brief: Brief
    many: bool
    ids: tuple[str | None, ...]
    jobs: tuple[Job, ...]
    chunks: int
    levels: int
    calls: int
    tokens: int

    def as_json(self) -> Json:
        """The `plan` event."""
        return {
            "documents": len(self.jobs),
            "chunks": self.chunks,
            "levels": self.levels,
            "calls": self.calls,
            "tokens": self.tokens,
        }


def words_of(brief: Brief) -> int | None:
    """The most words that the summary may have."""
    return brief.max_words or (_HEADLINE_WORDS if brief.style == "headline" else None)


async def plan_of(engine: TextEngine, request: SummaryRequest) -> Plan:
    """The plan for all documents of `request`.

    Raises:
        NotFound: no such model.
        ContextLengthExceeded: the only document is too long; one of several carries that itself.
    """
    jobs = tuple([await _job(engine, request, source) for source in request.sources])
    if not request.many and isinstance(jobs[0], Unreadable):
        raise jobs[0].error
    calls = [job.call for job in jobs if isinstance(job, Single)]
    return Plan(
        brief=request.brief,
        many=request.many,
        ids=tuple(source.id for source in request.sources),
        jobs=jobs,
        chunks=len(calls),
        levels=1 if calls else 0,
        calls=len(calls),
        tokens=sum(len(call.prompt.token_ids) + call.max_tokens for call in calls),
    )


async def _job(engine: TextEngine, request: SummaryRequest, source: Source) -> Job:
    if source.error is not None:
        return Unreadable(error=source.error)
    if _is_its_own_summary(source.text, request.brief):
        return Verbatim(text=source.text)
    messages = summary_messages(source.text, request.brief)
    prompt = await engine.render(messages, model=request.model)
    wanted, least = _room_tokens(request.brief)
    left = engine.model.context_tokens - len(prompt.token_ids)
    if left < least:
        error = _too_long(len(prompt.token_ids), least, engine.model.context_tokens)
        return Unreadable(error=error)
    return Single(text=source.text, call=Call(prompt=prompt, max_tokens=min(wanted, left)))


def _is_its_own_summary(text: str, brief: Brief) -> bool:
    """Only where nothing but its length is asked for."""
    if brief.style != "paragraph" or brief.language or brief.focus:
        return False
    return not exceeds_words(text, brief.max_words or _SHORT_WORDS)


def _room_tokens(brief: Brief) -> tuple[int, int]:
    """Room for the words that were asked for, and the least that a call is worth making with."""
    words, usual = words_of(brief), _ROOM_TOKENS[brief.style]
    wanted = usual if words is None else words * _TOKENS_PER_WORD + _TOKENS_EVER
    return wanted, min(wanted, usual)


def _too_long(prompt_tokens: int, room: int, context: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"the text is {prompt_tokens:,} tokens with its instructions and its summary needs room "
        f"for {room:,} more, but the model's context is {context:,} tokens: send the text in parts",
        param="text",
    )
