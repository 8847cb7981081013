"""What is to be done for each document of a request, and what it costs at most."""

from __future__ import annotations

from dataclasses import dataclass

from app.errors import FairgateError
from app.summaries.request import Brief
from app.summaries.results import Json, Passage
from app.summaries.shape import Shape
from app.summaries.splitter import Span
from app.summaries.writer import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Nothing to do but to say why."""

    error: FairgateError
    calls: int = 0
    chunks: int = 0
    levels: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbatim:
    """A text that is no longer than the summary that was asked for: it is the summary."""

    text: str
    calls: int = 0
    chunks: int = 0
    levels: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """A text that fits the context with its instructions and room for the summary."""

    text: str
    call: Call
    calls: int = 1
    chunks: int = 1
    levels: int = 1

    @property
    def tokens(self) -> int:
        """The most that the call takes."""
        return len(self.call.prompt.token_ids) + self.call.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A text that does not fit: its parts are summarised, and then their summaries."""

    text: str
    spans: tuple[Span, ...]
    shape: Shape

    @property
    def calls(self) -> int:
        """How many calls there are at most, if none has to be repeated."""
        return self.chunks + sum(self.shape.merges(self.chunks)) + 1

    @property
    def chunks(self) -> int:
        """How many parts there are."""
        return len(self.spans)

    @property
    def levels(self) -> int:
        """How many calls follow one another."""
        return 2 + len(self.shape.merges(self.chunks))

    @property
    def tokens(self) -> int:
        """The most that all calls take."""
        return self.shape.tokens([span.tokens for span in self.spans])


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question about a text, or about `passages` of it where it does not fit."""

    text: str
    call: Call
    passages: tuple[Passage, ...]
    calls: int = 1
    levels: int = 1

    @property
    def chunks(self) -> int:
        """How many passages the model is shown."""
        return max(1, len(self.passages))

    @property
    def tokens(self) -> int:
        """The most that the call takes."""
        return len(self.call.prompt.token_ids) + self.call.max_tokens


Job = Unreadable | Verbatim | Single | Parts | Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a request will cost at most, known before it is queued; repeated calls come on top.

    `jobs` are in the order of its documents, of which `ids` are the client's names.
    """

    brief: Brief
    model: str | None
    many: bool
    ids: tuple[str | None, ...]
    jobs: tuple[Job, ...]

    @property
    def calls(self) -> int:
        """Engine calls, all documents together."""
        return sum(job.calls for job in self.jobs)

    def as_json(self) -> Json:
        """The `plan` event: `levels` calls follow one another; `tokens` are prompts and output."""
        return {
            "documents": len(self.jobs),
            "chunks": sum(job.chunks for job in self.jobs),
            "levels": max(job.levels for job in self.jobs),
            "calls": self.calls,
            "tokens": sum(job.tokens for job in self.jobs),
        }
