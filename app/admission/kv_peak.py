"""How full the KV cache will get with what runs, if answers end where they are expected to.

The sequences are sorted by when they end, the last first. When the k-th of them ends, the k that
end no sooner are still there, each with all it has by then, and that is a peak. Every running
sequence makes one token a step, so "has by then" is what it has now plus the steps until then:
with `base = used - clock` and `end = clock + remaining`, the peak at the k-th is
`k * end_k + base_1 + ... + base_k`. The clock cancels out: nothing needs to move as steps go by,
and one more sequence adds its base and one `end_k` to every peak after its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, count, repeat
from operator import add, mul

from app.admission.ticket import Ticket


@dataclass(slots=True, eq=False)
class Reservation:
    """A ticket's rows in the table; `end` is the step at which it is expected to be done.

    `base` is the sum over its sequences, `final` what it is expected to hold in the end.
    """

    ticket: Ticket
    serial: int
    end: int
    base: int
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
        # Columns of one table, sorted by end, the last first; a ticket of n sequences has n rows,
        # and its base in the first of them. The peaks are kept only while they are asked for.
        self._keys: list[tuple[int, int]] = []
        self._ends: list[int] = []
        self._bases: list[int] = []
        self._peaks: list[int] | None = None
        self._by_serial: dict[int, Reservation] = {}
        self._ceiling = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def ceiling(self) -> int:
        """No peak is above it: everything at its end at the same time."""
        return self._ceiling

    def peak(self) -> int:
        """Tokens at the fullest moment to come."""
        return max(self._current_peaks(), default=0)

    def stepped(self) -> None:
        """The engine has made a step."""
        self._clock += 1

    def fits(self, ticket: Ticket, limit_tokens: int) -> bool:
        """Whether the peak stays within the limit with this one too."""
        candidate = self._forecast(ticket, 0)
        if self._ceiling + candidate.final <= limit_tokens:
            self._peaks = None
            return True
        peaks = self._current_peaks()
        at = bisect_left(self._keys, (-candidate.end, 0))
        if self._last_peak(peaks, at, candidate) > limit_tokens:
            return False
        return max(peaks[:at], default=0) <= limit_tokens and (
            at == len(peaks) or self._rest_fits(peaks, at, candidate, limit_tokens)
        )

    def reserve(self, ticket: Ticket) -> Reservation:
        """Count the ticket's sequences from now on; they share its prompt."""
        self._serial += 1
        reservation = self._forecast(ticket, self._serial)
        self._insert(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Its sequences are gone."""
        # It may have been corrected since: the table knows its latest end.
        current = self._by_serial.get(reservation.serial)
        if current is not None:
            self._remove(current)

    def _forecast(self, ticket: Ticket, serial: int) -> Reservation:
        sequences = ticket.sequences
        if made := ticket.output_tokens // sequences:
            output = max(made + 1, self._lengths(ticket, made))
        elif not (output := ticket.expected_tokens):
            # Once it is next it is asked about again and again: its first answer stands.
            output = ticket.expected_tokens = max(1, self._lengths(ticket, 0))
        base = ticket.prompt_tokens + sequences * (made + self._slack - self._clock)
        final = ticket.prompt_tokens + sequences * (output + self._slack)
        return Reservation(ticket, serial, self._clock + output - made, base, final)

    def _current_peaks(self) -> list[int]:
        """Every peak, after who should have ended is expected to go on, by what it has made."""
        while self._ends and self._ends[-1] <= self._clock:
            overdue = self._by_serial[self._keys[-1][1]]
            self._remove(overdue)
            self._insert(self._forecast(overdue.ticket, overdue.serial))
        if self._peaks is None:
            self._peaks = list(map(add, map(mul, count(1), self._ends), accumulate(self._bases)))
        return self._peaks

    def _rest_fits(
        self, peaks: list[int], at: int, candidate: Reservation, limit_tokens: int
    ) -> bool:
        """Whether the rows after a candidate's stay within the limit with it before them.

        They rise by its base and an end of their own. The ends are sorted, which mostly decides it.
        """
        sequences, ends = candidate.ticket.sequences, self._ends
        highest = max(peaks[at:]) + candidate.base
        if highest + sequences * ends[at] <= limit_tokens:
            return True
        if highest + sequences * ends[-1] > limit_tokens:
            return False
        return max(self._raised(peaks, at, sequences, candidate.base)) <= limit_tokens

    def _last_peak(self, peaks: list[int], at: int, reservation: Reservation) -> int:
        """The peak at the last of a reservation's rows, if they begin at this one."""
        before = peaks[at - 1] - at * self._ends[at - 1] if at else 0
        return (at + reservation.ticket.sequences) * reservation.end + before + reservation.base

    def _raised(self, peaks: list[int], at: int, sequences: int, base: int) -> list[int]:
        """The peaks from a row on, with so many more sequences before them."""
        ends: map[int] | list[int] = self._ends[at:]
        if sequences != 1:
            ends = map(mul, ends, repeat(sequences))
        return [peak + base for peak in map(add, peaks[at:], ends)]

    def _insert(self, reservation: Reservation) -> None:
        sequences, end, base = reservation.ticket.sequences, reservation.end, reservation.base
        key = (-end, reservation.serial)
        at = bisect_left(self._keys, key)
        if (peaks := self._peaks) is not None:
            # Of rows of equal end the last is the peak; the others may show the same.
            last = self._last_peak(peaks, at, reservation)
            peaks[at:] = [last] * sequences + self._raised(peaks, at, sequences, base)
        for row_base in (*(0,) * (sequences - 1), base):
            self._keys.insert(at, key)
            self._ends.insert(at, end)
            self._bases.insert(at, row_base)
        self._by_serial[reservation.serial] = reservation
        self._ceiling += reservation.final

    def _remove(self, reservation: Reservation) -> None:
        sequences = reservation.ticket.sequences
        at = bisect_left(self._keys, (-reservation.end, reservation.serial))
        rows = slice(at, at + sequences)
        del self._keys[rows], self._ends[rows], self._bases[rows]
        if (peaks := self._peaks) is not None:
            del peaks[rows]
            peaks[at:] = self._raised(peaks, at, -sequences, -reservation.base)
        del self._by_serial[reservation.serial]
        self._ceiling -= reservation.final
