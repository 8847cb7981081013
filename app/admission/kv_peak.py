"""How full the KV cache will get with what runs, if answers end where they are expected to.

The sequences are sorted by when they end, the last first. When the k-th of them ends, the k that
end no sooner are still there, each with all it has by then, and that is a peak. Every running
sequence makes one token a step, so "has by then" is what it has now plus the steps until then:
with `base = used - clock` and `end = clock + remaining`, the peak at the k-th is
`k * end_k + base_1 + ... + base_k`. The clock cancels out: nothing needs to move as steps go by.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, count
from operator import add, mul

from app.admission.ticket import Ticket


@dataclass(slots=True, eq=False)
class Reservation:
    """A ticket's place in the forecast; `final` is what it is expected to hold at its end."""

    ticket: Ticket
    serial: int
    end: int
    final: int


class KvPeak:
    """The sequences in the engine, and the most tokens that they will hold together.

    `lengths(ticket, beyond)` is how many tokens one of its sequences is expected to make in all.
    Half a block of `block_tokens` is lost per sequence on average.
    """

    def __init__(self, block_tokens: int, lengths: Callable[[Ticket, int], int]) -> None:
        self._slack = block_tokens // 2
        self._lengths = lengths
        self._clock = 0
        self._serial = 0
        # Three columns of one table, sorted by end, the last first.
        self._keys: list[tuple[int, int]] = []
        self._ends: list[int] = []
        self._bases: list[int] = []
        self._by_serial: dict[int, Reservation] = {}
        # The exact answer costs what runs; these bounds on it mostly do instead. `_low_end` is when
        # the lower one is reached.
        self._high = 0
        self._low = 0
        self._low_end = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def ceiling(self) -> int:
        """No peak is above it."""
        return self._high

    def stepped(self) -> None:
        """The engine has made a step."""
        self._clock += 1

    def reserve(self, ticket: Ticket) -> Reservation:
        """Count the ticket's sequences from now on; they share its prompt."""
        self._serial += 1
        return self._insert(Reservation(ticket, self._serial, 0, 0))

    def release(self, reservation: Reservation) -> None:
        """Its sequences are gone."""
        if self._by_serial.pop(reservation.serial, None) is not None:
            self._remove(reservation)

    def peak(self) -> int:
        """Tokens at the fullest moment to come."""
        self._correct_overdue()
        high, end = 0, 0
        if self._keys:
            peaks = list(map(add, map(mul, count(1), self._ends), accumulate(self._bases)))
            high = max(peaks)
            end = self._ends[peaks.index(high)]
        self._high, self._low, self._low_end = high, high, end
        return high

    def fits(self, ticket: Ticket, limit_tokens: int) -> bool:
        """Whether the peak stays within the limit with this one too."""
        output = self._lengths(ticket, 0)
        if self._high + self._final(ticket, output) <= limit_tokens:
            return True
        if self._clock + output >= self._low_end and self._low + ticket.prompt_tokens > limit_tokens:
            return False
        without = self._high, self._low, self._low_end
        reservation = self.reserve(ticket)
        peak = self.peak()
        self.release(reservation)
        if peak > limit_tokens:
            self._high, self._low, self._low_end = without
        return peak <= limit_tokens

    def _final(self, ticket: Ticket, output: int) -> int:
        return ticket.prompt_tokens + ticket.sequences * (output + self._slack)

    def _insert(self, reservation: Reservation) -> Reservation:
        ticket = reservation.ticket
        made = ticket.output_tokens // ticket.sequences
        output = max(made + 1, self._lengths(ticket, made))
        reservation.end = self._clock + output - made
        reservation.final = self._final(ticket, output)
        self._by_serial[reservation.serial] = reservation
        self._high += reservation.final
        key = (-reservation.end, reservation.serial)
        at = bisect_left(self._keys, key)
        base = made + self._slack - self._clock
        for i in range(ticket.sequences):
            self._keys.insert(at, key)
            self._ends.insert(at, reservation.end)
            # The first row in the table of equal ends carries the prompt that all of them share.
            shared = ticket.prompt_tokens if i == ticket.sequences - 1 else 0
            self._bases.insert(at, base + shared)
        return reservation

    def _remove(self, reservation: Reservation) -> None:
        at = bisect_left(self._keys, (-reservation.end, reservation.serial))
        rows = slice(at, at + reservation.ticket.sequences)
        del self._keys[rows], self._ends[rows], self._bases[rows]
        # The peak can only have fallen, but not by more than all that it held.
        self._low = max(0, self._low - reservation.final)
        self._high = self._high if self._keys else 0

    def _correct_overdue(self) -> None:
        """Who should have ended by now is expected to go on, by what it has made."""
        while self._ends and self._ends[-1] <= self._clock:
            reservation = self._by_serial.pop(self._keys[-1][1])
            self._remove(reservation)
            self._insert(reservation)
