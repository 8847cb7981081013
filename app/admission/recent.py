"""The last values of something, and their quantiles."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right


class Recent:
    """A ring of the last values, kept sorted beside; adding costs a small move of memory."""

    __slots__ = ("_next", "_ring", "_size", "_sorted", "_total")

    def __init__(self, size: int) -> None:
        self._size = size
        self._ring = array("d")
        self._sorted = array("d")
        self._next = 0
        self._total = 0.0

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def mean(self) -> float:
        """Of what is remembered; there must be something."""
        return self._total / len(self._ring)

    def add(self, value: float) -> None:
        """Remember one more, forgetting the oldest."""
        if len(self._ring) < self._size:
            self._ring.append(value)
        else:
            oldest = self._ring[self._next]
            self._sorted.pop(bisect_left(self._sorted, oldest))
            self._total -= oldest
            self._ring[self._next] = value
            self._next = (self._next + 1) % self._size
        self._sorted.insert(bisect_right(self._sorted, value), value)
        self._total += value

    def quantile(self, share: float, *, beyond: float = float("-inf")) -> float | None:
        """Of the values above `beyond`; None where there is none."""
        values = self._sorted
        first = bisect_right(values, beyond)
        left = len(values) - first
        return values[first + min(left - 1, int(share * left))] if left else None
