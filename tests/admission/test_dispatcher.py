"""Turns end once, however cancel, expiry, grant and the engine's end interleave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.dispatcher import Dispatcher, Turn
from app.admission.events import Ended, Event, Granted, Served, Waiting
from app.admission.policy import Capacity, Fair, Fixed
from app.admission.scheduler import Scheduler
from app.admission.tenant_share import TenantShare
from app.admission.ticket import State, Ticket
from app.errors import (
    Draining,
    EngineDead,
    FairgateError,
    InvalidRequest,
    QueueFull,
    TooSlow,
    WaitTooLong,
)
from tests.fakes import FakeClock, settle


def ticket(clock: FakeClock, name: str = "r", **fields: Any) -> Ticket:
    defaults: dict[str, Any] = {
        "tenant": "acme",
        "work_class": "interactive",
        "request_id": name,
        "prompt_tokens": 10,
        "max_output_tokens": 5,
        "arrived_seconds": clock.now(),
    }
    return Ticket(**defaults | fields)


class Listener:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def dispatcher(clock: FakeClock, listener: Listener) -> Dispatcher:
    """One place, so that the second has to wait."""
    scheduler = Scheduler(Capacity(sequences=1), policy=Fixed(), observer=listener)
    return Dispatcher(scheduler, clock=clock)


@dataclass
class Client:
    """A task that takes a turn and stays in it until told."""

    dispatcher: Dispatcher
    ticket: Ticket
    turn: Turn | None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    error: BaseException | None = None

    async def run(self) -> None:
        try:
            async with self.dispatcher.turn(self.ticket) as turn:
                self.turn = turn
                await self.go_on.wait()
                if self.error is not None:
                    raise self.error
        finally:
            self.turn = None


async def start(group: asyncio.TaskGroup, client: Client) -> asyncio.Task[None]:
    task = group.create_task(client.run())
    await settle()
    return task


def free(dispatcher: Dispatcher) -> None:
    """Two engine steps: nothing that ended is held any more."""
    dispatcher.engine_stepped()
    dispatcher.engine_stepped()
    assert dispatcher.statistics().running == 0
    assert dispatcher.statistics().active_sequences == 0


async def test_a_turn_is_granted_at_once_where_there_is_room(
    dispatcher: Dispatcher, clock: FakeClock, listener: Listener
):
    clock.move(1.0)
    late = ticket(clock, arrived_seconds=clock.now() - 0.5)
    async with dispatcher.turn(late) as turn:
        assert turn.queue_seconds == 0.5
        turn.first_token(cached_tokens=4)
        turn.tokens(5)
        turn.finish()
        assert turn.outcome == "finished"
    assert [type(event).__name__ for event in listener.events] == [
        "Granted",
        "FirstToken",
        "Served",
        "Ended",
    ]
    assert listener.of(Served) == [
        Served(
            tenant="acme",
            work_class="interactive",
            prompt_tokens=6,
            cached_tokens=4,
            completion_tokens=5,
        )
    ]
    assert dispatcher.statistics().running == 0


async def test_the_next_goes_when_the_engine_has_finished_not_when_the_client_has_read(
    dispatcher: Dispatcher, clock: FakeClock
):
    first, second = (Client(dispatcher, ticket(clock, name)) for name in "ab")
    async with asyncio.TaskGroup() as group:
        await start(group, first)
        await start(group, second)
        assert second.turn is None
        assert first.turn is not None
        first.turn.finish()
        await settle()
        assert second.turn is not None
        for client in (first, second):
            client.go_on.set()
    assert (first.ticket.outcome, second.ticket.outcome) == ("finished", "aborted")


async def test_a_turn_cancelled_after_its_grant_hands_it_on(
    dispatcher: Dispatcher, clock: FakeClock
):
    first, second, third = (Client(dispatcher, ticket(clock, name)) for name in "abc")
    async with asyncio.TaskGroup() as group:
        await start(group, first)
        task = await start(group, second)
        await start(group, third)
        assert first.turn is not None
        first.turn.finish()
        assert second.ticket.state is State.GRANTED
        task.cancel()
        await settle()
        assert third.turn is not None
        for client in (first, third):
            client.go_on.set()
    assert second.ticket.outcome == "aborted"
    accounts = dispatcher.statistics().accounts
    # The prompts of the first and the third; that of the second never reached the engine.
    assert sum(account.service for account in accounts) == 20
    free(dispatcher)


async def test_a_turn_cancelled_while_it_waits_leaves_the_queue(
    dispatcher: Dispatcher, clock: FakeClock, listener: Listener
):
    first, second = (Client(dispatcher, ticket(clock, name)) for name in "ab")
    async with asyncio.TaskGroup() as group:
        await start(group, first)
        task = await start(group, second)
        clock.move(2.0)
        task.cancel()
        await settle()
        assert dispatcher.statistics().queued == 0
        ended = listener.of(Ended)[-1]
        assert (ended.outcome, ended.granted, ended.queue_seconds) == ("aborted", False, 2.0)
        first.go_on.set()


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (TooSlow("read faster"), "failed", "too_slow"),
        (ValueError("a bug"), "failed", None),
        (None, "aborted", None),
        (asyncio.CancelledError(), "aborted", None),
    ],
    ids=["our error", "any error", "left early", "cancelled"],
)
async def test_leaving_the_block_ends_the_turn(
    dispatcher: Dispatcher,
    clock: FakeClock,
    listener: Listener,
    error: BaseException | None,
    outcome: str,
    code: str | None,
):
    client = Client(dispatcher, ticket(clock), error=error)
    client.go_on.set()
    with suppress(TooSlow, ValueError, asyncio.CancelledError):
        await client.run()
    ended = listener.of(Ended)
    assert [(event.outcome, event.code) for event in ended] == [(outcome, code)]


async def test_a_closed_generator_aborts_its_turn(dispatcher: Dispatcher, clock: FakeClock):
    used = ticket(clock)

    async def pieces() -> AsyncGenerator[int, None]:
        async with dispatcher.turn(used) as turn:
            turn.first_token()
            while True:
                yield 1

    async with aclosing(pieces()) as stream:
        assert await anext(stream) == 1
    assert used.outcome == "aborted"


async def test_what_was_aborted_holds_its_place_until_the_engine_has_stopped_it(
    dispatcher: Dispatcher, clock: FakeClock
):
    first, second = (Client(dispatcher, ticket(clock, name)) for name in "ab")
    async with asyncio.TaskGroup() as group:
        task = await start(group, first)
        await start(group, second)
        task.cancel()
        await settle()
        assert second.turn is None
        dispatcher.engine_stepped()
        await settle()
        assert second.turn is None
        dispatcher.engine_stepped()
        await settle()
        assert second.turn is not None
        second.go_on.set()


async def test_without_steps_an_aborted_place_is_free_after_a_quarter_second(
    dispatcher: Dispatcher, clock: FakeClock
):
    first, second = (Client(dispatcher, ticket(clock, name)) for name in "ab")
    async with asyncio.TaskGroup() as group:
        task = await start(group, first)
        await start(group, second)
        task.cancel()
        await settle()
        await clock.advance(0.24)
        assert second.turn is None
        await clock.advance(0.01)
        assert second.turn is not None
        second.go_on.set()


async def test_tokens_made_after_an_abort_are_charged(dispatcher: Dispatcher, clock: FakeClock):
    client = Client(dispatcher, ticket(clock))
    client.go_on.set()
    await client.run()
    turn = dispatcher.turn(client.ticket)
    turn.tokens(3)
    free(dispatcher)
    turn.tokens(100)
    assert dispatcher.statistics().accounts[0].service == 10 + 2 * 3


async def test_a_request_that_fails_before_its_prompt_is_done_is_not_charged(
    dispatcher: Dispatcher, clock: FakeClock
):
    client = Client(dispatcher, ticket(clock), error=InvalidRequest("no such token"))
    client.go_on.set()
    with pytest.raises(InvalidRequest):
        await client.run()
    assert dispatcher.statistics().accounts[0].service == 0


async def test_a_waiting_ticket_expires_by_timer(
    dispatcher: Dispatcher, clock: FakeClock, listener: Listener
):
    first = Client(dispatcher, ticket(clock, "a"))
    late = Client(dispatcher, ticket(clock, "b", wait_deadline_seconds=clock.now() + 5))
    async with asyncio.TaskGroup() as group:
        await start(group, first)
        task = asyncio.ensure_future(late.run())
        await settle()
        await clock.advance(4.9)
        assert not task.done()
        await clock.advance(0.2)
        with pytest.raises(WaitTooLong) as caught:
            await task
        assert 1 <= caught.value.retry_after_seconds <= 60
        first.go_on.set()
    ended = listener.of(Ended)[0]
    assert (ended.outcome, ended.code, ended.granted) == ("expired", "wait_too_long", False)


async def test_the_tenants_own_limit_on_waiting_counts(dispatcher: Dispatcher, clock: FakeClock):
    dispatcher.set_tenant(TenantShare(id="acme", wait_seconds=2))
    first, late = (Client(dispatcher, ticket(clock, name)) for name in "ab")
    async with asyncio.TaskGroup() as group:
        await start(group, first)
        task = asyncio.ensure_future(late.run())
        await settle()
        await clock.advance(2.1)
        with pytest.raises(WaitTooLong):
            await task
        first.go_on.set()


async def test_a_full_queue_refuses_only_its_own_tenant(dispatcher: Dispatcher, clock: FakeClock):
    dispatcher.set_tenant(TenantShare(id="acme", queued=1))
    clients = [Client(dispatcher, ticket(clock, name)) for name in "ab"]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            await start(group, client)
        with pytest.raises(QueueFull):
            dispatcher.check("acme", "interactive")
        with pytest.raises(QueueFull):
            await Client(dispatcher, ticket(clock, "c")).run()
        dispatcher.check("other", "interactive")
        part = Client(dispatcher, ticket(clock, "part", part=True, work_class="batch"))
        task = await start(group, part)
        assert dispatcher.statistics().queued == 2
        task.cancel()
        for client in clients:
            client.go_on.set()
        await settle()
        free_all(dispatcher)


def free_all(dispatcher: Dispatcher) -> None:
    """Steps enough for everyone in the queue of one place."""
    for _ in range(6):
        dispatcher.engine_stepped()


async def test_no_queue_at_all_still_lets_in_where_there_is_room(
    dispatcher: Dispatcher, clock: FakeClock
):
    dispatcher.set_tenant(TenantShare(id="acme", queued=0))
    client = Client(dispatcher, ticket(clock))
    async with asyncio.TaskGroup() as group:
        await start(group, client)
        assert client.turn is not None
        with pytest.raises(QueueFull):
            await Client(dispatcher, ticket(clock, "b")).run()
        client.go_on.set()


async def test_running_limits_delay_and_do_not_refuse(clock: FakeClock):
    dispatcher = Dispatcher(Scheduler(Capacity(sequences=8)), clock=clock)
    dispatcher.set_tenant(TenantShare(id="acme", running=1))
    first, second = (Client(dispatcher, ticket(clock, name)) for name in "ab")
    async with asyncio.TaskGroup() as group:
        await start(group, first)
        await start(group, second)
        assert second.turn is None
        dispatcher.set_tenant(TenantShare(id="acme", running=2))
        await settle()
        assert second.turn is not None
        for client in (first, second):
            client.go_on.set()


async def test_more_sequences_than_the_engine_runs_are_invalid(
    dispatcher: Dispatcher, clock: FakeClock
):
    with pytest.raises(InvalidRequest) as caught:
        dispatcher.check("acme", "interactive", sequences=2)
    assert caught.value.param == "n"
    with pytest.raises(InvalidRequest):
        await Client(dispatcher, ticket(clock, sequences=2)).run()


async def test_several_sequences_are_admitted_as_one(clock: FakeClock):
    dispatcher = Dispatcher(Scheduler(Capacity(sequences=4), policy=Fixed()), clock=clock)
    first, wide, last = (
        Client(dispatcher, ticket(clock, name, sequences=n))
        for name, n in (("a", 2), ("b", 3), ("c", 1))
    )
    async with asyncio.TaskGroup() as group:
        for client in (first, wide, last):
            await start(group, client)
        assert wide.turn is None
        assert last.turn is None, "nobody passes who is next"
        assert first.turn is not None
        first.turn.finish()
        await settle()
        assert wide.turn is not None
        assert last.turn is not None
        for client in (first, wide, last):
            client.go_on.set()


async def test_draining_refuses_who_comes_and_serves_who_waits(
    dispatcher: Dispatcher, clock: FakeClock
):
    first, second = (Client(dispatcher, ticket(clock, name)) for name in "ab")
    part = Client(dispatcher, ticket(clock, "part", part=True))
    async with asyncio.TaskGroup() as group:
        await start(group, first)
        await start(group, second)
        dispatcher.drain()
        with pytest.raises(Draining):
            dispatcher.check("acme", "interactive")
        with pytest.raises(Draining):
            await Client(dispatcher, ticket(clock, "c")).run()
        await start(group, part)
        for client in (first, second, part):
            assert client.turn is not None
            client.turn.finish()
            client.go_on.set()
            await settle()
    assert second.ticket.outcome == part.ticket.outcome == "finished"


async def test_a_dead_engine_ends_every_wait_and_refuses_who_comes(
    dispatcher: Dispatcher, clock: FakeClock
):
    first, second = (Client(dispatcher, ticket(clock, name)) for name in "ab")
    async with asyncio.TaskGroup() as group:
        await start(group, first)
        task = asyncio.ensure_future(second.run())
        await settle()
        dispatcher.kill(EngineDead("gone"))
        with pytest.raises(EngineDead):
            await task
        with pytest.raises(EngineDead):
            dispatcher.check("acme", "interactive")
        first.go_on.set()
    assert second.ticket.outcome == "failed"
    assert dispatcher.statistics().active_sequences == 0


async def test_a_policy_may_change_while_it_runs(dispatcher: Dispatcher, clock: FakeClock):
    dispatcher = Dispatcher(
        Scheduler(Capacity(sequences=8), policy=Fixed(active_sequences=1)), clock=clock
    )
    first, second = (Client(dispatcher, ticket(clock, name)) for name in "ab")
    async with asyncio.TaskGroup() as group:
        await start(group, first)
        await start(group, second)
        assert second.turn is None
        dispatcher.policy = Fair()
        await settle()
        assert second.turn is not None
        assert dispatcher.statistics().policy == "fair"
        for client in (first, second):
            client.go_on.set()


async def test_who_waits_is_told_its_position(
    dispatcher: Dispatcher, clock: FakeClock, listener: Listener
):
    told: list[tuple[str, int]] = []
    clients = [
        Client(
            dispatcher,
            ticket(clock, n, on_queued=lambda position, eta, n=n: told.append((n, position))),
        )
        for n in "abc"
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [await start(group, client) for client in clients]
        assert told == [("b", 1), ("c", 2)]
        assert [event.position for event in listener.of(Waiting)] == [1, 2]
        tasks[1].cancel()
        await settle()
        assert len(told) == 2
        await clock.advance(0.5)
        assert told[2:] == [("c", 1)]
        await clock.advance(5)
        assert len(told) == 3
        for client in clients:
            client.go_on.set()
        await settle()
        free_all(dispatcher)


class Life:
    """Chosen by hypothesis: what happens to a handful of clients, and when."""

    MOVES = ("start", "cancel", "finish", "leave", "fail", "tokens", "step", "wait", "settle")

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.listener = Listener()
        scheduler = Scheduler(Capacity(sequences=2), observer=self.listener)
        self.dispatcher = Dispatcher(scheduler, clock=self.clock)
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def move(self, name: str, pick: int) -> None:
        if name == "start":
            deadline = self.clock.now() + 1.0 if pick % 3 == 0 else None
            used = ticket(
                self.clock,
                str(len(self.clients)),
                tenant="ab"[pick % 2],
                sequences=1 + (pick % 5 == 0),
                wait_deadline_seconds=deadline,
            )
            self.clients.append(Client(self.dispatcher, used))
            self.tasks.append(asyncio.ensure_future(self.clients[-1].run()))
        elif name == "step":
            self.dispatcher.engine_stepped()
        elif name == "wait":
            self.clock.move(0.1 * (pick + 1))
        elif name == "settle":
            await settle(1 + pick % 3)
        elif self.clients:
            self.happen(name, pick % len(self.clients))

    def happen(self, name: str, index: int) -> None:
        client = self.clients[index]
        if name == "cancel":
            self.tasks[index].cancel()
        elif name in ("leave", "fail"):
            client.error = TooSlow("slow") if name == "fail" else None
            client.go_on.set()
        elif client.turn is not None and name == "finish":
            client.turn.finish()
        elif client.turn is not None:
            client.turn.tokens(1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from((*Life.MOVES, "start", "start", "cancel")), st.integers(0, 9)),
        min_size=15,
        max_size=80,
    )
)
def test_every_turn_ends_once_under_any_interleaving(moves: list[tuple[str, int]]):
    async def live() -> None:
        life = Life()
        for name, pick in moves:
            await life.move(name, pick)
            assert life.dispatcher.statistics().active_sequences <= 2
        for client in life.clients:
            client.go_on.set()
        for _ in range(3 * len(life.clients) + 3):
            await settle()
            life.dispatcher.engine_stepped()
        results = await asyncio.gather(*life.tasks, return_exceptions=True)
        assert all(
            result is None or isinstance(result, FairgateError | asyncio.CancelledError)
            for result in results
        )
        ended = [event.request_id for event in life.listener.of(Ended)]
        refused = (None, "rejected")
        started = [c.ticket.request_id for c in life.clients if c.ticket.outcome not in refused]
        assert sorted(ended) == sorted(started)
        assert len(life.listener.of(Granted)) <= len(ended)
        assert all(c.ticket.state in (State.ENDED, State.NEW) for c in life.clients)
        statistics = life.dispatcher.statistics()
        assert (statistics.queued, statistics.running, statistics.active_sequences) == (0, 0, 0)
        assert not life.dispatcher._waiters

    asyncio.run(live())
