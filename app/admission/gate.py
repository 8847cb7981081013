"""Who is let in to wait: refusals, decided before any work is spent."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from app.admission.account import Member
from app.admission.forecast import Forecast
from app.admission.ledger import Ledger
from app.admission.lengths import Lengths
from app.admission.policy import BatchPolicy
from app.admission.rules import Rules
from app.admission.ticket import State, Ticket, WorkClass
from app.admission.window import Window
from app.errors import (
    Draining,
    FairgateError,
    InvalidRequest,
    Overloaded,
    QueueFull,
    Refused,
    WaitTooLong,
)

# How long a drain usually takes until another process answers in this one's place.
DRAIN_RETRY_SECONDS = 5.0
# What a request is taken to cost before its prompt is rendered: a short question and its answer.
UNKNOWN_COST = 512.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Someone at the gate: a ticket, or a request whose prompt is not rendered yet."""

    tenant: str
    work_class: WorkClass
    sequences: int
    cost: float
    arrived_seconds: float
    deadline_seconds: float
    part: bool = False

    @classmethod
    def of(cls, ticket: Ticket) -> Visitor:
        """A ticket whose cost and deadline are known."""
        return cls(
            tenant=ticket.tenant,
            work_class=ticket.work_class,
            sequences=ticket.sequences,
            cost=ticket.cost,
            arrived_seconds=ticket.arrived_seconds,
            deadline_seconds=ticket.deadline_seconds,
            part=ticket.part,
        )


class Gate:
    """Says why a request may not even wait; the caller owns the parts that it looks at."""

    def __init__(
        self,
        rules: Rules,
        policy: BatchPolicy,
        *,
        ledger: Ledger,
        lengths: Lengths,
        window: Window,
        forecast: Forecast,
    ) -> None:
        self._rules = rules
        self._ledger = ledger
        self._lengths = lengths
        self._window = window
        self._forecast = forecast
        self.policy = policy
        self.draining = False
        self.dead: FairgateError | None = None

    def check(
        self,
        tenant: str,
        work_class: WorkClass,
        *,
        now: float,
        sequences: int,
        arrived_seconds: float,
        max_wait_seconds: float | None,
    ) -> None:
        """Raise what `admit()` would raise now, as far as it is known without the prompt."""
        own = None if max_wait_seconds is None else arrived_seconds + max_wait_seconds
        visitor = Visitor(
            tenant=tenant,
            work_class=work_class,
            sequences=sequences,
            cost=UNKNOWN_COST,
            arrived_seconds=arrived_seconds,
            deadline_seconds=self._deadline(tenant, work_class, arrived_seconds, own),
        )
        if (error := self._refusal(visitor, now)) is not None:
            raise error

    def admit(self, ticket: Ticket, now: float) -> None:
        """Note the ticket's cost, deadline and modelled wait, or end it as rejected and raise."""
        prices = self._rules.prices
        output = self._lengths.mean(ticket) * ticket.sequences
        ticket.cost = prices.prompt * ticket.prompt_tokens + prices.output * output
        ticket.submitted_seconds = now
        own = ticket.wait_deadline_seconds
        if ticket.part:
            ticket.deadline_seconds = inf if own is None else own
        else:
            ticket.deadline_seconds = self._deadline(
                ticket.tenant, ticket.work_class, ticket.arrived_seconds, own
            )
        if (error := self._refusal(Visitor.of(ticket), now)) is not None:
            ticket.state, ticket.outcome, ticket.error = State.ENDED, "rejected", error
            raise error
        ticket.modelled_seconds = self._modelled_wait(ticket.tenant, ticket.work_class)

    def waited_too_long(self, ticket: Ticket, now: float) -> Refused:
        """What a ticket is told whose time is up."""
        allowed = ticket.deadline_seconds - ticket.arrived_seconds
        return self._late(ticket.payer.member, ticket.work_class, ticket.cost, allowed, now)

    def _deadline(
        self, tenant: str, work_class: WorkClass, arrived_seconds: float, own_seconds: float | None
    ) -> float:
        """Until when it may wait: the tenant's limit, else the target or the default; or sooner."""
        waits = self._rules.waits
        allowed = self._ledger.member(tenant).share.wait_seconds
        if allowed is None:
            target = waits.target_for(work_class)
            if target is not None:
                allowed = self._forecast.allowed_wait(target)
            else:
                allowed = waits.default_for(work_class)
        return min(arrived_seconds + allowed, inf if own_seconds is None else own_seconds)

    def _modelled_wait(self, tenant: str, work_class: WorkClass) -> float | None:
        """The forecast's model for one more ticket of this kind; None: unknown."""
        member = self._ledger.member(tenant)
        account = member.accounts.get(work_class)
        if self._open(1):
            return 0.0
        band = self._ledger.band(work_class, member.share.weight)
        return self._forecast.wait_seconds(band, account, member.share.weight or 1.0)

    def _refusal(self, visitor: Visitor, now: float) -> FairgateError | None:
        """Why it may not wait; None where it may."""
        limit = self.policy.limit(self._window.capacity)
        if self.dead is not None:
            return self.dead
        if visitor.sequences > limit:
            return InvalidRequest(f"n is at most {limit} on this server", param="n")
        if self._ledger.waiting >= self._rules.queued_total:
            return Overloaded(
                "too many requests wait on this server", retry_after_seconds=DRAIN_RETRY_SECONDS
            )
        if visitor.part:
            return None
        if self.draining:
            return Draining(
                "this server is about to stop; try again on another one",
                retry_after_seconds=DRAIN_RETRY_SECONDS,
            )
        return self._queue_full(visitor, now) or self._too_long(visitor, now)

    def _queue_full(self, visitor: Visitor, now: float) -> Refused | None:
        member = self._ledger.member(visitor.tenant)
        limit = member.share.queued
        if limit is None or member.queued < limit:
            return None
        if limit == 0 and self._open(visitor.sequences):
            return None
        account = member.accounts.get(visitor.work_class)
        band = self._ledger.band(visitor.work_class, member.share.weight)
        allowed = visitor.deadline_seconds - visitor.arrived_seconds
        return QueueFull(
            f"this tenant already has {member.queued} requests waiting",
            retry_after_seconds=self._forecast.retry_after(
                band, account, visitor.cost, allowed, now
            ),
        )

    def _too_long(self, visitor: Visitor, now: float) -> Refused | None:
        modelled = self._modelled_wait(visitor.tenant, visitor.work_class)
        member = self._ledger.member(visitor.tenant)
        band = self._ledger.band(visitor.work_class, member.share.weight)
        if not self._forecast.refuses(band, modelled, visitor.deadline_seconds - now):
            return None
        allowed = visitor.deadline_seconds - visitor.arrived_seconds
        return self._late(member, visitor.work_class, visitor.cost, allowed, now)

    def _late(
        self, member: Member, work_class: WorkClass, cost: float, allowed: float, now: float
    ) -> Refused:
        band = self._ledger.band(work_class, member.share.weight)
        account = member.accounts.get(work_class)
        seconds = self._forecast.retry_after(band, account, cost, allowed, now)
        if self._forecast.newcomer_refused(band, allowed):
            return Overloaded(
                "this server has more work than it can do", retry_after_seconds=seconds
            )
        return WaitTooLong(
            f"this tenant's requests would wait longer than {allowed:.3g} s",
            retry_after_seconds=seconds,
        )

    def _open(self, sequences: int) -> bool:
        """Nobody waits, and there is room."""
        window = self._window
        limit = self.policy.limit(window.capacity)
        return self._ledger.waiting == 0 and window.sequences + sequences <= limit
