"""What comes out: summaries, what they cost, and the JSON that clients read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from app.engine.api import Usage
from app.errors import FairgateError
from app.web.answers import error_body

Strategy = Literal["single", "map_reduce"]
FinishReason = Literal["stop", "length", "repetition"]
Json = dict[str, Any]


_NOTHING = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Tokens and engine calls; costs add up."""

    usage: Usage = _NOTHING
    requests: int = 0

    def __add__(self, other: Cost) -> Cost:
        mine, its = self.usage, other.usage
        return Cost(
            usage=Usage(
                prompt_tokens=mine.prompt_tokens + its.prompt_tokens,
                cached_tokens=mine.cached_tokens + its.cached_tokens,
                completion_tokens=mine.completion_tokens + its.completion_tokens,
            ),
            requests=self.requests + other.requests,
        )

    def as_json(self) -> Json:
        """The `usage` of an answer."""
        return {
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "total_tokens": self.usage.prompt_tokens + self.usage.completion_tokens,
            "requests": self.requests,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The summary of one part of a document, characters `start` up to `end` of its text.

    `error` says why there is none; `verbatim` as in `Summary`.
    """

    index: int
    start: int
    end: int
    summary: str | None
    verbatim: bool = False
    error: FairgateError | None = None

    def as_json(self) -> Json:
        """One of the `fragments` of an answer."""
        return {
            "index": self.index,
            "start": self.start,
            "end": self.end,
            "summary": self.summary,
            "verbatim": self.verbatim,
            **({} if self.error is None else error_body(self.error)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The summary of one document.

    `verbatim` says that it is the document's own first sentences, since what the model wrote was
    no shorter or no summary; `truncated` that something is missing at its end. Parts without a
    summary of their own are missing in it too: `fragments` tells which.
    """

    text: str
    strategy: Strategy = "single"
    finish_reason: FinishReason = "stop"
    truncated: bool = False
    verbatim: bool = False
    fragments: tuple[Fragment, ...] = ()
    cost: Cost = Cost()

    def as_json(self) -> Json:
        """The document's part of an answer."""
        return {
            "summary": self.text,
            "strategy": self.strategy,
            "finish_reason": self.finish_reason,
            "truncated": self.truncated,
            "verbatim": self.verbatim,
            "parts": {
                "total": len(self.fragments),
                "used": sum(fragment.error is None for fragment in self.fragments),
            },
            "fragments": [fragment.as_json() for fragment in self.fragments],
            "usage": self.cost.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of a text that was found for a question; `index` is what the model cites, from 1."""

    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a question about one document, and the passages that the model was shown.

    Without passages it was shown the whole text.
    """

    text: str
    finish_reason: FinishReason
    truncated: bool
    passages: tuple[Passage, ...]
    cost: Cost

    def as_json(self) -> Json:
        """The document's part of an answer; a passage is cited where its number is in the text."""
        return {
            "answer": self.text,
            "strategy": "retrieval" if self.passages else "single",
            "finish_reason": self.finish_reason,
            "truncated": self.truncated,
            "passages": [
                {
                    "index": passage.index,
                    "start": passage.start,
                    "end": passage.end,
                    "cited": f"[{passage.index}]" in self.text,
                }
                for passage in self.passages
            ],
            "usage": self.cost.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one document: a summary, the answer to the question, or an error."""

    id: str | None
    outcome: Summary | Reply | FairgateError

    def as_json(self, document: int) -> Json:
        """One of the `results` of an answer."""
        outcome = self.outcome
        body = error_body(outcome) if isinstance(outcome, FairgateError) else outcome.as_json()
        return {"id": self.id, "document": document, **body}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds since arrival; None where the engine was not needed."""

    queue_seconds: float | None
    ttft_seconds: float | None
    total_seconds: float

    def as_json(self) -> Json:
        """The `timing` of an answer."""
        return {
            "queue_seconds": self.queue_seconds,
            "ttft_seconds": self.ttft_seconds,
            "total_seconds": self.total_seconds,
        }


def answer_of(name: str, model: str, results: list[Result], timing: Timing, *, many: bool) -> Json:
    """The body of a complete answer: of one document, or a list of results where asked for."""
    head = {"id": name, "model": model}
    outcomes = [r.outcome for r in results if not isinstance(r.outcome, FairgateError)]
    if not many:
        return {**head, **outcomes[0].as_json(), "timing": timing.as_json()}
    return {
        **head,
        "results": [result.as_json(index) for index, result in enumerate(results)],
        "usage": sum((outcome.cost for outcome in outcomes), Cost()).as_json(),
        "timing": timing.as_json(),
    }
