from __future__ import annotations

import asyncio

from app.engine.api import Queued
from app.errors import Draining, EngineDead, QueueFull
from tests.scripted_engine import FOREVER, STARTED
from tests.summaries.house import SUMMARY, TEXT, House, limits_with


async def test_events_come_in_order_and_deltas_joined_are_the_summary(house: House) -> None:
    async with house.stream({"text": TEXT}) as stream:
        events = await stream.rest()
    assert stream.status == 200
    names = [name for name, _ in events]
    assert names[0] == "plan"
    assert names[-2:] == ["fragment", "done"]
    assert set(names[1:-2]) == {"delta"}
    plan, done = events[0][1], events[-1][1]
    assert (plan["chunks"], plan["levels"], plan["calls"]) == (1, 1, 1)
    (call,) = house.engine.calls
    assert plan["tokens"] == len(call.prompt.token_ids) + call.options.max_tokens
    text = "".join(data["text"] for name, data in events if name == "delta")
    assert text == done["summary"] == "The council closes the market hall. Traders move in June."
    whole = (await house.post({"text": TEXT})).json
    for answer in (done, whole):
        answer.pop("timing")
    assert done == whole
    assert [end.outcome for end in house.ends] == ["finished", "finished"]
    assert [end.work.streamed for end in house.ends] == [True, False]


async def test_no_proxy_may_hold_the_stream_back(house: House) -> None:
    async with house.stream({"text": TEXT}) as stream:
        await stream.rest()
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-cache, no-transform"
    assert stream.headers["x-accel-buffering"] == "no"


async def test_a_sentence_is_sent_before_the_next_is_written(house: House) -> None:
    go_on = asyncio.Event()
    first = f"The council {'has voted ' * 9}to close the hall. Now"
    house.engine.script(first, " what will be done", go_on, " next.")
    async with house.stream({"text": TEXT}) as stream:
        assert (await stream.next())[0] == "plan"
        name, data = await stream.next()
        assert (name, data["text"]) == ("delta", first.removesuffix(" Now"))
        go_on.set()
        await stream.rest()


async def test_while_it_waits_its_place_is_told_every_few_seconds(house: House) -> None:
    house.limits = limits_with(silence_seconds=0.02)
    turn, end = asyncio.Event(), asyncio.Event()
    house.engine.script(Queued(position=3, eta_seconds=1.25), turn, STARTED, end, *SUMMARY)
    async with house.stream({"text": TEXT}) as stream:
        assert (await stream.next())[0] == "plan"
        for _ in range(2):
            assert await stream.next() == (":", "queued position=3 eta=1.2")
        turn.set()
        while (comment := await stream.next())[1] != "working":
            assert comment[0] == ":"
        end.set()
        assert [name for name, _ in await stream.rest() if name != ":"][-1] == "done"


async def test_a_failure_after_the_status_line_is_an_error_event_and_the_last(
    house: House,
) -> None:
    long = "The council has voted to close the old market hall by the bridge at the end of May. "
    house.engine.script(long, long, EngineDead("the engine died", retry_after_seconds=7))
    async with house.stream({"text": TEXT}) as stream:
        events = await stream.rest()
    name, data = events[-1]
    assert name == "error"
    assert data["error"]["code"] == "engine_dead"
    assert data["retry_after_seconds"] == 7
    assert "done" not in [name for name, _ in events]
    assert (house.end.outcome, house.end.code) == ("failed", "engine_dead")


async def test_a_refusal_while_it_waits_is_told_in_the_stream(house: House) -> None:
    house.engine.script(Queued(position=3, eta_seconds=1.0), Draining("bye"))
    async with house.stream({"text": TEXT}) as stream:
        events = await stream.rest()
    assert stream.status == 200
    assert [name for name, _ in events] == ["plan", "error"]


async def test_a_refusal_before_any_event_keeps_its_status(house: House) -> None:
    house.engine.script(QueueFull("full", retry_after_seconds=4))
    async with house.stream({"text": TEXT}) as stream:
        assert (stream.status, stream.headers["retry-after"]) == (429, "4")


async def test_documents_stream_side_by_side_each_under_its_number(house: House) -> None:
    documents = [{"id": "a", "text": TEXT}, {"text": ""}, {"id": "c", "text": TEXT}]
    async with house.stream({"documents": documents}) as stream:
        events = await stream.rest()
    assert events[0][1]["documents"] == 3
    done = events[-1][1]
    for index in (0, 2):
        text = "".join(d["text"] for n, d in events if n == "delta" and d["document"] == index)
        assert text == done["results"][index]["summary"]
    results = {data["document"]: data for name, data in events if name == "result"}
    assert [results[index] for index in range(3)] == done["results"]
    assert "error" in results[1]


async def test_a_short_text_streams_without_the_engine(house: House) -> None:
    async with house.stream({"text": "Two words"}) as stream:
        events = await stream.rest()
    assert [name for name, _ in events] == ["plan", "delta", "fragment", "done"]
    assert events[0][1]["calls"] == 0


async def test_line_separators_in_a_text_do_not_break_a_line(house: House) -> None:
    house.engine.script("One\u2028two\u0085three\u2029four.")
    async with house.stream({"text": TEXT}) as stream:
        events = await stream.rest()
    assert events[-1][1]["summary"] == "One\u2028two\u0085three\u2029four."


async def test_a_long_silence_alone_does_not_end_a_stream(house: House) -> None:
    house.limits = limits_with(silence_seconds=0.01)
    house.engine.script(STARTED, FOREVER)
    async with house.stream({"text": TEXT}) as stream:
        await stream.next()
        assert [await stream.next() for _ in range(5)] == [(":", "working")] * 5
