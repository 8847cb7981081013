"""How full the KV cache will get with what runs, if answers end where they are expected to.

Sort the sequences by when they end, the last first. When those that end together do, these and all
before them are still there, each with what it has by then, and that is a peak. Every running
sequence makes one token a step, so "has by then" is what it has now plus the steps until then. With
`base = used - clock` and `end = clock + remaining`, the peak at an end is `n * end + b`, where n
and b are the number and the sum of the bases of the sequences that end no sooner. The clock cancels
out: nothing needs to move as steps go by.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import add, mul

from app.admission.ticket import Ticket

# Ends are rounded up to this many steps, so that there are few: a few dozen rows instead of one per
# sequence, for less than one block of a sequence's cache too much.
GRAIN_STEPS = 16


@dataclass(slots=True, eq=False)
class Reservation:
    """A ticket's part of the table: when it ends, its base, and what it holds in the end."""

    ticket: Ticket
    end: int
    base: int
    final: int


class KvPeak:
    """The sequences in the engine, and the most tokens that they will hold together.

    `lengths(ticket, beyond)` is how many tokens one of its sequences is expected to make in all.
    Half a block of `block_tokens` is lost per sequence on average.
    """

    def __init__(
        self,
        block_tokens: int,
        lengths: Callable[[Ticket, int], int],
        *,
        grain_steps: int = GRAIN_STEPS,
    ) -> None:
        self._slack = block_tokens // 2
        self._lengths = lengths
        self._grain = grain_steps
        self._clock = 0
        # Columns of one table with a row for each end, the last first; ends are kept negative,
        # which sorts them.
        self._ends: list[int] = []
        self._counts: list[int] = []
        self._bases: list[int] = []
        self._at_end: dict[int, dict[Reservation, None]] = {}
        self._sequences = 0
        self._ceiling = 0

    def __len__(self) -> int:
        return self._sequences

    @property
    def ceiling(self) -> int:
        """No peak is above it: everything at its end at the same time."""
        return self._ceiling

    def peak(self) -> int:
        """Tokens at the fullest moment to come."""
        self._correct_overdue()
        return self._peak()

    def stepped(self) -> None:
        """The engine has made a step."""
        self._clock += 1

    def fits(self, ticket: Ticket, limit_tokens: int) -> bool:
        """Whether the peak stays within the limit with this one too."""
        candidate = self._forecast(ticket)
        if self._ceiling + candidate.final <= limit_tokens:
            return True
        self._correct_overdue()
        self._count(candidate, 1)
        peak = self._peak()
        self._count(candidate, -1)
        return peak <= limit_tokens

    def reserve(self, ticket: Ticket) -> Reservation:
        """Count the ticket's sequences from now on; they share its prompt."""
        reservation = self._forecast(ticket)
        self._add(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Its sequences are gone."""
        if reservation in self._at_end.get(reservation.end, ()):
            self._remove(reservation)

    def _forecast(self, ticket: Ticket) -> Reservation:
        sequences = ticket.sequences
        if made := ticket.output_tokens // sequences:
            output = max(made + 1, self._lengths(ticket, made))
        elif not (output := ticket.expected_tokens):
            # Once it is next it is asked about again and again: its first answer stands.
            output = ticket.expected_tokens = max(1, self._lengths(ticket, 0))
        # Rounded up: -(-a // b) is the next multiple.
        end = -(-(self._clock + output - made) // self._grain) * self._grain
        left = end - self._clock
        base = ticket.prompt_tokens + sequences * (made + self._slack - self._clock)
        final = ticket.prompt_tokens + sequences * (made + left + self._slack)
        return Reservation(ticket, end, base, final)

    def _peak(self) -> int:
        # n * -end - b, of which the lowest is the peak: the ends are negative.
        tokens = map(mul, accumulate(self._counts), self._ends)
        return -min(map(add, tokens, accumulate(self._bases)), default=0)

    def _count(self, reservation: Reservation, sign: int) -> None:
        """Add its sequences to their row, or take them out."""
        at = bisect_left(self._ends, -reservation.end)
        if at == len(self._ends) or self._ends[at] != -reservation.end:
            self._ends.insert(at, -reservation.end)
            self._counts.insert(at, 0)
            self._bases.insert(at, 0)
        self._counts[at] += sign * reservation.ticket.sequences
        self._bases[at] -= sign * reservation.base
        if not self._counts[at]:
            del self._ends[at], self._counts[at], self._bases[at]

    def _add(self, reservation: Reservation) -> None:
        self._at_end.setdefault(reservation.end, {})[reservation] = None
        self._count(reservation, 1)
        self._sequences += reservation.ticket.sequences
        self._ceiling += reservation.final

    def _remove(self, reservation: Reservation) -> None:
        together = self._at_end[reservation.end]
        del together[reservation]
        if not together:
            del self._at_end[reservation.end]
        self._count(reservation, -1)
        self._sequences -= reservation.ticket.sequences
        self._ceiling -= reservation.final

    def _correct_overdue(self) -> None:
        """Who should have ended by now is expected to go on, by what it has made."""
        while self._ends and -self._ends[-1] <= self._clock:
            for overdue in list(self._at_end[-self._ends[-1]]):
                self._remove(overdue)
                later = self._forecast(overdue.ticket)
                overdue.end, overdue.base, overdue.final = later.end, later.base, later.final
                self._add(overdue)
