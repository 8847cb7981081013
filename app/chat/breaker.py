"""Ends a coroutine from outside, for a named reason, without cancelling its task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

Reason = TypeVar("Reason")
Result = TypeVar("Result")


class Breaker(Generic[Reason]):
    """Runs one coroutine that `trip()` can end; the first reason counts.

    The coroutine sees a cancellation, its task does not: it goes on behind `run()` and can still
    say how things ended.
    """

    __slots__ = ("_late", "_scope", "reason")

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._late: Reason | None = None
        self._scope: asyncio.Timeout | None = None

    def trip(self, reason: Reason) -> None:
        """End the coroutine at its next chance, or before it begins."""
        if self.reason is None:
            self.reason = reason
            self._reschedule(0.0)

    def deadline(self, seconds: float | None, reason: Reason | None = None) -> None:
        """Trip by itself for `reason` in `seconds`; None takes an earlier deadline back."""
        if self.reason is None:
            self._late = reason
            self._reschedule(seconds)

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Await `work`; None where it was ended by `reason`."""
        if self.reason is not None:
            work.close()
            return None
        scope = self._scope = asyncio.timeout(None)
        try:
            async with scope:
                return await work
        except TimeoutError:
            if not scope.expired():
                raise
            self._expire()
            return None
        finally:
            self._scope = None

    def _expire(self) -> None:
        if self.reason is None:
            self.reason = self._late

    def _reschedule(self, seconds: float | None) -> None:
        if self._scope is not None and not self._scope.expired():
            now = asyncio.get_running_loop().time()
            self._scope.reschedule(None if seconds is None else now + seconds)
