"""A small engine in simulated time: continuous batching, chunked prefill, a linear step law.

It has what makes admission hard: what is granted during a step joins the step after the next, what
ends frees its place one step before it can be filled, and prompts slow everyone's next token.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from app.admission.ticket import Outcome, State, Ticket, WorkClass
from app.errors import FairgateError

# From the engine's process to the gateway's loop, and back.
LATENCY_SECONDS = 0.001


@dataclass(slots=True, eq=False)
class Call:
    """One request of a client, and what became of it."""

    tenant: str
    arrived: float
    prompt: int = 80
    output: int = 64
    limit: int | None = None
    work_class: WorkClass = "interactive"
    gives_up: float | None = None
    ticket: Ticket | None = None
    first: float | None = None
    last: float | None = None
    made: int = 0
    prefilled: int = 0
    error: FairgateError | None = None
    granted: float | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The step law in seconds, and the limits of vLLM's scheduler."""

    base: float = 0.020
    token: float = 0.0001
    sequences: int = 64
    step_tokens: int = 2048


class Admission(Protocol):
    """What the simulation needs of admission: the scheduler, or something to compare it with."""

    def submit(self, ticket: Ticket, now: float) -> None: ...
    def announce(self, ticket: Ticket, now: float) -> None: ...
    def pump(self, now: float) -> list[Ticket]: ...
    def first_token(self, ticket: Ticket, cached_tokens: int, now: float) -> None: ...
    def tokens(self, ticket: Ticket, count: int, now: float) -> None: ...
    def end(
        self, ticket: Ticket, outcome: Outcome, now: float, error: FairgateError | None = None
    ) -> None: ...
    def stepped(self, now: float) -> None: ...
    def tick(self, now: float) -> None: ...
    def next_wakeup(self) -> float | None: ...


class PlainFifo:
    """First come, first served, into an engine that queues for itself: what vLLM alone does."""

    def __init__(self) -> None:
        self._left: list[Ticket] = []

    def submit(self, ticket: Ticket, now: float) -> None:
        ticket.state, ticket.granted_seconds = State.GRANTED, now
        self._left.append(ticket)

    def pump(self, now: float) -> list[Ticket]:
        left, self._left = self._left, []
        return left

    def announce(self, ticket: Ticket, now: float) -> None: ...
    def first_token(self, ticket: Ticket, cached_tokens: int, now: float) -> None: ...
    def tokens(self, ticket: Ticket, count: int, now: float) -> None: ...
    def stepped(self, now: float) -> None: ...
    def tick(self, now: float) -> None: ...

    def end(
        self, ticket: Ticket, outcome: Outcome, now: float, error: FairgateError | None = None
    ) -> None:
        ticket.state = State.ENDED

    def next_wakeup(self) -> float | None:
        return None


