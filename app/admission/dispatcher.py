"""The one async file: requests wait here, and get Turns.

All decisions are the scheduler's; this file gives it the time, wakes who may go, and makes sure
that a turn ends once, however cancel, expiry, grant and the engine's end interleave. It belongs to
one event loop and is not safe to share between threads; `statistics()` alone may be read anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from app.admission.clock import Clock, Timer
from app.admission.policy import BatchPolicy
from app.admission.scheduler import Scheduler
from app.admission.statistics import Statistics
from app.admission.tenant_share import TenantShare
from app.admission.ticket import Outcome, State, Ticket, WorkClass
from app.errors import FairgateError


class Turn:
    """`async with` waits for it; the block is the work in the engine.

    `first_token`, `tokens` and `finish` are called where the engine emits, any number of times.
    `finish()` ends the turn even if the client has not read. Leaving the block unfinished ends it
    as failed after an exception, else as aborted; after an end, nothing counts any more.
    """

    __slots__ = ("_clock", "_end", "_scheduler", "_wait", "ticket")

    def __init__(
        self,
        ticket: Ticket,
        scheduler: Scheduler,
        clock: Clock,
        *,
        wait: Callable[[Ticket], Awaitable[None]],
        end: Callable[[Ticket, Outcome, FairgateError | None], None],
    ) -> None:
        self.ticket = ticket
        self._scheduler = scheduler
        self._clock = clock
        self._wait = wait
        self._end = end

    @property
    def queue_seconds(self) -> float:
        """From arrival at the door to the hand-over."""
        return self.ticket.queue_seconds

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""
        return self.ticket.outcome

    def first_token(self, *, cached_tokens: int = 0) -> None:
        """The engine has made the first token; so many of the prompt's came from its cache."""
        self._scheduler.first_token(self.ticket, cached_tokens, self._clock.now())

    def tokens(self, count: int) -> None:
        """The engine has made so many more tokens, over all sequences."""
        self._scheduler.tokens(self.ticket, count, self._clock.now())

    def finish(self) -> None:
        """The engine is done with every sequence."""
        self._end(self.ticket, "finished", None)

    async def __aenter__(self) -> Self:
        await self._wait(self.ticket)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.ticket.state is State.ENDED:
            return
        failed = isinstance(error, Exception)
        known = error if isinstance(error, FairgateError) else None
        self._end(self.ticket, "failed" if failed else "aborted", known)


class Dispatcher:
    """Hands out Turns as the scheduler decides."""

    def __init__(self, scheduler: Scheduler, *, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: Timer | None = None
        self._timer_seconds = 0.0

    def check(
        self,
        tenant: str,
        work_class: WorkClass,
        *,
        sequences: int = 1,
        arrived_seconds: float | None = None,
        max_wait_seconds: float | None = None,
    ) -> None:
        """Before the prompt is rendered: refuse what would be refused later.

        Raises:
            Refused: of any kind that admission knows.
            InvalidRequest: more sequences than the engine runs.
        """
        self._scheduler.check(
            tenant,
            work_class,
            now=self._clock.now(),
            sequences=sequences,
            arrived_seconds=arrived_seconds,
            max_wait_seconds=max_wait_seconds,
        )

    def turn(self, ticket: Ticket) -> Turn:
        """A turn for `async with`; a ticket is used once.

        Raises (on entering):
            Refused: of any kind that admission knows, before or after waiting.
            InvalidRequest: more sequences than the engine runs.
        """
        return Turn(ticket, self._scheduler, self._clock, wait=self._wait, end=self._end)

    def engine_stepped(self) -> None:
        """The engine has delivered the output of one step, one without tokens included."""
        now = self._clock.now()
        self._scheduler.stepped(now)
        self._settle(now)

    def set_tenant(self, share: TenantShare) -> None:
        """From now on this tenant has this share; what was charged stays."""
        self._scheduler.set_tenant(share)
        self._settle(self._clock.now())

    def forget_tenant(self, tenant: str) -> None:
        """From now on this tenant has the default share."""
        self._scheduler.forget_tenant(tenant)
        self._settle(self._clock.now())

    @property
    def policy(self) -> BatchPolicy:
        """How much at once; may be replaced while it runs."""
        return self._scheduler.policy

    @policy.setter
    def policy(self, policy: BatchPolicy) -> None:
        self._scheduler.policy = policy
        self._settle(self._clock.now())

    def drain(self) -> None:
        """Refuse new tickets; who waits or runs is served, parts of accepted work included."""
        self._scheduler.drain()

    def kill(self, error: FairgateError) -> None:
        """The engine is dead: everyone who waits gets `error`, and so does whoever comes."""
        now = self._clock.now()
        self._scheduler.kill(error, now)
        self._settle(now)

    def statistics(self) -> Statistics:
        """This moment, as values."""
        return self._scheduler.statistics()

    async def _wait(self, ticket: Ticket) -> None:
        now = self._clock.now()
        self._scheduler.submit(ticket, now)
        self._settle(now)
        if ticket.state is State.WAITING:
            waiter = self._waiters[ticket] = asyncio.get_running_loop().create_future()
            try:
                self._scheduler.announce(ticket, now)
                await waiter
            except BaseException:
                # Granted and cancelled in the same turn of the loop: the grant must not be lost.
                self._waiters.pop(ticket, None)
                now = self._clock.now()
                self._scheduler.take_back(ticket, now)
                self._settle(now)
                raise
        if ticket.error is not None:
            raise ticket.error

    def _end(self, ticket: Ticket, outcome: Outcome, error: FairgateError | None) -> None:
        now = self._clock.now()
        self._scheduler.end(ticket, outcome, now, error)
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Let go whoever may go now, and come back when the scheduler next wants the time."""
        self._wake(self._scheduler.pump(now))
        when = self._scheduler.next_wakeup()
        if self._timer is not None and when != self._timer_seconds:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and when is not None:
            self._timer_seconds = when
            self._timer = self._clock.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._clock.now()
        self._scheduler.tick(now)
        self._settle(now)

    def _wake(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            waiter = self._waiters.pop(ticket, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
