"""What happens in this room, as frozen values for metrics and logs.

There is no event per token: `Served` sums what each tenant got since the last engine step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.admission.ticket import Outcome, WorkClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Turned away before it waited; `code` is the error's."""

    tenant: str
    work_class: WorkClass
    code: str
    retry_after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Has to wait, `position` in its tenant's queue of its class; 1 is next."""

    tenant: str
    work_class: WorkClass
    request_id: str
    position: int
    eta_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """May go to the engine now; `predicted_seconds` is the wait that was expected, if it had to."""

    tenant: str
    work_class: WorkClass
    request_id: str
    sequences: int
    prompt_tokens: int
    queue_seconds: float
    predicted_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The engine made the first token, `seconds` after arrival."""

    tenant: str
    work_class: WorkClass
    request_id: str
    seconds: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a tenant got since the last event of this kind; the three kinds are disjoint."""

    tenant: str
    work_class: WorkClass
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The outcome of a ticket that waited or ran; never granted, its `queue_seconds` end here.

    `seconds_per_token` is (last - first token) / (tokens of a sequence - 1), None below two tokens.
    """

    tenant: str
    work_class: WorkClass
    request_id: str
    outcome: Outcome
    code: str | None
    granted: bool
    queue_seconds: float
    output_tokens: int
    seconds_per_token: float | None = None


Event = Refused | Waiting | Granted | FirstToken | Served | Ended


class Observer(Protocol):
    """Listens, synchronously and quickly."""

    def on_event(self, event: Event, /) -> None:
        """Called in the order of what happened; must not raise."""


class Silence:
    """Nobody listens."""

    def on_event(self, event: Event, /) -> None:
        """Nothing."""
