"""How much at once: the protocol of a batch policy, and the shipped ones.

A policy is asked about the one ticket that is next. It answers with what stands in its way, and
then nobody passes it: a large request must not starve behind small ones.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from app.admission.ticket import Ticket

if TYPE_CHECKING:
    from app.admission.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the engine was started with.

    `sequences` is its `max_num_seqs`, `kv_tokens` the size of its KV cache (None: unknown),
    `step_tokens` its `max_num_batched_tokens`, `block_tokens` its KV block.
    """

    sequences: int
    kv_tokens: int | None = None
    step_tokens: int = 2048
    block_tokens: int = 16

    def __post_init__(self) -> None:
        for name in ("sequences", "step_tokens", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.kv_tokens is not None and self.kv_tokens < 1:
            raise ValueError("kv_tokens must be at least 1")


# Steps for which places are kept after a light tenant last came: about a minute.
LIGHT_STEPS = 2000


class Hindrance(enum.Enum):
    """What stands in the way of the next ticket."""

    SEQUENCES = "sequences"
    RESERVE = "reserve"
    PACING = "pacing"
    KV = "kv"


class BatchPolicy(Protocol):
    """Decides whether the next ticket may join what the engine holds."""

    @property
    def name(self) -> str:
        """Its name in settings and `/admin/policy`."""

    @property
    def light_first(self) -> bool:
        """Whether it keeps places for light tenants; else none counts as light."""

    def limit(self, capacity: Capacity) -> int:
        """The most sequences in the engine, and so the most that one request may ask for."""

    def hindrance(self, ticket: Ticket, window: Window) -> Hindrance | None:
        """What keeps the ticket from being granted now; it is never asked of an empty window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """At most so many sequences at once, and nothing else; None: as many as the engine runs."""

    active_sequences: int | None = None

    def __post_init__(self) -> None:
        _check_sequences(self.active_sequences)

    @property
    def name(self) -> str:
        """Its name in settings and `/admin/policy`."""
        return "fixed"

    @property
    def light_first(self) -> bool:
        """It keeps no places."""
        return False

    def limit(self, capacity: Capacity) -> int:
        """The smaller of its own and the engine's."""
        own = self.active_sequences
        return capacity.sequences if own is None or own > capacity.sequences else own

    def hindrance(self, ticket: Ticket, window: Window) -> Hindrance | None:
        """The number of sequences."""
        if window.sequences + ticket.sequences > self.limit(window.capacity):
            return Hindrance.SEQUENCES
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fair:
    """As many sequences as the engine runs and as its KV cache is expected to hold.

    `reserve_sequences` are kept free of batch and of tenants at or above their share; None: one in
    64, none below 16 sequences. `prompt_tokens_per_step` may always be handed over in one step.
    Background tenants hold at most a tenth.
    """

    active_sequences: int | None = None
    reserve_sequences: int | None = None
    kv_share: float = 0.95
    prompt_tokens_per_step: int = 0

    def __post_init__(self) -> None:
        _check_sequences(self.active_sequences)
        if self.reserve_sequences is not None and self.reserve_sequences < 0:
            raise ValueError("reserve_sequences must not be negative")
        if not 0 < self.kv_share <= 1:
            raise ValueError("kv_share must be above 0 and at most 1")

    @property
    def name(self) -> str:
        """Its name in settings and `/admin/policy`."""
        return "fair"

    @property
    def light_first(self) -> bool:
        """It keeps places."""
        return True

    def limit(self, capacity: Capacity) -> int:
        """The smaller of its own and the engine's."""
        own = self.active_sequences
        return capacity.sequences if own is None or own > capacity.sequences else own

    def reserve(self, capacity: Capacity) -> int:
        """Sequences that only light tenants use."""
        if self.reserve_sequences is not None:
            return min(self.reserve_sequences, self.limit(capacity) - 1)
        # In the engine one more is free on average: what ended is refilled a step later. One of 64
        # costs 0.9 % of the tokens and does for a light tenant what four did (simulated).
        limit = self.limit(capacity)
        return (limit + 63) // 64 if limit >= 16 else 0

    def light_places(self, window: Window, limit: int) -> int:
        """Places that heavy tenants leave to light ones while there are any: one in 16.

        A light tenant's own requests fill them, so they cost little; without them it waits for an
        ending whenever a flood's answers began together.
        """
        step = window.light_step
        if step is None or window.pace.steps - step > LIGHT_STEPS or limit < 16:
            return 0
        return limit // 16

    def hindrance(self, ticket: Ticket, window: Window) -> Hindrance | None:
        """Sequences, the reserve, pacing, the KV cache, in this order."""
        capacity, sequences = window.capacity, ticket.sequences
        limit = self.limit(capacity)
        if window.sequences + sequences > limit:
            return Hindrance.SEQUENCES
        if ticket.background and window.deferred_sequences + sequences > max(1, limit // 10):
            return Hindrance.RESERVE
        if (reason := self._in_order(ticket, window, limit)) is not None:
            return reason
        if capacity.kv_tokens is not None:
            limit_tokens = int(self.kv_share * capacity.kv_tokens)
            if not window.kv.fits(ticket, limit_tokens):
                return Hindrance.KV
        return None

    def _in_order(self, ticket: Ticket, window: Window, limit: int) -> Hindrance | None:
        """The reserve and pacing, which do not concern light tickets."""
        sequences = ticket.sequences
        if ticket.light:
            # Whoever comes to an empty engine is light at first: that keeps no places yet.
            if window.sequences >= limit // 4:
                window.light_step = window.pace.steps
            return None
        # A request for more than the rest could never go while others come and go.
        most = max(sequences, limit - self.reserve(window.capacity))
        heavy = window.sequences - window.light_sequences
        most_heavy = max(sequences, limit - self.light_places(window, limit))
        if window.sequences + sequences > most or heavy + sequences > most_heavy:
            return Hindrance.RESERVE
        return Hindrance.PACING if self._paced(ticket, window) else None

    def _paced(self, ticket: Ticket, window: Window) -> bool:
        if not window.decoding:
            return False
        on_their_way = window.prefill_tokens + ticket.prompt_tokens
        if on_their_way <= self.prompt_tokens_per_step:
            return False
        # Two steps' worth keeps the engine busy with prompts; more would only queue inside it.
        too_many = window.prefill_tokens > 0 and on_their_way > 2 * window.capacity.step_tokens
        return too_many or not window.pace.open


def _check_sequences(active_sequences: int | None) -> None:
    if active_sequences is not None and active_sequences < 1:
        raise ValueError("active_sequences must be at least 1")
