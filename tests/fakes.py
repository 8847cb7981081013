"""A clock that stands still until it is told to move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush


class FakeTimer:
    """A call that is still to come."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not make the call."""
        self.callback = None


class FakeClock:
    """Time moves by `advance()` alone, and makes the calls that are due on its way, in order."""

    def __init__(self, now_seconds: float = 1000.0) -> None:
        self._now = now_seconds
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._count = 0

    def now(self) -> float:
        return self._now

    def call_at(self, when_seconds: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        self._count += 1
        heappush(self._timers, (when_seconds, self._count, timer))
        return timer

    def move(self, seconds: float) -> None:
        """Advance without an event loop."""
        if seconds < 0:
            raise ValueError("time does not go backwards")
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heappop(self._timers)
            self._now = max(self._now, when)
            if timer.callback is not None:
                timer.callback()
        self._now = end

    async def advance(self, seconds: float) -> None:
        """Advance, then let the event loop settle."""
        self.move(seconds)
        await settle()


async def settle(rounds: int = 20) -> None:
    """Let everything that is ready on the event loop run."""
    for _ in range(rounds):
        await asyncio.sleep(0)
