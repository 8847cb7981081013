"""The order in which one request's engine calls may go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Lets one call through alone; once it has its turn the others follow, `places` at a time.

    By the wait of its first call a request is accepted or refused as a whole.
    """

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._open = asyncio.Event()
        self._taken = False

    @property
    def is_open(self) -> bool:
        """Whether the request can only be delayed from now on."""
        return self._open.is_set()

    def open(self) -> None:
        """The first call has its turn, or none is needed."""
        self._open.set()

    async def opened(self) -> None:
        """Wait for that."""
        await self._open.wait()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for one engine call, and the right to make it."""
        async with self._places:
            if self._taken:
                await self._open.wait()
            self._taken = True
            yield
