"""The contract's table of server frames, row by row, over real sockets."""

from __future__ import annotations

import asyncio
import json

from app.engine.api import Queued
from app.errors import EngineDead, Internal, TimedOut
from app.tenants.model import Tenant
from tests.chat.house import SESSIONS, House, KeyRing, joined
from tests.scripted_engine import FOREVER, STARTED, ScriptedEngine

ACME = Tenant(id="acme")


class TestReady:
    async def test_on_connect_where_there_are_no_keys(self, house: House) -> None:
        async with house.connect(SESSIONS) as chat:
            ready = await chat.frame()
        assert ready == {"type": "ready", "session": ready["session"], "model": "scripted"}

    async def test_on_connect_where_the_header_has_the_key(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME))
        async with house.session(key="k1") as chat:
            await chat.answer("a")

    async def test_on_connect_where_the_subprotocol_has_the_key(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME))
        async with house.connect(SESSIONS, "bearer.k1") as chat:
            await chat.frame("ready")
            assert chat.client.subprotocol == SESSIONS
            assert "k1" not in str(chat.client.response and chat.client.response.headers)

    async def test_without_subprotocol_a_json_first_frame_brings_it(self, house: House) -> None:
        async with house.connect() as chat:
            assert chat.client.subprotocol is None
            await chat.say("a")
            assert [frame["type"] for frame in await chat.until("started")] == ["ready", "started"]
            await chat.until("done")

    async def test_session_ids_cannot_be_guessed(self, house: House) -> None:
        ids = set()
        for _ in range(5):
            async with house.session() as chat:
                ids.add(chat.ready["session"])
        assert len(ids) == 5
        assert all(len(session) >= 32 for session in ids)


class TestQueued:
    async def test_at_once_when_the_turn_has_to_wait(self, house: House) -> None:
        go = asyncio.Event()
        house.engine.script(Queued(position=4, eta_seconds=1.234), go, "x")
        async with house.session() as chat:
            await chat.say("a")
            assert await chat.frame() == {
                "type": "queued",
                "id": "a",
                "position": 4,
                "eta_seconds": 1.23,
            }
            go.set()
            await chat.frame("started")

    async def test_a_turn_that_need_not_wait_hears_nothing(self, house: House) -> None:
        async with house.session() as chat:
            assert "queued" not in {frame["type"] for frame in await chat.answer("a")}

    async def test_many_changes_make_few_frames_and_the_last_is_told(self, house: House) -> None:
        """Twice a second at most, and what changed in between is not lost."""
        steps = [Queued(position=position, eta_seconds=1.0) for position in range(9, 1, -1)]
        house.engine.script(*steps, FOREVER)
        house.engine.script(*steps, asyncio.Event())
        async with house.session() as chat:
            await chat.say("a")
            assert [f["type"] for f in await chat.until("started")] == ["queued", "started"]
            await chat.send("stop", id="a")
            await chat.frame("done")
            await chat.say("b")
            assert (await chat.frame("queued"))["position"] == 9
            assert (await chat.frame("queued"))["position"] == 2


