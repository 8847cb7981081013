"""The state machine of admission: what happens comes in, who may go comes out. No clock, no await."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from app.admission.events import (
    Ended,
    FirstToken,
    Granted,
    Observer,
    Refused,
    Served,
    Silence,
    Waiting,
)
from app.admission.policy import Capacity, Fixed
from app.admission.tenant_share import TenantShare
from app.admission.ticket import Outcome, State, Ticket, WorkClass
from app.errors import Draining, FairgateError, InvalidRequest, QueueFull, WaitTooLong

# After an abort the engine runs the sequences until its next step; without steps, it is soon idle.
HOLD_STEPS = 2
HOLD_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A moment of admission."""

    queued: int
    running: int
    active_sequences: int
    sequence_limit: int


class Scheduler:
    """First come, first served, up to a fixed number of sequences (the fair one replaces this)."""

    def __init__(
        self,
        capacity: Capacity,
        *,
        policy: Fixed | None = None,
        observer: Observer | None = None,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        self._capacity = capacity
        self._policy = policy or Fixed()
        self._observer = observer or Silence()
        self._jitter = jitter or random.Random(0).random
        self._tenants: dict[str, TenantShare] = {}
        self._queue: deque[Ticket] = deque()
        self._active = 0
        self._running = 0
        self._held: deque[tuple[int, float, Ticket]] = deque()
        self._steps = 0
        self._draining = False
        self._dead: FairgateError | None = None
        self._limit = min(self._policy.active_sequences or 1 << 30, capacity.sequences)

    def set_tenant(self, share: TenantShare) -> None:
        self._tenants[share.id] = share

    def forget_tenant(self, tenant: str) -> None:
        self._tenants.pop(tenant, None)

    def check(
        self,
        tenant: str,
        work_class: WorkClass,
        *,
        now: float,
        sequences: int = 1,
        arrived_seconds: float | None = None,
        max_wait_seconds: float | None = None,
    ) -> None:
        """Raise what `submit()` would raise now, as far as it is known without the prompt."""
        if self._dead is not None:
            raise self._dead
        if self._draining:
            raise Draining("this server is about to stop; try again on another one")
        if sequences > self._limit:
            raise InvalidRequest(f"n is at most {self._limit} on this server", param="n")
        share = self._tenants.get(tenant) or TenantShare(id=tenant)
        waiting = sum(1 for t in self._queue if t.tenant == tenant and t.state is State.WAITING)
        if share.queued is not None and waiting >= share.queued and self._active >= self._limit:
            self._observer.on_event(
                Refused(
                    tenant=tenant, work_class=work_class, code="queue_full", retry_after_seconds=1
                )
            )
            raise QueueFull(f"this tenant already has {waiting} requests waiting")

    def submit(self, ticket: Ticket, now: float) -> None:
        if not ticket.part or self._dead is not None:
            self.check(ticket.tenant, ticket.work_class, now=now, sequences=ticket.sequences)
        ticket.state = State.WAITING
        ticket.submitted_seconds = now
        self._queue.append(ticket)

    def pump(self, now: float) -> list[Ticket]:
        """Grant and expire whatever is due; returns the tickets that left the queue."""
        left: list[Ticket] = []
        while self._queue:
            ticket = self._queue[0]
            if ticket.state is not State.WAITING:
                self._queue.popleft()
            elif ticket.wait_deadline_seconds is not None and ticket.wait_deadline_seconds <= now:
                self._end(self._queue.popleft(), "expired", now, WaitTooLong("waited too long"))
                left.append(ticket)
            elif self._active and self._active + ticket.sequences > self._limit:
                break
            else:
                self._queue.popleft()
                self._active += ticket.sequences
                self._running += 1
                ticket.state = State.GRANTED
                ticket.granted_seconds = now
                left.append(ticket)
                self._observer.on_event(
                    Granted(
                        tenant=ticket.tenant,
                        work_class=ticket.work_class,
                        request_id=ticket.request_id,
                        sequences=ticket.sequences,
                        prompt_tokens=ticket.prompt_tokens,
                        queue_seconds=ticket.queue_seconds,
                    )
                )
        return left

    def announce(self, ticket: Ticket, now: float) -> None:
        """Tell a ticket that has to wait where it stands."""
        position = sum(
            1 for t in self._queue if t.tenant == ticket.tenant and t.state is State.WAITING
        )
        self._observer.on_event(
            Waiting(
                tenant=ticket.tenant,
                work_class=ticket.work_class,
                request_id=ticket.request_id,
                position=position,
                eta_seconds=0.0,
            )
        )
        if ticket.on_queued is not None:
            ticket.on_queued(position, 0.0)

    def first_token(self, ticket: Ticket, cached_tokens: int, now: float) -> None:
        if ticket.state is not State.GRANTED or ticket.first_token_seconds is not None:
            return
        ticket.first_token_seconds = now
        ticket.cached_tokens = cached_tokens
        self._observer.on_event(
            FirstToken(
                tenant=ticket.tenant,
                work_class=ticket.work_class,
                request_id=ticket.request_id,
                seconds=now - ticket.arrived_seconds,
                prompt_tokens=ticket.prompt_tokens,
                cached_tokens=cached_tokens,
            )
        )
        self._observer.on_event(
            Served(
                tenant=ticket.tenant,
                work_class=ticket.work_class,
                prompt_tokens=ticket.prompt_tokens - cached_tokens,
                cached_tokens=cached_tokens,
                completion_tokens=0,
            )
        )

    def tokens(self, ticket: Ticket, count: int, now: float) -> None:
        ticket.output_tokens += count
        self._observer.on_event(
            Served(
                tenant=ticket.tenant,
                work_class=ticket.work_class,
                prompt_tokens=0,
                cached_tokens=0,
                completion_tokens=count,
            )
        )

    def end(
        self, ticket: Ticket, outcome: Outcome, now: float, error: FairgateError | None = None
    ) -> None:
        """The turn is over; what was not finished holds its place until the engine has stopped it."""
        if ticket.state is State.ENDED:
            return
        granted = ticket.state is State.GRANTED
        self._end(ticket, outcome, now, error)
        if not granted:
            return
        if outcome == "finished" or self._dead is not None:
            self._release(ticket)
        else:
            self._held.append((self._steps + HOLD_STEPS, now + HOLD_SECONDS, ticket))

    def take_back(self, ticket: Ticket, now: float) -> None:
        """A grant whose waiter is gone: as if it had never been given."""
        if ticket.state is State.GRANTED:
            self._end(ticket, "aborted", now, None)
            self._release(ticket)
        else:
            self.end(ticket, "aborted", now)

    def stepped(self, now: float) -> None:
        self._steps += 1
        self.tick(now)

    def tick(self, now: float) -> None:
        while self._held and (self._held[0][0] <= self._steps or self._held[0][1] <= now):
            self._release(self._held.popleft()[2])

    def next_wakeup(self) -> float | None:
        deadlines = [
            t.wait_deadline_seconds
            for t in self._queue
            if t.state is State.WAITING and t.wait_deadline_seconds is not None
        ]
        if self._held:
            deadlines.append(self._held[0][1])
        return min(deadlines, default=None)

    def drain(self) -> None:
        self._draining = True

    def kill(self, error: FairgateError, now: float) -> list[Ticket]:
        self._dead = error
        left = [t for t in self._queue if t.state is State.WAITING]
        self._queue.clear()
        for ticket in left:
            self._end(ticket, "failed", now, error)
        while self._held:
            self._release(self._held.popleft()[2])
        return left

    def statistics(self) -> Statistics:
        return Statistics(
            queued=sum(1 for t in self._queue if t.state is State.WAITING),
            running=self._running,
            active_sequences=self._active,
            sequence_limit=self._limit,
        )

    def _release(self, ticket: Ticket) -> None:
        self._active -= ticket.sequences
        self._running -= 1

    def _end(
        self, ticket: Ticket, outcome: Outcome, now: float, error: FairgateError | None
    ) -> None:
        granted = ticket.state is State.GRANTED
        ticket.state, ticket.outcome, ticket.error = State.ENDED, outcome, error
        self._observer.on_event(
            Ended(
                tenant=ticket.tenant,
                work_class=ticket.work_class,
                request_id=ticket.request_id,
                outcome=outcome,
                code=None if error is None else error.code,
                granted=granted,
                queue_seconds=ticket.queue_seconds if granted else now - ticket.arrived_seconds,
                output_tokens=ticket.output_tokens,
            )
        )
