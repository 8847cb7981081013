"""Until when each ticket may wait, the earliest first."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf

from app.admission.ticket import State, Ticket

# Rebuilding for gone tickets costs as much as they are; below this it is not worth it.
FEW = 64


class Deadlines:
    """A heap of waiting tickets; the gone ones are dropped when they surface, or are too many."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ticket]] = []
        self._serial = 0
        self._gone = 0

    def add(self, ticket: Ticket) -> None:
        """Watch it until it leaves the queue."""
        if ticket.deadline_seconds < inf:
            self._serial += 1
            heappush(self._heap, (ticket.deadline_seconds, self._serial, ticket))

    def left(self, ticket: Ticket) -> None:
        """It does not wait any more."""
        if ticket.deadline_seconds == inf:
            return
        self._gone += 1
        if self._gone > FEW and self._gone > len(self._heap) // 2:
            self._heap = [item for item in self._heap if item[2].state is State.WAITING]
            heapify(self._heap)
            self._gone = 0

    def due(self, now: float) -> Iterator[Ticket]:
        """Tickets whose time is up; the caller takes each out of the queue."""
        while (when := self.next_seconds()) is not None and when <= now:
            yield self._heap[0][2]

    def next_seconds(self) -> float | None:
        """The earliest deadline of a ticket that still waits."""
        while self._heap and self._heap[0][2].state is not State.WAITING:
            heappop(self._heap)
            self._gone -= 1
        return self._heap[0][0] if self._heap else None
