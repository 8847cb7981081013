"""Places of turns that ended before the engine was done: it runs them until it hears of it.

An abort takes effect at the engine's next step, and the output of the step in between is already
on its way: the place is free with the second output after the abort, or after a quarter of a
second in which no output came at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from app.admission.ticket import Ticket

STEPS = 2
SECONDS = 0.25


class Holds:
    """In the order of their ends."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, Ticket]] = deque()
        self._steps = 0
        self._quiet_since_seconds = 0.0

    @property
    def next_seconds(self) -> float | None:
        """When places come free even without a step."""
        return self._quiet_since_seconds + SECONDS if self._held else None

    def add(self, ticket: Ticket, now: float) -> None:
        """The ticket's turn ended just now."""
        if not self._held:
            self._quiet_since_seconds = now
        self._held.append((self._steps + STEPS, ticket))

    def stepped(self, now: float) -> None:
        """The engine has delivered an output."""
        self._steps += 1
        self._quiet_since_seconds = now

    def due(self, now: float) -> Iterator[Ticket]:
        """Tickets whose place is free now."""
        quiet = now >= self._quiet_since_seconds + SECONDS
        while self._held and (quiet or self._held[0][0] <= self._steps):
            yield self._held.popleft()[1]

    def all(self) -> Iterator[Ticket]:
        """Every ticket: the engine is gone."""
        while self._held:
            yield self._held.popleft()[1]
