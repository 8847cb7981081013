"""The arithmetic of a limit per minute, as a sliding window over two counted minutes.

What was used in the minute before fades evenly while this one goes by. Unlike a counter per minute
that allows no double burst around the full minute, and unlike a list of every use it costs two
numbers however large the limit is. What is known to be wrong about it: the minute before is taken
as evenly spread.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_SECONDS = 60

ROUNDING = 1e-6
"""Keeps what fits exactly from being refused for the last bit of a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """What is used of `limit`: `used` in this minute, of which `elapsed_seconds` are over, and
    `before` in the one before.
    """

    limit: int
    used: int
    before: int
    elapsed_seconds: float

    @property
    def taken(self) -> float:
        """What counts as used now; above `limit` where more was used than was estimated."""
        return self.used + self.before * (1 - self.elapsed_seconds / MINUTE_SECONDS)

    @property
    def within(self) -> bool:
        """Whether no more than the limit is used."""
        return self.taken <= self.limit + ROUNDING

    @property
    def remaining(self) -> int:
        """What may still be used now, from 0 to the limit."""
        return min(self.limit, max(0, int(self.limit - self.taken + ROUNDING)))

    def wait_seconds(self, amount: int) -> float:
        """How long until `amount`, at most the limit, fits if nothing else is used."""
        free = self.limit - amount
        if self.taken <= free + ROUNDING:
            return 0.0
        left_seconds = MINUTE_SECONDS - self.elapsed_seconds
        if self.used <= free:  # in this minute, as soon as enough of the one before has faded
            return left_seconds - MINUTE_SECONDS * (free - self.used) / self.before
        return left_seconds + MINUTE_SECONDS * (1 - free / self.used)

    @property
    def reset_seconds(self) -> float:
        """How long until nothing counts as used if nothing else is used."""
        left_seconds = MINUTE_SECONDS - self.elapsed_seconds
        if self.used > 0:
            return left_seconds + MINUTE_SECONDS
        return left_seconds if self.before > 0 else 0.0
