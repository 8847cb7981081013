"""Telling those who wait where they stand: at once, then on change, and not too often.

The first of each queue are told at most twice a second, the rest every few seconds, a slice of
them at a time, so that a hundred thousand who wait cost a small part of one core.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from app.admission.account import Account
from app.admission.ticket import Ticket

FRONT = 50
FRONT_SECONDS = 0.5
REST_TICKS = 10
# The most tickets of the rest that one tick looks at: a few milliseconds.
SLICE = 10_000


class Positions:
    """`eta(account, position)` is the predicted rest of the wait at a position."""

    def __init__(self, eta: Callable[[Account, int], float]) -> None:
        self._eta = eta
        self._listeners = 0
        self._moved: dict[Account, None] = {}
        self._deep: dict[Account, int] = {}
        self._next_seconds: float | None = None

    @property
    def next_seconds(self) -> float | None:
        """When to call `tick()` next."""
        return self._next_seconds if self._listeners else None

    def joined(self, account: Account, ticket: Ticket, now: float) -> int:
        """A ticket has to wait: tell it, and return its position."""
        position = account.waiting
        if ticket.on_queued is not None:
            self._listeners += 1
            account.listeners += 1
            self._tell(account, ticket, position)
            if self._next_seconds is None or self._listeners == 1:
                self._next_seconds = now + FRONT_SECONDS
            if position > FRONT:
                self._deep.setdefault(account, FRONT)
        return position

    def left(self, account: Account, ticket: Ticket) -> None:
        """It does not wait any more; those behind it have moved."""
        if ticket.told_position:
            ticket.told_position = 0
            self._listeners -= 1
            account.listeners -= 1
        if account.listeners:
            self._moved[account] = None

    def tick(self, now: float) -> None:
        """Tell whoever has moved and is due."""
        if self._next_seconds is None or now < self._next_seconds:
            return
        self._next_seconds = now + FRONT_SECONDS
        moved, self._moved = self._moved, {}
        for account in moved:
            account.compact()
            self._tell_slice(account, 0, FRONT)
        self._tell_rest()

    def _tell_rest(self) -> None:
        total = sum(account.waiting for account in self._deep)
        budget = min(SLICE, total // REST_TICKS + 1)
        for account in list(self._deep):
            if budget <= 0:
                return
            start = self._deep.pop(account)
            if account.waiting <= FRONT or not account.listeners:
                continue
            account.compact()
            # The next tick goes on where this one stopped, behind the other deep accounts.
            end = min(account.waiting, start + budget)
            self._deep[account] = end if end < account.waiting else FRONT
            self._tell_slice(account, start, end)
            budget -= end - start

    def _tell_slice(self, account: Account, start: int, end: int) -> None:
        for position, ticket in enumerate(islice(account.queue, start, end), start + 1):
            if ticket.on_queued is not None and ticket.told_position != position:
                self._tell(account, ticket, position)

    def _tell(self, account: Account, ticket: Ticket, position: int) -> None:
        ticket.told_position = position
        if ticket.on_queued is not None:
            ticket.on_queued(position, self._eta(account, position))
