"""Whether a store that may be away answers, without making everyone wait to find out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Answer = TypeVar("Answer")

TIMEOUT_SECONDS = 0.1
"""A store in the same network answers in a millisecond."""

RETRY_SECONDS = 1.0
FAILURES = 3
"""In a row until the store is away: one may be a moment in which this process was slow itself."""

AT_ONCE = 8
"""Questions at the same time: each holds a connection, and with many it is this process that makes
them late. The rest wait their turn, which does not count as lateness."""


class Away(Exception):
    """The store does not answer."""


class Reach:
    """Asks a store; while it is away, one question each `RETRY_SECONDS` finds out if it is back.

    `on_away(True)` and `on_away(False)` are called when that changes. `errors` are what asking
    raises where the store cannot be asked; the text of the last is `away` while it is away.
    """

    def __init__(
        self,
        errors: tuple[type[Exception], ...],
        on_away: Callable[[bool], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._errors = errors
        self._on_away = on_away
        self._clock = clock
        self._places = asyncio.Semaphore(AT_ONCE)
        self._failures = 0
        self._retry_at_seconds = 0.0
        self.away: str | None = None

    async def ask(self, question: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of `question()`.

        Raises:
            Away: there is none; at once where that was to be expected.
        """
        self._check()
        async with self._places:
            self._check()
            if self.away is not None:  # this one finds out; the others do not wait for it
                self._retry_at_seconds = self._clock() + RETRY_SECONDS
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    answer = await question()
            except self._errors as error:
                self._failed(str(error) or f"no answer within {TIMEOUT_SECONDS} s")
                raise Away from error
        self._answered()
        return answer

    def _check(self) -> None:
        if self.away is not None and self._clock() < self._retry_at_seconds:
            raise Away

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self._retry_at_seconds = self._clock() + RETRY_SECONDS
        if self._failures >= FAILURES:
            self._set(reason)

    def _answered(self) -> None:
        self._failures = 0
        self._set(None)

    def _set(self, away: str | None) -> None:
        was, self.away = self.away, away
        if (was is None) != (away is None):
            self._on_away(away is not None)
