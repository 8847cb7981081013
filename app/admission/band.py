"""Accounts that share by weight: start-time fair queueing with charges while served.

`virtual` is the band's virtual time: the counter of whoever was dispatched last, never falling. An
account that gets work after having none enters with its counter lifted to it, so that silence
banks no service. The account with the lowest counter is next.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from app.admission.account import Account

# Rebuilding a heap for its dead entries costs as much as they are; below this it is not worth it.
FEW = 64


class Band:
    """One heap of accounts, and the band's own counter among the bands.

    `weight` 0: served only while no band of positive weight has eligible work. `light_tokens` is
    the most credit that an account can have.
    """

    __slots__ = (
        "_dead",
        "_divisor",
        "_entries",
        "_heap",
        "_least_credit",
        "_parked",
        "backlogged_service",
        "backlogged_weight",
        "counter",
        "eligible",
        "grants",
        "highest",
        "light_tokens",
        "name",
        "virtual",
        "weight",
    )

    def __init__(self, name: str, weight: float, light_tokens: float) -> None:
        self.name = name
        self.weight = weight
        self.light_tokens = light_tokens
        self.virtual = 0.0
        self.counter = 0.0
        self.eligible = 0
        self.backlogged_weight = 0.0
        self.backlogged_service = 0.0
        self.grants = 0
        self.highest = 0.0
        self._heap: list[tuple[float, int, Account]] = []
        self._parked: list[tuple[float, int, Account]] = []
        self._entries = 0
        self._dead = 0
        self._divisor = weight or 1.0
        self._least_credit = -light_tokens

    def enter(self, account: Account) -> None:
        """It has work and may run: lift it and give it a place."""
        lift = self.virtual - account.virtual
        if lift > 0:
            account.credit = min(self.light_tokens, account.credit + lift * account.weight)
            account.virtual = self.virtual
        self.eligible += 1
        self.backlogged_weight += account.weight
        self._place(account)

    def leave(self, account: Account) -> None:
        """It has no work, or may not run: its place is dead."""
        if account.entry:
            account.entry = 0
            self.eligible -= 1
            # Exactly 0 when empty: sums of floats drift.
            left = self.backlogged_weight - account.weight
            self.backlogged_weight = left if self.eligible else 0.0
            self._dead += 1
            self._rebuild_if_mostly_dead()

    def first(self) -> Account | None:
        """The eligible account with the lowest counter; of equals, who came first."""
        heap = self._heap
        while heap:
            key, entry, account = heap[0]
            if account.entry != entry:
                heappop(heap)
                self._dead -= 1
            elif key < account.virtual:
                # It was charged since: counters rise in place, and are sorted when they surface.
                heapreplace(heap, (account.virtual, entry, account))
            else:
                return account
        return None

    def dispatched(self, account: Account) -> None:
        """It goes now, before it is charged: the band's time moves to its counter."""
        self.grants += 1
        if account.virtual > self.virtual:
            self.virtual = account.virtual
            self._unpark()

    def charge(self, account: Account, service: float) -> None:
        """Count `service`, in tokens at their prices, against the account and the band."""
        account.service += service
        account.virtual += service / account.weight
        credit = account.credit - service
        account.credit = max(self._least_credit, credit)
        self.counter += service / self._divisor
        if account.waiting:
            self.backlogged_service += service

    def refund(self, account: Account, service: float) -> None:
        """Take back `service` that was charged; its old place in the heap has become too late."""
        account.service -= service
        account.virtual -= service / account.weight
        account.credit = min(self.light_tokens, account.credit + service)
        self.counter -= service / self._divisor
        if account.entry:
            self._dead += 1
            self._place(account)
            self._rebuild_if_mostly_dead()

    def park(self, account: Account) -> None:
        """It is idle: forget it once the band's time has passed all that it could remember."""
        self.highest = max(self.highest, account.virtual)
        if not account.parked:
            account.parked = True
            self._entries += 1
            heappush(self._parked, (self._forgettable(account), self._entries, account))

    def rest(self) -> None:
        """Everything is idle: a new busy period starts where the last one ended."""
        if self.highest > self.virtual:
            self.virtual = self.highest
            self._unpark()

    def reweigh(self, account: Account, weight: float) -> None:
        """Later charges count at the new weight; the counter stays."""
        if account.entry:
            self.backlogged_weight += weight - account.weight
        account.weight = weight

    def rebase(self, accounts: Iterable[Account]) -> None:
        """Move the origin to the band's time; `accounts` are all that the band has."""
        offset, self.virtual = self.virtual, 0.0
        self.highest -= offset
        for account in accounts:
            account.virtual -= offset
        self._parked = [(self._forgettable(a), e, a) for _, e, a in self._parked]
        heapify(self._parked)
        self._rebuild()

    def _place(self, account: Account) -> None:
        self._entries += 1
        account.entry = self._entries
        heappush(self._heap, (account.virtual, account.entry, account))

    def _forgettable(self, account: Account) -> float:
        """The band's time from which a new account would be the same: no lead, full credit."""
        return account.virtual + self.light_tokens / account.weight * 2

    def _unpark(self) -> None:
        parked = self._parked
        while parked and parked[0][0] <= self.virtual:
            _, entry, account = heappop(parked)
            if account.band is not self:
                continue
            if account.idle and self._forgettable(account) > self.virtual:
                heappush(parked, (self._forgettable(account), entry, account))
                continue
            account.parked = False
            if account.idle:
                account.forget()

    def _rebuild_if_mostly_dead(self) -> None:
        if self._dead > FEW and self._dead > len(self._heap) // 2:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(a.virtual, e, a) for _, e, a in self._heap if a.entry == e]
        heapify(self._heap)
        self._dead = 0
