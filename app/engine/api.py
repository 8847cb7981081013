"""What the rest of the house may ask of an engine: render, count, generate.

`generate()` yields `Queued` any number of times (only while it waits), `Started` once, `Piece` any
number of times and `End` exactly once, or raises one `FairgateError`. Closing the generator aborts
the work in the engine. There are two implementations: `engine/text.py` on vLLM, and the scripted
one of the tests.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

from app.errors import (
    EngineDead,
    FairgateError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Refused,
    TooLarge,
    WaitTooLong,
)

WorkClass = Literal["interactive", "batch"]
Api = Literal["chat", "summarize", "ask", "v1"]
FinishReason = Literal["stop", "length"]
Outcome = Literal["finished", "failed", "aborted", "expired", "rejected"]


@dataclass(slots=True, kw_only=True)
class Work:
    """Whose request this is and how it counts; one object per HTTP request or chat turn.

    Everything here comes from the caller's key or from the gateway, never from the body. Times are
    `time.monotonic()` seconds. A `part` belongs to a whole that was accepted before: it is delayed,
    never refused; `counted` says that its request counts already. What follows `on_end` is written
    by the engine's seam as it happens, for whoever answers. The route that made it calls `end()`
    once the client has its last byte, or will never have it.
    """

    tenant: str
    api: Api
    request_id: str
    arrived_seconds: float
    work_class: WorkClass = "interactive"
    max_wait_seconds: float | None = None
    deadline_seconds: float | None = None
    output_tokens_limit: int | None = None
    models: frozenset[str] | None = None
    streamed: bool = False
    part: bool = False
    counted: bool = False
    on_queued: QueueListener | None = None
    on_end: Callable[[Work, Outcome, str | None], None] | None = None
    error: FairgateError | None = None
    queue_seconds: float | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    cached_tokens: int = 0
    completion_tokens: int = 0
    waited: bool = False
    outcome: Outcome | None = None

    def told_position(self, position: int, eta_seconds: float) -> None:
        """Where the request stands in its queue now; called by the seam."""
        self.waited = True
        if self.on_queued is not None:
            self.on_queued(position, eta_seconds)

    def end(self, outcome: Outcome, code: str | None = None) -> None:
        """Record how the request ended; the first call counts, later ones do nothing.

        `code` is the error's code where there was one.
        """
        if self.outcome is None:
            self.outcome = outcome
            if self.on_end is not None:
                self.on_end(self, outcome, code)

    def end_with(self, error: BaseException) -> None:
        """Record the end that `error` means; anything but a `FairgateError` left or was cancelled.

        Waited in vain is `expired`, refused or invalid is `rejected`, the rest `failed`.
        """
        match error:
            case WaitTooLong() if self.waited:
                self.end("expired", error.code)
            case EngineDead() if self.queue_seconds is not None:
                self.end("failed", error.code)
            case Refused() | InvalidRequest() | NotFound() | Forbidden() | TooLarge():
                self.end("rejected", error.code)
            case FairgateError():
                self.end("failed", error.code)
            case Exception():
                self.end("failed", "internal")
            case _:
                self.end("aborted")


class QueueListener(Protocol):
    """Told synchronously, at most a few times a second, where a waiting request stands."""

    def __call__(self, position: int, eta_seconds: float, /) -> None:
        """`position` 1 is next of its tenant and class."""


# Set before a route of vLLM runs; read where every request of every API reaches the engine.
current_work: ContextVar[Work] = ContextVar("current_work")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation, as chat templates know it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A rendered prompt: its token ids, and what only the implementation reads."""

    token_ids: Sequence[int]
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to sample; None means the model's own default.

    `max_tokens` larger than what the context leaves is clamped to it.
    """

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Still waiting: 1 is next of its tenant and class; `eta_seconds` is the predicted rest."""

    position: int
    eta_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Handed to the engine after `queue_seconds` of waiting since arrival."""

    queue_seconds: float


@dataclass(frozen=True, slots=True)
class Piece:
    """More text; never empty, never half a character. A slow reader gets fewer, longer pieces."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one answer; `cached_tokens` of the prompt came from the prefix cache."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds since arrival, but `queue_seconds`, which ends at the hand-over to the engine."""

    queue_seconds: float
    ttft_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The answer is complete."""

    finish_reason: FinishReason
    usage: Usage
    timing: Timing


Event = Queued | Started | Piece | End


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a caller may need to know about the served model."""

    name: str
    context_tokens: int
    adapters: tuple[str, ...] = field(default=())

    def open_to(self, models: frozenset[str] | None, name: str) -> bool:
        """Whether a tenant with `models` may use `name`; None is all, `base` the base model."""
        return models is None or name in models or (name == self.name and "base" in models)


class TextEngine(Protocol):
    """An engine that turns conversations into streams of text."""

    @property
    def model(self) -> ModelInfo:
        """The base model and its adapters."""

    async def render(self, messages: Sequence[Message], *, model: str | None = None) -> Prompt:
        """Apply the chat template (or join the contents where the model has none) and tokenise.

        Text is data: control-token markers inside `content` do not become control tokens.

        Raises:
            NotFound: no such model.
            InvalidRequest: the template refuses the conversation.
        """

    async def count(self, text: str) -> int:
        """Tokens of `text` alone, without template or special tokens; off the event loop."""

    def generate(self, prompt: Prompt, options: Options, work: Work) -> AsyncGenerator[Event, None]:
        """Queue, run and stream one answer; see the module for the order of events.

        Raises:
            ContextLengthExceeded: the prompt leaves no room for an answer; before any queueing.
            FairgateError: any other of its kinds, at any moment.
        """
