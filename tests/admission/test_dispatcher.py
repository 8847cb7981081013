"""Turns end once, however cancel, expiry, grant and the engine's end interleave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.admission.dispatcher import Dispatcher, Turn
from app.admission.policy import Capacity
from app.admission.scheduler import Scheduler
from app.admission.ticket import Ticket
from app.errors import Draining, EngineDead, WaitTooLong
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


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def dispatcher(clock: FakeClock) -> Dispatcher:
    return Dispatcher(Scheduler(Capacity(sequences=1)), clock=clock)


async def hold(dispatcher: Dispatcher, ticket: Ticket, turns: list[Turn]) -> None:
    async with dispatcher.turn(ticket) as turn:
        turns.append(turn)
        await asyncio.Event().wait()


async def test_a_cancelled_turn_hands_its_grant_on(dispatcher: Dispatcher, clock: FakeClock):
    turns: list[Turn] = []
    async with asyncio.TaskGroup() as group:
        first = group.create_task(hold(dispatcher, ticket(clock, "a"), turns))
        await settle()
        second = group.create_task(hold(dispatcher, ticket(clock, "b"), turns))
        third = group.create_task(hold(dispatcher, ticket(clock, "c"), turns))
        await settle()
        turns[0].finish()  # grants b, whose task has not run yet
        second.cancel()
        await settle()
        assert [t.ticket.request_id for t in turns] == ["a", "c"]
        first.cancel()
        third.cancel()
    assert dispatcher.statistics().running == 1  # c holds its place until the engine has stepped
    dispatcher.engine_stepped()
    dispatcher.engine_stepped()
    assert dispatcher.statistics().running == 0


async def test_a_waiting_ticket_expires_by_timer(dispatcher: Dispatcher, clock: FakeClock):
    async with dispatcher.turn(ticket(clock, "a")):
        late = ticket(clock, "b", wait_deadline_seconds=clock.now() + 5)
        task = asyncio.ensure_future(hold(dispatcher, late, []))
        await settle()
        await clock.advance(5)
        with pytest.raises(WaitTooLong):
            await task
    assert late.outcome == "expired"


async def test_draining_refuses_new_tickets(dispatcher: Dispatcher, clock: FakeClock):
    dispatcher.drain()
    with pytest.raises(Draining):
        async with dispatcher.turn(ticket(clock)):
            pass


async def test_a_dead_engine_ends_every_wait(dispatcher: Dispatcher, clock: FakeClock):
    async with dispatcher.turn(ticket(clock, "a")):
        task = asyncio.ensure_future(hold(dispatcher, ticket(clock, "b"), []))
        await settle()
        dispatcher.kill(EngineDead("gone"))
        with pytest.raises(EngineDead):
            await task
