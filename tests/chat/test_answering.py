"""Answers run beside each other: what befalls one does not befall the rest, and each is counted."""

from __future__ import annotations

import asyncio

import pytest

from app.chat.answering import Answering, Cause
from app.chat.breaker import Breaker
from app.chat.limits import ChatLimits
from app.engine.api import End, Work
from app.errors import Draining
from app.web.caller import Caller
from tests.chat.house import ACME, House, joined

CALLER = Caller(tenant=ACME, request_id="r1", arrived_seconds=0.0)


async def test_one_that_fails_where_nobody_expected_it_harms_no_other(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("a bug")

    async with house.session() as chat:
        house.chat.start(broken())
        assert joined(await chat.answer("a")) == "Hello, world."
    assert "a bug" in caplog.text


async def test_once_it_ends_nothing_begins(house: House) -> None:
    async def never(_: Work) -> End:
        raise AssertionError

    answering = Answering(
        engine=lambda: house.engine, make_work=house.make_work, limits=ChatLimits()
    )
    answering.ending = Draining("the server stops")
    outcome = await answering.answer(CALLER, Breaker(), never)
    assert outcome.problem is answering.ending
    assert not house.works


async def test_a_cancelled_one_is_counted_as_aborted(house: House) -> None:
    answering = Answering(
        engine=lambda: house.engine, make_work=house.make_work, limits=ChatLimits()
    )

    async def forever(_: Work) -> End:
        await asyncio.Event().wait()
        raise AssertionError

    breaker: Breaker[Cause] = Breaker()
    task = asyncio.create_task(answering.answer(CALLER, breaker, forever))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (house.end.outcome, house.end.code) == ("aborted", None)


async def test_what_runs_when_the_server_stops_is_cut_off_and_counted(house: House) -> None:
    gate = asyncio.Event()
    house.engine.script("one", gate)
    async with house.session() as chat:
        await chat.say("a")
        await chat.until("delta")
        house._stop.set()
        error = await chat.error()
        assert (error["id"], error["code"]) == ("a", "draining")
        assert await chat.closed() == (1001, "draining")
    assert (house.end.outcome, house.end.code) == ("failed", "draining")