@dataclass(slots=True)
class Simulation:
    """Clients, admission and engine, moved along by a heap of events."""

    admission: Admission
    engine: Engine = field(default_factory=Engine)
    now: float = 0.0
    calls: list[Call] = field(default_factory=list)
    served: list[tuple[float, str, int, int]] = field(default_factory=list)
    watch: Callable[[Simulation], None] | None = None
    on_end: Callable[[Simulation, Call], None] | None = None
    steps: int = 0
    busy_seconds: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0
    _inbox: deque[Call] = field(default_factory=deque)
    _running: list[Call] = field(default_factory=list)
    _stepping: bool = False
    _by_ticket: dict[Ticket, Call] = field(default_factory=dict)
    _wakeup: float | None = None

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do it at that time."""
        self._count += 1
        heappush(self._events, (when, self._count, action))

    def add(self, calls: Iterable[Call]) -> None:
        """Clients that will come."""
        for call in calls:
            self.calls.append(call)
            self.at(call.arrived, lambda call=call: self._arrive(call))  # type: ignore[misc]

    def run(self, until: float) -> Simulation:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heappop(self._events)
            action()
        self.now = until
        return self

    def service(self, tenant: str, start: float, end: float) -> float:
        """Tokens at their prices that the engine worked off for a tenant in a span of time."""
        return sum(p + 2 * o for t, who, p, o in self.served if who == tenant and start <= t < end)

    def tokens(self, end: float) -> int:
        """Output tokens of everybody until then."""
        return sum(o for t, _, _, o in self.served if t < end)

    def first_tokens(self, tenant: str) -> list[float]:
        """Times to first token, sorted."""
        return sorted(
            c.first - c.arrived for c in self.calls if c.tenant == tenant and c.first is not None
        )

    def _arrive(self, call: Call) -> None:
        ticket = call.ticket = Ticket(
            tenant=call.tenant,
            work_class=call.work_class,
            request_id=str(len(self._by_ticket)),
            prompt_tokens=call.prompt,
            max_output_tokens=call.limit or call.output,
            arrived_seconds=self.now,
        )
        try:
            self.admission.submit(ticket, self.now)
        except FairgateError as error:
            call.error = error
            self._ended(call)
            return
        self._by_ticket[ticket] = call
        if call.gives_up is not None:
            self.at(call.arrived + call.gives_up, lambda: self._give_up(call))
        self._pump()
        if ticket.state is State.WAITING:
            self.admission.announce(ticket, self.now)
            self._arm()

    def _give_up(self, call: Call) -> None:
        if call.ticket is not None and call.ticket.state in (State.WAITING, State.GRANTED):
            call.gone = True
            self.admission.end(call.ticket, "aborted", self.now)
            self._pump()

    def _pump(self) -> None:
        for ticket in self.admission.pump(self.now):
            call = self._by_ticket[ticket]
            if ticket.state is State.GRANTED:
                call.granted = self.now
                self.at(self.now + LATENCY_SECONDS, lambda call=call: self._enqueue(call))  # type: ignore[misc]
            elif ticket.error is not None:
                call.error = ticket.error
                self._ended(call)
        self._arm()
        if self.watch is not None:
            self.watch(self)

    def _ended(self, call: Call) -> None:
        if self.on_end is not None:
            self.on_end(self, call)

    def _arm(self) -> None:
        when = self.admission.next_wakeup()
        if when is not None and (self._wakeup is None or when < self._wakeup):
            self._wakeup = max(when, self.now)
            self.at(self._wakeup, self._tick)

    def _tick(self) -> None:
        self._wakeup = None
        self.admission.tick(self.now)
        self._pump()

    def _enqueue(self, call: Call) -> None:
        self._inbox.append(call)
        if not self._stepping:
            self._step()

    def _step(self) -> None:
        """Schedule as vLLM does: who runs first, then who waits while there is room."""
        self._running = [c for c in self._running if not c.gone]
        budget = self.engine.step_tokens
        scheduled: list[tuple[Call, int]] = []
        for call in self._running:
            if budget <= 0:
                break
            count = min(budget, call.prompt - call.prefilled) or 1
            scheduled.append((call, count))
            budget -= count
        while self._inbox and budget > 0 and len(self._running) < self.engine.sequences:
            call = self._inbox.popleft()
            if call.gone:
                continue
            self._running.append(call)
            count = min(budget, call.prompt)
            scheduled.append((call, count))
            budget -= count
        self._stepping = bool(scheduled)
        if scheduled:
            total = sum(count for _, count in scheduled)
            seconds = self.engine.base + self.engine.token * total
            self.steps += 1
            self.busy_seconds += seconds
            self.at(self.now + seconds, lambda: self._stepped(scheduled))

    def _stepped(self, scheduled: list[tuple[Call, int]]) -> None:
        outputs: list[tuple[Call, int]] = []
        for call, count in scheduled:
            prompt = min(count, call.prompt - call.prefilled)
            call.prefilled += prompt
            due = call.prefilled >= call.prompt
            call.made += due
            self.served.append((self.now, call.tenant, prompt, int(due)))
            if due:
                outputs.append((call, call.made))
        self._running = [c for c in self._running if c.made < c.output]
        self.at(self.now + LATENCY_SECONDS, lambda: self._deliver(outputs))
        self._step()

    def _deliver(self, outputs: list[tuple[Call, int]]) -> None:
        now = self.now
        for call, made in outputs:
            ticket = call.ticket
            if ticket is None or call.gone:
                continue
            if call.first is None:
                call.first = now
                self.admission.first_token(ticket, 0, now)
            self.admission.tokens(ticket, 1, now)
            if made >= call.output:
                call.last = now
                self.admission.end(ticket, "finished", now)
                self._ended(call)
        self.admission.stepped(now)
        self._pump()


def poisson(
    tenant: str,
    rate: float,
    start: float,
    end: float,
    *,
    seed: str = "7",
    **fields: object,
) -> list[Call]:
    """Calls at random times; every tenant and seed its own."""
    rng = random.Random(f"{seed}{tenant}")
    calls, when = [], start
    while (when := when + rng.expovariate(rate)) < end:
        calls.append(Call(tenant, when, **fields))  # type: ignore[arg-type]
    return calls


def quantile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))]
