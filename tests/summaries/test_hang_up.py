from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from app.engine.api import Queued
from app.errors import Internal
from app.summaries.hang_up import ClientGone, alongside, raise_when_gone
from tests.fakes import settle
from tests.scripted_engine import FOREVER, STARTED, Step
from tests.summaries.house import SUMMARY, TEXT, House, limits_with


async def leave(house: House, body: Any, *, calls: int) -> None:
    """Send a request, and hang up once that many engine calls have begun."""
    writer = await opened(house, body)
    await house.engine.nth_call(calls - 1)
    await settle()
    await hang_up(house, writer)


async def opened(house: House, body: Any, *, cut: int | None = None) -> asyncio.StreamWriter:
    """A connection whose request is inside, or at least `cut` bytes of its body."""
    arrived = house.arrived
    port = int(house.url.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps(body).encode()
    writer.write(
        b"POST /summarize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(raw)
    )
    writer.write(raw[:cut])
    while house.arrived == arrived:  # noqa: ASYNC110 - a count that nobody announces
        await asyncio.sleep(0)
    return writer


async def hang_up(house: House, writer: asyncio.StreamWriter) -> None:
    """Reset the connection, and wait until the server is done with it."""
    writer.transport.abort()
    while house.visits:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        [asyncio.Event()],
        [Queued(position=2, eta_seconds=5.0), asyncio.Event()],
        [STARTED, FOREVER],
        [*SUMMARY, FOREVER],
    ],
    ids=["before any event", "queued", "started", "writing"],
)
async def test_a_client_that_leaves_stops_its_work(
    house: House, script: list[Step], *, stream: bool
) -> None:
    house.engine.script(*script)
    await leave(house, {"text": TEXT, "stream": stream}, calls=1)
    (call,) = house.engine.calls
    assert call.closed
    assert house.end.outcome == "aborted"


async def test_a_client_that_leaves_stops_all_its_documents_and_starts_no_more(
    house: House,
) -> None:
    house.engine.answer = lambda _: [STARTED, FOREVER]
    await leave(house, {"documents": [{"text": TEXT}] * 20}, calls=8)
    assert len(house.engine.calls) == 8
    assert all(call.closed for call in house.engine.calls)
    assert house.end.outcome == "aborted"


async def test_a_client_that_leaves_while_it_uploads_is_counted_once(house: House) -> None:
    writer = await opened(house, {"text": TEXT}, cut=20)
    await hang_up(house, writer)
    assert not house.engine.calls
    assert house.end.outcome == "aborted"


async def test_hanging_up_at_any_moment_leaves_nothing_running(house: House) -> None:
    rng = random.Random(4)

    def slow(_: object) -> list[Step]:
        words = (f"Word {n} is {n * n}. " for n in range(20))
        return [Queued(position=1, eta_seconds=0.1), STARTED, *words, FOREVER]

    house.engine.answer = slow
    for round_ in range(50):
        body = {
            "documents": [{"text": f"{TEXT * 20} {n}"} for n in range(3)],
            "stream": round_ % 2 > 0,
        }
        writer = await opened(house, body)
        for _ in range(rng.randrange(120)):
            await asyncio.sleep(0)
        await hang_up(house, writer)
        assert not house.engine.running
        assert len(house.ends) == round_ + 1
    assert {end.outcome for end in house.ends} == {"aborted"}
    house.engine.script(*SUMMARY)
    assert (await house.post({"text": TEXT})).status == 200


async def test_work_that_ends_first_ends_its_companions() -> None:
    ended = []

    async def companion() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await alongside(work(), companion(), companion()) == 7
    assert ended == [True, True]


async def test_the_error_of_the_work_comes_out_as_itself() -> None:
    async def work() -> None:
        raise Internal("mine")

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(Internal, match="mine"):
        await alongside(work(), raise_when_gone(receive))


async def test_that_the_client_left_counts_more_than_what_broke_because_of_it() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise Internal("while cleaning up")

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await alongside(work(), raise_when_gone(receive))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reader_that_does_not_read_is_given_up(house: House, *, stream: bool) -> None:
    """The full buffer takes no farewell: the answer ends, and so does its work in the engine."""
    house.limits = limits_with(write_seconds=0.02)
    house.engine.script("The hall closes. " + "It is old and its roof leaks badly. " * 3, *SUMMARY)
    raw = json.dumps({"text": TEXT * 3, "stream": stream}).encode()
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        if not sent:
            sent.append("request")
            return {"type": "http.request", "body": raw, "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/summarize",
        "raw_path": b"/summarize",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    async with asyncio.timeout(10):
        await house(scope, receive, send)
    assert not house.engine.running
    assert (house.end.outcome, house.end.code) == ("aborted", "too_slow")
    assert sent.count("http.response.start") == 1
