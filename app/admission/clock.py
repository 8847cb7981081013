"""Time as the dispatcher sees it: monotonic seconds, and a call back at a moment.

Everything else in this room takes `now` as a parameter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Do not make the call; nothing happens where it was already made."""


class Clock(Protocol):
    """Monotonic seconds, of no fixed origin."""

    def now(self) -> float:
        """Seconds that never go backwards."""

    def call_at(self, when_seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back on the event loop's thread, soon if the moment has passed."""


class LoopClock:
    """The machine's monotonic clock and the running event loop's timers."""

    def now(self) -> float:
        """The same seconds as `time.monotonic()`, so that arrival times compare with it."""
        return time.monotonic()

    def call_at(self, when_seconds: float, callback: Callable[[], None]) -> Timer:
        """By delay, not by time: an event loop may count from another origin."""
        delay_seconds = max(0.0, when_seconds - time.monotonic())
        return asyncio.get_running_loop().call_later(delay_seconds, callback)
