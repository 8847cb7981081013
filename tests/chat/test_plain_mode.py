"""Plain mode of the contract: one message, pieces of text, a close code."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.engine.api import Queued
from app.errors import EngineDead, FairgateError, Internal, NotFound, QueueFull, TimedOut
from app.tenants.model import Limits, Tenant
from tests.chat.house import SESSIONS, House, KeyRing, ended
from tests.scripted_engine import FOREVER


async def exchange(
    house: House, message: str, **options: Any
) -> tuple[list[str], int | None, str | None]:
    async with house.connect(**options) as chat:
        await chat.client.send(message)
        return await chat.rest(), chat.client.close_code, chat.client.close_reason


@pytest.mark.parametrize(
    "message",
    ["What is gravity?", "[1, 2]", "42", '{"no": "kind"}', "{broken", '"type"', "[" * 5000],
    ids=["text", "list", "number", "object", "no json", "string", "deep list"],
)
async def test_whatever_is_no_object_with_a_type_is_a_message(house: House, message: str) -> None:
    pieces, code, reason = await exchange(house, message)
    assert pieces == ["Hello", ", ", "world", "."]
    assert (code, reason) == (1000, "")
    (sent,) = house.engine.calls[0].messages
    assert (sent.role, sent.content) == ("user", message)
    assert (house.end.outcome, house.end.work.api) == ("finished", "chat")


async def test_at_most_128_tokens_are_made(house: House) -> None:
    house.engine.script(*["x"] * 200)
    pieces, code, _ = await exchange(house, "Hi")
    assert (len(pieces), code) == (128, 1000)


@pytest.mark.parametrize(("limit", "most"), [(5, 5), (500, 128)])
async def test_a_lower_limit_of_the_tenant_holds(house: House, limit: int, most: int) -> None:
    await house.open(tenant=Tenant(id="acme", limits=Limits(output_tokens=limit)))
    await exchange(house, "Hi")
    assert house.engine.calls[0].options.max_tokens == most


@pytest.mark.parametrize(
    ("problem", "code", "outcome"),
    [
        (QueueFull("full"), 1013, "rejected"),
        (NotFound("none"), 1008, "rejected"),
        (EngineDead("dead"), 1011, "rejected"),
        (Internal("ours"), 1011, "failed"),
        (RuntimeError("ours"), 1011, "failed"),
    ],
)
async def test_a_refusal_is_the_close_code_and_nothing_else(
    house: House, problem: Exception, code: int, outcome: str
) -> None:
    house.engine.script(problem)
    reason = problem.code if isinstance(problem, FairgateError) else "internal"
    assert await exchange(house, "Hi") == ([], code, reason)
    assert (house.end.outcome, house.end.code) == (outcome, reason)


async def test_a_failure_midway_does_not_look_like_an_end(house: House) -> None:
    house.engine.script("one", TimedOut("too long"))
    assert await exchange(house, "Hi") == (["one"], 1008, "timeout")


async def test_an_empty_message_is_refused(house: House) -> None:
    assert await exchange(house, "") == ([], 1008, "invalid_request")
    assert not house.engine.calls


async def test_a_key_in_the_header_is_enough(house: House) -> None:
    await house.open(keys=KeyRing(k1=Tenant(id="acme")))
    pieces, code, _ = await exchange(house, "Hi", key="k1")
    assert ("".join(pieces), code) == ("Hello, world.", 1000)
    assert house.end.work.tenant == "acme"


async def test_without_a_key_there_is_no_plain_mode(house: House) -> None:
    await house.open(keys=KeyRing(k1=Tenant(id="acme")))
    assert await exchange(house, "Hi") == ([], 1008, "invalid_api_key")
    assert not house.engine.calls


async def test_with_the_subprotocol_text_is_no_message_but_a_bad_frame(house: House) -> None:
    async with house.connect(SESSIONS) as chat:
        await chat.frame("ready")
        await chat.client.send("What is gravity?")
        assert (await chat.error())["code"] == "invalid_frame"


async def test_nothing_but_text_is_sent_while_it_waits(house: House) -> None:
    house.engine.script(Queued(position=2, eta_seconds=1.0), "x")
    assert await exchange(house, "Hi") == (["x"], 1000, "")


async def test_later_frames_are_ignored(house: House) -> None:
    more = asyncio.Event()
    house.engine.script("one", more, "two")
    async with house.connect() as chat:
        await chat.client.send("Hi")
        assert await chat.text() == "one"
        await chat.client.send("And another thing")
        await chat.client.send('{"type":"ping"}')
        more.set()
        assert await chat.rest() == ["two"]
        assert chat.client.close_code == 1000
    assert len(house.engine.calls) == 1


async def test_a_client_that_leaves_ends_the_answer(house: House) -> None:
    house.engine.script("one", FOREVER)
    async with house.connect() as chat:
        await chat.client.send("Hi")
        assert await chat.text() == "one"
        chat.cut()
        await ended(house.engine.calls[0], "closed")
    assert (house.end.outcome, house.end.code) == ("aborted", None)


async def test_half_a_surrogate_pair_cannot_come_in_plain_text(house: House) -> None:
    """Text frames are UTF-8, so what stands in them is whole; escapes are no escapes here."""
    await exchange(house, "\\ud83d")
    assert house.engine.calls[0].messages[0].content == "\\ud83d"
