"""Resuming after a lost connection: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from app.engine.api import Queued
from app.tenants.model import Limits, Tenant
from tests.chat.house import Chat, House, KeyRing, ended, eventually, joined
from tests.scripted_engine import FOREVER

PIECES = tuple(f"p{number} \u00e9\U0001f600" for number in range(60))


async def lost(house: House, count: int = 1) -> None:
    await eventually(lambda: house.chat.sessions.detached == count)


async def resume(chat: Chat, session: str, after: int) -> None:
    await chat.send("resume", session=session, after=after)


async def test_missed_frames_come_in_order_and_then_the_live_stream(house: House) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    house.engine.script("one", first, "two", "three", second, "four")
    async with house.session() as chat:
        session = chat.ready["session"]
        await chat.say("a")
        assert (await chat.until("delta"))[-1]["seq"] == 2
        chat.cut()
    await lost(house)
    first.set()
    await eventually(lambda: len(house.engine.calls[0].pieces) == 3)
    async with house.session() as chat:
        await resume(chat, session, after=2)
        ready = await chat.frame("ready")
        assert ready["session"] == session != chat.ready["session"]
        missed = [await chat.frame("delta") for _ in range(2)]
        assert [(frame["seq"], frame["text"]) for frame in missed] == [(3, "two"), (4, "three")]
        second.set()
        live = await chat.until("done")
        assert [frame["seq"] for frame in live] == [5, 6]
        assert joined(live) == "four"
        await chat.answer("b")
    assert [m.content for m in house.engine.calls[1].messages] == ["Hi", "onetwothreefour", "Hi"]
    assert house.ends[0].outcome == "finished"


@pytest.mark.parametrize("seed", range(3))
async def test_cut_anywhere_and_resumed_the_text_is_whole(house: House, seed: int) -> None:
    """Twenty random cuts a turn, some while the answer before it is still being replayed."""
    dice = random.Random(seed)
    steps: list[Any] = []
    gates = []
    for index, piece in enumerate(PIECES):
        if index % 3 == 0:
            gates.append(asyncio.Event())
            steps.append(gates[-1])
        steps.append(piece)
    house.engine.script(*steps)
    heard: list[dict[str, Any]] = []

    async def listen(chat: Chat, frames: int) -> bool:
        for _ in range(frames):
            if gates and dice.random() < 0.7:
                gates.pop(0).set()
            try:
                async with asyncio.timeout(0.02):
                    frame = await chat.frame()
            except TimeoutError:
                continue
            if "seq" in frame:
                heard.append(frame)
            if frame["type"] == "done":
                return True
        return False

    async with house.session() as chat:
        session = chat.ready["session"]
        await chat.say("a")
        await listen(chat, 2)
        chat.cut()
    done = False
    while not done:
        async with house.session() as chat:
            await resume(chat, session, heard[-1]["seq"] if heard else 0)
            done = await listen(chat, dice.randint(1, 8))
            if not done:
                chat.cut()
    assert joined(heard) == "".join(PIECES)
    assert [frame["seq"] for frame in heard] == list(range(1, len(PIECES) + 3))


async def test_two_hundred_sessions_resume_at_once(house: House) -> None:
    go = asyncio.Event()
    house.engine.answer = lambda call: ["x", go, call.messages[-1].content, "y"]

    async def one(number: int) -> None:
        async with house.session() as chat:
            session = chat.ready["session"]
            await chat.say("a", f"nonce{number}")
            last = (await chat.until("delta"))[-1]["seq"]
            chat.cut()
        go.set()
        async with house.session() as chat:
            await resume(chat, session, last)
            assert joined(await chat.until("done")) == f"nonce{number}y"

    async with asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(one(number))


async def test_a_finished_turn_is_heard_again_when_its_end_was_missed(house: House) -> None:
    more = asyncio.Event()
    house.engine.script("one", more, "two")
    async with house.session() as chat:
        session = chat.ready["session"]
        await chat.say("a")
        await chat.until("delta")
        chat.cut()
    await lost(house)
    more.set()
    await ended(house.engine.calls[0], "finished")
    async with house.session() as chat:
        await resume(chat, session, 0)
        await chat.frame("ready")
        frames = await chat.until("done")
        assert [frame["seq"] for frame in frames] == [1, 2, 3, 4]
        assert joined(frames) == "onetwo"
        await chat.answer("b")


async def test_a_connection_that_only_looks_open_is_taken_over(house: House) -> None:
    more = asyncio.Event()
    house.engine.script("one", more, "two")
    async with house.session() as old, house.session() as new:
        await old.say("a")
        await old.until("delta")
        await resume(new, old.ready["session"], 1)
        assert (await new.frame("ready"))["session"] == old.ready["session"]
        more.set()
        assert joined(await new.until("done")) == "onetwo"
        assert await old.closed() == (1000, "resumed elsewhere")
        await new.answer("b")
    await eventually(lambda: len(house.chat.sessions) == 0)


async def test_a_resumed_session_has_left_its_old_socket_for_good(house: House) -> None:
    """The old socket's late end does not take the session away from the new one."""
    async with house.session() as new:
        async with house.session() as old:
            await resume(new, old.ready["session"], 0)
            await new.frame("ready")
            await old.closed()
        await eventually(lambda: house.chat.open_sockets == 1)
        assert joined(await new.answer("a")) == "Hello, world."