class TestNumbered:
    async def test_started_says_how_long_it_waited(self, house: House) -> None:
        async with house.session() as chat:
            started = (await chat.answer("a"))[0]
        assert set(started) == {"type", "id", "seq", "queue_seconds"}
        assert started["queue_seconds"] >= 0

    async def test_delta_carries_text_as_it_is(self, house: House) -> None:
        pieces = ("\U0001fae0\u9f9c", ' "quoted"\\\n', "\u2028\x01 \u0928\u092e", "</script>")
        house.engine.script(*pieces)
        async with house.session() as chat:
            frames = await chat.answer("a")
        deltas = [frame for frame in frames if frame["type"] == "delta"]
        assert [delta["text"] for delta in deltas] == list(pieces)
        assert all(set(delta) == {"type", "id", "seq", "text"} for delta in deltas)

    async def test_done_has_reason_usage_and_timing(self, house: House) -> None:
        async with house.session() as chat:
            done = (await chat.answer("a", "What is it?"))[-1]
            cut = (await chat.answer("b", max_tokens=2))[-1]
        assert set(done) == {"type", "id", "seq", "finish_reason", "usage", "timing"}
        assert done["finish_reason"] == "stop"
        assert done["usage"] == {"prompt_tokens": 4, "cached_tokens": 0, "completion_tokens": 4}
        assert set(done["timing"]) == {"queue_seconds", "ttft_seconds", "total_seconds"}
        assert (cut["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 2)

    async def test_seq_counts_up_over_everything_that_counts(self, house: House) -> None:
        more = asyncio.Event()
        house.engine.script(Queued(position=1, eta_seconds=1.0), "one", more, "two")
        async with house.session() as chat:
            await chat.client.send("nonsense")
            frames = [await chat.error()]
            await chat.say("a")
            frames += await chat.until("delta")
            await chat.say("b")
            await chat.send("ping")
            frames += await chat.until("pong")
            more.set()
            frames += await chat.until("done")
            frames += await chat.answer("c")
        counted = ("started", "delta", "done", "error")
        numbers = [frame["seq"] for frame in frames if frame["type"] in counted]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all("seq" not in frame for frame in frames if frame["type"] not in counted)

    async def test_ids_are_the_clients_whatever_they_hold(self, house: House) -> None:
        async with house.session() as chat:
            frames = await chat.answer('"}\\ \u00e9')
        assert {frame["id"] for frame in frames} == {'"}\\ \u00e9'}


class TestErrors:
    async def test_an_engine_that_fails_midway_is_an_error_not_an_end(self, house: House) -> None:
        house.engine.script("one", "two", Internal("it broke"))
        async with house.session() as chat:
            frames = await chat.answer("a", "Hi")
            assert [f["type"] for f in frames] == ["started", "delta", "delta", "error"]
            assert (frames[-1]["id"], frames[-1]["code"]) == ("a", "internal")
            assert joined(await chat.answer("b", "Again")) == "Hello, world."
        assert [m.content for m in house.engine.calls[1].messages] == ["Again"]
        assert (house.ends[0].outcome, house.ends[0].code) == ("failed", "internal")

    async def test_what_nobody_expected_is_internal_and_says_nothing(self, house: House) -> None:
        house.engine.script("one", RuntimeError("secret: the prompt"))
        async with house.session() as chat:
            error = (await chat.answer("a"))[-1]
            assert error["code"] == "internal"
            assert "secret" not in error["message"]
            await chat.answer("b")

    async def test_a_turn_over_its_time_ends_with_timeout(self, house: House) -> None:
        house.deadline_seconds = 600
        house.engine.script("one", TimedOut("too long"))
        async with house.session() as chat:
            assert (await chat.answer("a"))[-1]["code"] == "timeout"
            await chat.answer("b")
        assert (house.ends[0].outcome, house.ends[0].code) == ("failed", "timeout")
        assert house.ends[0].work.deadline_seconds == house.ends[0].work.arrived_seconds + 600

    async def test_a_dead_engine_is_told_and_the_socket_closes_1011(self, house: House) -> None:
        house.engine.script("one", EngineDead("the engine has died"))
        async with house.session() as chat:
            error = (await chat.answer("a"))[-1]
            assert (error["id"], error["code"]) == ("a", "engine_dead")
            assert await chat.closed() == (1011, "engine_dead")
        assert (house.end.outcome, house.end.code) == ("failed", "engine_dead")

    async def test_an_engine_that_ends_without_an_end_is_not_a_success(self, house: House) -> None:
        class Forgetful(ScriptedEngine):
            async def generate(self, prompt, options, work):
                async for event in super().generate(prompt, options, work):
                    if type(event).__name__ != "End":
                        yield event

        await house.open(engine=Forgetful())
        async with house.session() as chat:
            assert (await chat.answer("a"))[-1]["code"] == "internal"
        assert house.end.outcome == "failed"

    async def test_a_render_that_fails_is_an_error_of_the_turn(self, house: House) -> None:
        house.engine.render_error = RuntimeError("no template")
        async with house.session() as chat:
            assert (await chat.answer("a"))[-1]["code"] == "internal"
            house.engine.render_error = None
            await chat.answer("b")


class TestTrimmed:
    async def test_the_oldest_turns_go_and_the_system_message_stays(self, house: House) -> None:
        await house.open(engine=ScriptedEngine(context_tokens=64))
        house.engine.answer = lambda _: ["five words of my answer"]
        async with house.session() as chat:
            await chat.send("start", system="S", options={"max_tokens": 10})
            await chat.frame("ready")
            frames = []
            for number in range(12):
                frames += await chat.answer(f"t{number}", f"question {number}")
        trimmed = [frame for frame in frames if frame["type"] == "trimmed"]
        assert trimmed
        assert set(trimmed[0]) == {"type", "id", "turns"}
        last = house.engine.calls[-1].messages
        assert (last[0].role, last[0].content) == ("system", "S")
        assert last[1].content == f"question {sum(frame['turns'] for frame in trimmed)}"
        assert [message.role for message in last[1:3]] == ["user", "assistant"]
        assert all(len(call.prompt.token_ids) <= 54 for call in house.engine.calls)


async def test_frames_are_compact_strict_json(house: House) -> None:
    async with house.session() as chat:
        await chat.say("a")
        for _ in range(6):
            text = await chat.text()
            assert json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) == text


async def test_a_failure_after_started_but_before_text(house: House) -> None:
    house.engine.script(STARTED, Internal("broke"))
    async with house.session() as chat:
        assert [f["type"] for f in await chat.answer("a")] == ["started", "error"]
