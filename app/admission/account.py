"""One tenant's queue and counter in one class, and what its classes share."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from app.admission.tenant_share import TenantShare
from app.admission.ticket import State, Ticket, WorkClass

if TYPE_CHECKING:
    from app.admission.band import Band

# Rebuilding a queue for its gone tickets costs as much as they are; below this it is not worth it.
FEW = 32


class Member:
    """What a tenant's accounts share: its limits, and what counts against them.

    `service` keeps what was charged to accounts that are forgotten.
    """

    __slots__ = ("accounts", "queued", "running", "service", "share")

    def __init__(self, share: TenantShare) -> None:
        self.share = share
        self.accounts: dict[WorkClass, Account] = {}
        self.service: dict[WorkClass, float] = {}
        self.queued = 0
        self.running = 0

    @property
    def may_run(self) -> bool:
        """Below its `running` limit."""
        limit = self.share.running
        return limit is None or self.running < limit


class Account:
    """A tenant's tickets of one class, first in first out, and what it was charged.

    `virtual` is its service over its weight: the counter that decides who is next. `credit`, in
    units of service, is how far it was below its share lately; above 0 it is a light tenant.
    `entry` is its place in the band's heap, 0 for none. `queue` may hold tickets that are gone.
    """

    __slots__ = (
        "backlog",
        "backlogged_seconds",
        "band",
        "credit",
        "entry",
        "in_flight",
        "listeners",
        "marked",
        "member",
        "parked",
        "promised",
        "promised_seconds",
        "queue",
        "service",
        "unreported",
        "virtual",
        "waiting",
        "weight",
        "work_class",
    )

    def __init__(self, member: Member, work_class: WorkClass, band: Band, credit: float) -> None:
        self.member = member
        self.work_class = work_class
        self.band = band
        self.weight = member.share.weight or 1.0
        self.queue: deque[Ticket] = deque()
        self.waiting = 0
        self.backlog = 0.0
        self.in_flight = 0
        self.virtual = band.virtual
        self.credit = credit
        self.entry = 0
        self.parked = False
        self.service = member.service.pop(work_class, 0.0)
        self.backlogged_seconds = 0.0
        self.marked = self.service
        self.listeners = 0
        self.promised = 0.0
        self.promised_seconds = 0.0
        # Prompt computed, prompt cached and completion tokens since the last `Served` event.
        self.unreported = [0, 0, 0]

    @property
    def tenant(self) -> str:
        """The tenant's id."""
        return self.member.share.id

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return self.waiting == 0 and self.in_flight == 0

    def forget(self) -> None:
        """It is idle and remembers nothing that a new one would not start with."""
        self.member.service[self.work_class] = self.service
        del self.member.accounts[self.work_class]

    def head(self) -> Ticket | None:
        """The first ticket that still waits; gone ones before it are dropped."""
        queue = self.queue
        while queue:
            if queue[0].state is State.WAITING:
                return queue[0]
            queue.popleft()
        return None

    def sweep(self) -> None:
        """Drop gone tickets from the middle of the queue once they are the larger part of it."""
        if len(self.queue) > 2 * self.waiting + FEW:
            self.compact()

    def compact(self) -> None:
        """Drop every gone ticket: then a ticket's index is its position."""
        if len(self.queue) > self.waiting:
            self.queue = deque(t for t in self.queue if t.state is State.WAITING)
