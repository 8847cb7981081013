"""A client that leaves, at any moment and in any way, leaves nothing running behind."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from app.engine.api import Queued
from tests.chat.house import SESSIONS, House, ended, eventually
from tests.scripted_engine import FOREVER


async def test_a_goodbye_ends_the_turn_at_once(house: House) -> None:
    house.engine.script("one", FOREVER)
    async with house.session() as chat:
        await chat.say("a")
        await chat.until("delta")
    await ended(house.engine.calls[0], "closed")
    assert (house.end.outcome, house.end.code) == ("aborted", None)
    assert len(house.chat.sessions) == 0


@pytest.mark.parametrize("code", [1000, 1001])
async def test_closing_properly_is_a_goodbye(house: House, code: int) -> None:
    house.engine.script("one", FOREVER)
    async with house.session() as chat:
        await chat.say("a")
        await chat.until("delta")
        await chat.client.close(code)
        await ended(house.engine.calls[0], "closed")


async def test_without_resuming_a_lost_connection_ends_the_turn_too(house: House) -> None:
    await house.open(resume_seconds=0)
    house.engine.script("one", FOREVER)
    async with house.session() as chat:
        await chat.say("a")
        await chat.until("delta")
        chat.cut()
        await ended(house.engine.calls[0], "closed")
    await eventually(lambda: len(house.chat.sessions) == 0)
    assert (house.end.outcome, house.end.code) == ("aborted", None)


async def test_a_waiting_turn_leaves_the_queue_with_its_client(house: House) -> None:
    house.engine.script(Queued(position=7, eta_seconds=60.0), asyncio.Event())
    async with house.session() as chat:
        await chat.say("a")
        await chat.frame("queued")
    await ended(house.engine.calls[0], "closed")


async def test_a_lost_client_that_nobody_reads_for_is_aborted_after_the_resume_time(
    house: House,
) -> None:
    await house.open(resume_seconds=100)
    house.engine.script("one", FOREVER)
    async with house.session() as chat:
        await chat.say("a")
        await chat.until("delta")
        chat.cut()
    await eventually(lambda: house.chat.sessions.detached == 1)
    now = asyncio.get_running_loop().time()
    house.chat.sweep(now + 90)
    await asyncio.sleep(0)
    assert house.engine.running
    house.chat.sweep(now + 101)
    await ended(house.engine.calls[0], "closed")


async def test_a_storm_of_resets_leaves_nothing(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Plain and session clients, cut at random moments, while others go on undisturbed."""
    await house.open(resume_seconds=0)
    caplog.set_level(logging.INFO)
    dice = random.Random(7)
    house.engine.answer = lambda _: ["piece "] * 40

    async def vandal() -> None:
        async with house.connect(*[SESSIONS] * dice.randint(0, 1)) as chat:
            if chat.client.subprotocol:
                await chat.say("a")
            else:
                await chat.client.send("Hi")
            await asyncio.sleep(dice.random() * 0.02)
            if dice.random() < 0.5:
                chat.cut()

    async def guest() -> str:
        async with house.connect() as chat:
            await chat.client.send("Hi")
            return "".join(await chat.rest())

    async with asyncio.TaskGroup() as group:
        guests = []
        for number in range(200):
            group.create_task(vandal())
            if number % 50 == 0:
                guests.append(group.create_task(guest()))
            await asyncio.sleep(0.001)
    assert {task.result() for task in guests} == {"piece " * 40}
    await eventually(lambda: house.chat.open_sockets == 0 and not house.engine.running)
    assert len(house.ends) == len(house.works)
    assert len(house.chat.sessions) == 0
    assert "Traceback" not in caplog.text
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


async def test_no_task_is_left_behind(house: House) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(20):
        house.engine.script("one", FOREVER)
        async with house.session() as chat:
            await chat.say("a")
            await chat.until("delta")
            chat.cut()
    house.chat.sessions.end_detached()
    await eventually(lambda: house.chat.open_sockets == 0)
    house.chat.sessions.end_detached()
    await eventually(lambda: len(asyncio.all_tasks()) <= before)