@pytest.mark.parametrize("key", ["k1", "k2"])
async def test_only_the_same_tenant_finds_the_session(house: House, key: str) -> None:
    await house.open(keys=KeyRing(k1=Tenant(id="acme"), k2=Tenant(id="globex")))
    async with house.session(key="k1") as chat:
        session = chat.ready["session"]
        await chat.answer("a")
        chat.cut()
    await lost(house)
    async with house.session(key=key) as chat:
        await resume(chat, session, 0)
        if key == "k1":
            await chat.frame("ready")
        else:
            assert (await chat.error())["code"] == "session_not_found"
            await chat.answer("a")


async def test_unknown_expired_and_ended_sessions_are_not_found(house: House) -> None:
    await house.open(resume_seconds=50)
    async with house.session() as ended_chat:
        pass
    async with house.session() as expired:
        expired.cut()
    await lost(house)
    house.chat.sweep(asyncio.get_running_loop().time() + 51)
    async with house.session() as chat:
        for session in ("nobody", ended_chat.ready["session"], expired.ready["session"]):
            await resume(chat, session, 0)
            assert (await chat.error())["code"] == "session_not_found"
        await chat.answer("a")


async def test_a_resumed_session_does_not_expire(house: House) -> None:
    house.engine.script("one", FOREVER)
    async with house.session() as chat:
        await chat.say("a")
        await chat.until("delta")
        chat.cut()
    await lost(house)
    async with house.session() as again:
        await resume(again, chat.ready["session"], 2)
        await again.frame("ready")
        house.chat.sweep(asyncio.get_running_loop().time() + 1000)
        house.chat.sessions.find(chat.ready["session"], "acme")  # raises if it has
        await again.send("stop", id="a")
        assert (await again.frame("done"))["seq"] == 3


async def test_frames_that_are_no_longer_kept_cannot_be_missed(house: House) -> None:
    await house.open(replay_bytes=1000)
    house.engine.script(*["x" * 100] * 50)
    async with house.session() as chat:
        session = chat.ready["session"]
        await chat.answer("a")
        chat.cut()
    await lost(house)
    async with house.session() as chat:
        await resume(chat, session, 5)
        assert (await chat.error())["code"] == "session_not_found"
        await resume(chat, session, 1000)
        assert (await chat.error())["code"] == "invalid_frame"
        await resume(chat, session, 50)
        await chat.frame("ready")
        assert [frame["seq"] for frame in await chat.until("done")] == [51, 52]


async def test_resume_comes_before_the_first_message(house: House) -> None:
    house.engine.script(FOREVER)
    async with house.session() as lost_chat:
        lost_chat.cut()
    await lost(house)
    async with house.session() as chat:
        await chat.say("a")
        await chat.until("started")
        await resume(chat, lost_chat.ready["session"], 0)
        assert (await chat.error())["code"] == "busy"
        await resume(chat, chat.ready["session"], 0)
        assert (await chat.error())["code"] == "busy"


async def test_a_session_cannot_resume_itself(house: House) -> None:
    async with house.session() as chat:
        await resume(chat, chat.ready["session"], 0)
        assert (await chat.error())["code"] == "invalid_frame"


async def test_one_who_still_waits_hears_its_place_again(house: House) -> None:
    house.engine.script(Queued(position=5, eta_seconds=3.0), asyncio.Event())
    async with house.session() as chat:
        await chat.say("a")
        await chat.frame("queued")
        chat.cut()
    await lost(house)
    async with house.session() as again:
        await resume(again, chat.ready["session"], 0)
        await again.frame("ready")
        assert (await again.frame("queued"))["position"] == 5
        await again.send("stop", id="a")
        await again.frame("done")


async def test_the_oldest_lost_session_goes_when_there_are_too_many(house: House) -> None:
    await house.open(tenant=Tenant(id="acme", limits=Limits(connections=3)))
    sessions = []
    for _ in range(5):
        house.engine.script(FOREVER)
        async with house.session() as chat:
            sessions.append(chat.ready["session"])
            await chat.say("a")
            await chat.until("started")
            chat.cut()
        await eventually(lambda: house.chat.open_sockets == 0)
    assert house.chat.sessions.detached == 3
    assert [call.closed for call in house.engine.calls] == [True, True, False, False, False]
    async with house.session() as chat:
        await resume(chat, sessions[1], 0)
        assert (await chat.error())["code"] == "session_not_found"
        await resume(chat, sessions[2], 0)
        await chat.frame("ready")


async def test_where_it_is_turned_off_nothing_is_kept(house: House) -> None:
    await house.open(resume_seconds=0)
    async with house.session() as chat:
        chat.cut()
    await eventually(lambda: house.chat.open_sockets == 0)
    async with house.session() as again:
        await resume(again, chat.ready["session"], 0)
        assert (await again.error())["code"] == "session_not_found"
