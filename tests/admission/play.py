"""Random lives of a scheduler: a list of moves, played against the checker."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import strategies as st

from app.admission.policy import BatchPolicy, Capacity
from app.admission.rules import Rules
from app.admission.scheduler import Scheduler
from app.admission.tenant_share import TenantShare
from app.admission.ticket import State, Ticket, WorkClass
from app.errors import FairgateError, Internal
from tests.admission.checker import Checked, Checker

TENANTS = ("a", "b", "c", "d")
Move = tuple[Any, ...]

_pick = st.integers(0, 40)
_arrive = st.tuples(
    st.just("arrive"),
    st.sampled_from(TENANTS),
    st.sampled_from(("interactive", "interactive", "batch")),
    st.integers(1, 300),
    st.integers(1, 60),
    st.sampled_from((1, 1, 1, 2, 3)),
    st.sampled_from((None, None, None, 0.0, 0.5, 3.0)),
)
_step = st.tuples(st.just("engine_step"), st.integers(1, 30))
moves = st.lists(
    st.one_of(
        *[_arrive] * 6,
        *[_step] * 3,
        st.tuples(st.just("first"), _pick, st.integers(0, 300)),
        st.tuples(st.just("tokens"), _pick, st.integers(1, 20)),
        st.tuples(st.sampled_from(("abort", "fail", "leave", "take_back")), _pick),
        st.tuples(st.just("step"), st.floats(0.001, 0.3)),
        st.tuples(st.just("wait"), st.floats(0.0, 2.0)),
    ),
    # Left to itself hypothesis plays lives of five moves.
    min_size=30,
    max_size=150,
)


def long_life(seed: int, length: int = 400) -> list[Move]:
    """The same kinds of moves, many more of them, without hypothesis."""
    rng = random.Random(seed)
    life: list[Move] = []
    for _ in range(length):
        kind = rng.randrange(20)
        if kind < 9:
            life.append(
                (
                    "arrive",
                    rng.choice(TENANTS),
                    rng.choice(("interactive", "interactive", "batch")),
                    rng.randrange(1, 300),
                    rng.randrange(1, 60),
                    rng.choice((1, 1, 1, 1, 2, 3)),
                    rng.choice((None, None, None, None, 0.0, 0.5, 3.0)),
                )
            )
        elif kind < 15:
            life.append(("engine_step", rng.randrange(1, 30)))
        else:
            name = ("abort", "fail", "leave", "take_back", "first")[kind - 15]
            life.append((name, rng.randrange(40), *((rng.randrange(300),) * (name == "first"))))
    return life


shares = st.fixed_dictionaries(
    {
        name: st.builds(
            TenantShare,
            id=st.just(name),
            weight=st.sampled_from((0.0, 0.5, 1.0, 1.0, 2.0, 4.0)),
            running=st.sampled_from((None, 1, 2, 5)),
            queued=st.sampled_from((None, 3, 20)),
        )
        for name in TENANTS
    }
)


@dataclass(slots=True)
class Play:
    """What came of it; `log` names every ticket that left the queue, in order."""

    checked: Checked
    now: float = 100.0
    tickets: list[Ticket] = field(default_factory=list)
    log: list[tuple[str, str, float]] = field(default_factory=list)
    taken_back: set[Ticket] = field(default_factory=set)

    @property
    def scheduler(self) -> Scheduler:
        return self.checked.scheduler

    def waiting(self) -> list[Ticket]:
        return [t for t in self.tickets if t.state is State.WAITING]

    def granted(self) -> list[Ticket]:
        return [t for t in self.tickets if t.state is State.GRANTED]

    def held(self) -> list[Ticket]:
        return [t for t in self.tickets if t.holds]

    def make(self, move: Move) -> None:
        """One move, and what follows from it."""
        name, *rest = move
        getattr(self, f"_{name}")(*rest)
        for ticket in self.checked.pump(self.now):
            self.log.append((ticket.request_id, ticket.state.value, self.now))
            if ticket.state is State.WAITING:
                raise AssertionError("it was said to have left the queue")

    def finish_everything(self) -> None:
        """Let all that waits and runs come to an end."""
        for _ in range(10_000):
            if not self.waiting() and not self.held():
                return
            for ticket in self.granted():
                self.make(("end_one", ticket))
            self.make(("step", 0.03))
        raise AssertionError("something never ends")

    def _end_one(self, ticket: Ticket) -> None:
        self.checked.first_token(ticket, 0, self.now)
        self.checked.end(ticket, "finished", self.now)

    def _arrive(
        self, tenant: str, work_class: str, prompt: int, output: int, n: int, wait: float | None
    ) -> None:
        ticket = Ticket(
            tenant=tenant,
            work_class=cast("WorkClass", work_class),
            request_id=str(len(self.tickets)),
            prompt_tokens=prompt,
            max_output_tokens=output,
            sequences=n,
            arrived_seconds=self.now,
            wait_deadline_seconds=None if wait is None else self.now + wait,
        )
        self.tickets.append(ticket)
        try:
            self.checked.submit(ticket, self.now)
        except FairgateError:
            self.log.append((ticket.request_id, "refused", self.now))

    def _first(self, pick: int, cached: int) -> None:
        if granted := self.granted():
            self.checked.first_token(granted[pick % len(granted)], cached, self.now)

    def _tokens(self, pick: int, count: int) -> None:
        if held := self.held():
            ticket = held[pick % len(held)]
            left = ticket.max_output_tokens * ticket.sequences - ticket.output_tokens
            if left:
                self.checked.tokens(ticket, min(count, left), self.now)

    def _finish(self, pick: int) -> None:
        if granted := self.granted():
            ticket = granted[pick % len(granted)]
            self.checked.first_token(ticket, 0, self.now)
            self.checked.end(ticket, "finished", self.now)

    def _abort(self, pick: int) -> None:
        if granted := self.granted():
            self.checked.end(granted[pick % len(granted)], "aborted", self.now)

    def _fail(self, pick: int) -> None:
        if granted := self.granted():
            self.checked.end(granted[pick % len(granted)], "failed", self.now, Internal("no"))

    def _leave(self, pick: int) -> None:
        if waiting := self.waiting():
            self.checked.end(waiting[pick % len(waiting)], "aborted", self.now)

    def _take_back(self, pick: int) -> None:
        fresh = [t for t in self.granted() if t.first_token_seconds is None]
        if fresh:
            ticket = fresh[pick % len(fresh)]
            self.taken_back.add(ticket)
            self.checked.take_back(ticket, self.now)

    def _engine_step(self, count: int) -> None:
        """Everything in the engine makes progress, and what is done ends."""
        for ticket in self.held():
            made = min(count, ticket.max_output_tokens * ticket.sequences - ticket.output_tokens)
            self.checked.tokens(ticket, made, self.now)
            if ticket.output_tokens == ticket.max_output_tokens * ticket.sequences:
                self.checked.end(ticket, "finished", self.now)
        self._step(0.03)

    def _step(self, seconds: float) -> None:
        self.now += seconds
        self.checked.stepped(self.now)

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        self.checked.tick(self.now)


def play(
    moves: list[Move],
    shares: dict[str, TenantShare],
    *,
    capacity: Capacity | None = None,
    policy: BatchPolicy | None = None,
    rules: Rules | None = None,
    jitter: float = 0.5,
) -> Play:
    """Play all of them."""
    rules = Rules() if rules is None else rules
    scheduler = Scheduler(
        capacity or Capacity(sequences=6, kv_tokens=2000, step_tokens=512),
        policy=policy,
        rules=rules,
        jitter=lambda: jitter,
    )
    for share in shares.values():
        scheduler.set_tenant(share)
    game = Play(Checked(scheduler, Checker(rules, shares)))
    for move in moves:
        game.make(move)
    return game
