"""What the engine holds now, and how much more it could: sequences, KV cache, prompts on their way.

A turn's place is taken when it is granted, and given back when the engine is known to have let go.
The budget of step time (`x` per request, law and trim) joins here.
"""

from __future__ import annotations

from app.admission.kv_peak import KvPeak
from app.admission.lengths import Lengths
from app.admission.pacing import Pace
from app.admission.policy import Capacity
from app.admission.ticket import Ticket

# Which quantile of an answer's length the KV forecast counts on: running out costs a recompute.
KV_QUANTILE = 0.85


class Window:
    """Counts of what was granted and not yet given back."""

    __slots__ = (
        "capacity",
        "decoding",
        "deferred_sequences",
        "kv",
        "light_sequences",
        "light_step",
        "pace",
        "prefill_tokens",
        "sequences",
    )

    def __init__(self, capacity: Capacity, lengths: Lengths) -> None:
        self.capacity = capacity
        self.sequences = 0
        self.deferred_sequences = 0
        self.light_sequences = 0
        self.light_step: int | None = None  # when a light ticket last asked
        self.decoding = 0
        self.prefill_tokens = 0
        self.pace = Pace()
        self.kv = KvPeak(
            capacity.block_tokens,
            lambda ticket, beyond: lengths.quantile(ticket, KV_QUANTILE, beyond),
        )

    def grant(self, ticket: Ticket) -> None:
        """The ticket takes its place."""
        self.sequences += ticket.sequences
        self.prefill_tokens += ticket.prompt_tokens
        if ticket.light:
            self.light_sequences += ticket.sequences
        else:
            self.pace.handed()
        if ticket.background:
            self.deferred_sequences += ticket.sequences
        ticket.reservation = self.kv.reserve(ticket)
        ticket.granted_step = self.pace.steps

    def first_token(self, ticket: Ticket) -> None:
        """Its prompt is done."""
        self.prefill_tokens -= ticket.prompt_tokens
        self.decoding += 1

    def ended(self, ticket: Ticket) -> None:
        """Its turn is over; its place may still be held."""
        if ticket.first_token_seconds is None:
            self.prefill_tokens -= ticket.prompt_tokens
        else:
            self.decoding -= 1

    def release(self, ticket: Ticket) -> None:
        """The engine has let go of it."""
        self.sequences -= ticket.sequences
        if ticket.light:
            self.light_sequences -= ticket.sequences
        if ticket.background:
            self.deferred_sequences -= ticket.sequences
        self.pace.ended(self.pace.steps - ticket.granted_step)
        if ticket.reservation is not None:
            self.kv.release(ticket.reservation)
            ticket.reservation = None

    def stepped(self, limit_sequences: int, now: float) -> None:
        """The engine has made a step; it may hold so many sequences."""
        self.kv.stepped()
        self.pace.stepped(limit_sequences, max(0, limit_sequences - self.sequences), now)
