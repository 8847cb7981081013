"""The contract's table of client frames, row by row, over real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.engine.api import Queued
from app.errors import QueueFull
from app.tenants.model import Limits, Tenant
from tests.chat.house import SESSIONS, House, KeyRing, ended, joined
from tests.scripted_engine import FOREVER, ScriptedEngine

ACME, GLOBEX = Tenant(id="acme"), Tenant(id="globex")


def said(house: House, call: int = -1) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in house.engine.calls[call].messages]


class TestHello:
    async def test_hello_with_a_key_is_answered_by_ready(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME))
        async with house.connect(SESSIONS) as chat:
            await chat.send("hello", key="k1")
            ready = await chat.frame("ready")
            assert ready["session"]
            assert ready["model"] == "scripted"
            assert joined(await chat.answer("a")) == "Hello, world."
        assert house.end.work.tenant == "acme"

    async def test_a_wrong_key_is_told_and_closed_1008(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME))
        async with house.connect(SESSIONS) as chat:
            await chat.send("hello", key="k2")
            error = await chat.error()
            assert error["code"] == "invalid_api_key"
            assert "k2" not in error["message"]
            assert await chat.closed() == (1008, "invalid_api_key")

    async def test_another_frame_before_hello_closes_1008(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME))
        async with house.connect(SESSIONS) as chat:
            await chat.say("a")
            assert (await chat.error())["code"] == "invalid_api_key"
            assert await chat.closed() == (1008, "invalid_api_key")
        assert not house.engine.calls

    @pytest.mark.parametrize("subprotocol", [True, False])
    async def test_nobody_reads_a_long_frame_of_someone_unknown(
        self, house: House, subprotocol: bool
    ) -> None:
        await house.open(keys=KeyRing(k1=ACME))
        async with house.connect(*[SESSIONS] * subprotocol) as chat:
            await chat.send("ping", x="x" * 5000)
            assert await chat.closed() == (1008, "invalid_api_key")

    async def test_without_hello_in_time_the_socket_closes_1008(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME), hello_seconds=0.05)
        async with house.connect(SESSIONS) as chat:
            assert (await chat.error())["code"] == "invalid_api_key"
            assert await chat.closed() == (1008, "invalid_api_key")
        async with house.connect() as chat:
            assert await chat.rest() == []
            assert chat.client.close_code == 1008

    async def test_pings_do_not_put_the_hello_off(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME), hello_seconds=0.2)
        async with house.connect(SESSIONS) as chat:
            await chat.send("ping")
            await chat.frame("pong")
            assert await chat.closed() == (1008, "invalid_api_key")

    async def test_after_hello_there_is_no_time_limit(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME), hello_seconds=0.1)
        async with house.connect(SESSIONS) as chat:
            await chat.send("hello", key="k1")
            await chat.frame("ready")
            await asyncio.sleep(0.15)
            assert joined(await chat.answer("a")) == "Hello, world."

    async def test_a_bad_frame_before_hello_is_forgiven(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME))
        async with house.connect(SESSIONS) as chat:
            await chat.client.send("nonsense")
            assert (await chat.error())["code"] == "invalid_frame"
            await chat.send("hello", key="k1")
            await chat.frame("ready")

    async def test_hello_where_the_key_is_known_says_ready_again(self, house: House) -> None:
        async with house.session() as chat:
            await chat.send("hello", key="whatever")
            assert await chat.frame("ready") == chat.ready

    async def test_hello_as_a_first_frame_without_subprotocol_is_greeted_once(
        self, house: House
    ) -> None:
        async with house.connect() as chat:
            await chat.send("hello", key="whatever")
            await chat.frame("ready")
            await chat.send("ping")
            await chat.frame("pong")

    async def test_a_socket_cannot_change_hands(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=ACME, k2=GLOBEX))
        async with house.session(key="k1") as chat:
            await chat.send("hello", key="k2")
            assert (await chat.error())["code"] == "invalid_frame"
            await chat.send("hello", key="nobody's")
            assert (await chat.error())["code"] == "invalid_api_key"
            await chat.answer("a")
        assert house.end.work.tenant == "acme"

    async def test_a_tenant_of_class_batch_stays_batch_by_hello(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=Tenant(id="night", work_class="batch")))
        async with house.connect(SESSIONS) as chat:
            await chat.send("hello", key="k1")
            await chat.frame("ready")
            await chat.answer("a")
        assert house.end.work.work_class == "batch"


class TestStart:
    async def test_start_sets_system_history_and_options(self, house: House) -> None:
        async with house.session() as chat:
            history = [
                {"role": "user", "content": "One?"},
                {"role": "assistant", "content": "Two."},
            ]
            await chat.send(
                "start", system="Be brief.", history=history, options={"temperature": 0.5}
            )
            assert await chat.frame("ready") == chat.ready
            await chat.answer("a", "Three?")
        assert said(house) == [
            ("system", "Be brief."),
            ("user", "One?"),
            ("assistant", "Two."),
            ("user", "Three?"),
        ]
        assert house.engine.calls[0].options.temperature == 0.5

    async def test_start_chooses_the_model(self, house: House) -> None:
        await house.open(engine=ScriptedEngine(adapters=("poet",)))
        async with house.session() as chat:
            await chat.send("start", model="poet")
            assert (await chat.frame("ready"))["model"] == "poet"
            await chat.answer("a")
        assert house.engine.calls[0].prompt.model == "poet"

    @pytest.mark.parametrize(("name", "models"), [("nobody", None), ("poet", {"base"})])
    async def test_a_model_that_the_tenant_has_not_is_not_found(
        self, house: House, name: str, models: Any
    ) -> None:
        tenant = Tenant(id="acme", models=None if models is None else frozenset(models))
        await house.open(tenant=tenant, engine=ScriptedEngine(adapters=("poet",)))
        async with house.session() as chat:
            await chat.send("start", model=name)
            assert (await chat.error())["code"] == "not_found"
            assert joined(await chat.answer("a")) == "Hello, world."

    async def test_a_tenant_without_the_base_model_gets_its_first_adapter(
        self, house: House
    ) -> None:
        await house.open(
            tenant=Tenant(id="acme", models=frozenset({"poet"})),
            engine=ScriptedEngine(adapters=("clerk", "poet")),
        )
        async with house.session() as chat:
            assert chat.ready["model"] == "poet"

    async def test_start_after_the_first_message_is_refused(self, house: House) -> None:
        async with house.session() as chat:
            await chat.answer("a")
            await chat.send("start", system="Now what?")
            assert (await chat.error())["code"] == "invalid_frame"
            await chat.answer("b")
        assert said(house)[0] == ("user", "Hi")

    async def test_a_second_start_replaces_the_first(self, house: House) -> None:
        async with house.session() as chat:
            await chat.send("start", system="A")
            await chat.frame("ready")
            await chat.send("start", system="B")
            await chat.frame("ready")
            await chat.answer("a")
        assert said(house)[0] == ("system", "B")


class TestMessage:
    async def test_turns_build_a_history(self, house: House) -> None:
        house.engine.script("Yes", ".")
        async with house.session() as chat:
            await chat.send("start", system="S")
            await chat.frame("ready")
            await chat.answer("a", "First?")
            await chat.answer("b", "Second?")
        assert said(house) == [
            ("system", "S"),
            ("user", "First?"),
            ("assistant", "Yes."),
            ("user", "Second?"),
        ]

    async def test_content_may_be_a_list_of_text_parts(self, house: House) -> None:
        async with house.session() as chat:
            parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
            await chat.send("message", id="1", content=parts)
            await chat.until("done")
            await chat.send("message", id="2", content=[])
            await chat.until("done")
            await chat.send("message", id="3", content=[{"type": "image_url"}])
            error = await chat.error()
            assert (error["code"], error["id"]) == ("invalid_frame", "3")
            assert "content[0]" in error["message"]
        assert said(house, 0) == [("user", "ab")]
        assert said(house, 1)[-1] == ("user", "")

    async def test_max_tokens_defaults_to_1024(self, house: House) -> None:
        async with house.session() as chat:
            await chat.answer("a")
        assert house.engine.calls[0].options.max_tokens == 1024

    @pytest.mark.parametrize(("asked", "got"), [({}, 7), ({"max_tokens": 9}, 7)])
    async def test_the_tenants_output_tokens_bound_every_turn(
        self, house: House, asked: dict[str, Any], got: int
    ) -> None:
        await house.open(tenant=Tenant(id="acme", limits=Limits(output_tokens=7)))
        async with house.session() as chat:
            await chat.answer("a", **asked)
        assert house.engine.calls[0].options.max_tokens == got

    async def test_options_of_a_message_go_over_those_of_start(self, house: House) -> None:
        async with house.session() as chat:
            await chat.send("start", options={"temperature": 0.1, "seed": 1, "stop": "x"})
            await chat.frame("ready")
            await chat.answer("a", temperature=0.9, max_tokens=5)
            await chat.answer("b")
        first, second = (call.options for call in house.engine.calls)
        assert (first.temperature, first.seed, first.stop, first.max_tokens) == (0.9, 1, ("x",), 5)
        assert (second.temperature, second.seed, second.max_tokens) == (0.1, 1, 1024)

    async def test_a_second_message_while_one_runs_is_busy(self, house: House) -> None:
        more = asyncio.Event()
        house.engine.script("one", more, "two")
        async with house.session() as chat:
            await chat.say("a")
            await chat.until("delta")
            await chat.say("b")
            error = await chat.error()
            assert (error["id"], error["code"]) == ("b", "busy")
            more.set()
            frames = await chat.until("done")
            assert joined(frames) == "two"
            assert {frame["id"] for frame in frames} == {"a"}
        assert len(house.engine.calls) == 1

    async def test_of_a_burst_one_message_runs_and_the_rest_is_refused(self, house: House) -> None:
        more = asyncio.Event()
        house.engine.script(more, "done")
        async with house.session() as chat:
            for number in range(20):
                await chat.say(f"m{number}")
            refused = [(await chat.error())["id"] for _ in range(19)]
            assert refused == [f"m{number}" for number in range(1, 20)]
            more.set()
            assert joined(await chat.until("done")) == "done"
        assert len(house.engine.calls) == 1

    async def test_each_turn_is_a_request_of_its_own(self, house: House) -> None:
        async with house.session() as chat:
            await chat.answer("a")
            await chat.answer("b")
        ids = [ended.work.request_id for ended in house.ends]
        assert ids == ["r1-1", "r1-2"]
        assert [ended.outcome for ended in house.ends] == ["finished", "finished"]
        first, second = house.ends
        assert first.work.arrived_seconds < second.work.arrived_seconds

    async def test_the_class_of_the_handshake_holds_for_all_turns(self, house: House) -> None:
        async with house.session(headers={"x-fairgate-class": "batch"}) as chat:
            await chat.answer("a")
        assert house.end.work.work_class == "batch"
        assert house.end.work.api == "chat"


class TestStop:
    async def test_what_was_said_stays_in_the_history(self, house: House) -> None:
        house.engine.script("As I ", "said", FOREVER)
        async with house.session() as chat:
            await chat.say("a", "Tell me.")
            frames = await chat.until("delta")
            frames.append(await chat.frame("delta"))
            await chat.send("stop", id="a")
            done = await chat.frame("done")
            assert done["finish_reason"] == "stopped"
            assert done["usage"] == {
                "prompt_tokens": 3,
                "cached_tokens": 0,
                "completion_tokens": 2,
            }
            assert done["timing"]["total_seconds"] >= done["timing"]["ttft_seconds"] >= 0
            await chat.answer("b", "Go on.")
        assert said(house) == [
            ("user", "Tell me."),
            ("assistant", "As I said"),
            ("user", "Go on."),
        ]
        assert house.engine.calls[0].closed
        assert (house.ends[0].outcome, house.ends[0].code) == ("aborted", None)

    async def test_the_next_message_runs_even_right_behind_the_stop(self, house: House) -> None:
        """The engine has let go of the first before it is asked for the second."""
        house.engine.script("one", FOREVER)
        house.engine.answer = lambda call: [str(house.engine.calls[0].closed)]
        async with house.session() as chat:
            await chat.say("a")
            await chat.until("delta")
            await chat.send("stop", id="a")
            await chat.say("c")
            frames = await chat.until("done") + await chat.until("done")
        assert [(frame["id"], frame["type"]) for frame in frames] == [
            ("a", "done"),
            ("c", "started"),
            ("c", "delta"),
            ("c", "done"),
        ]
        assert frames[2]["text"] == "True"

    async def test_a_waiting_turn_can_be_stopped_and_was_never_said(self, house: House) -> None:
        house.engine.script(Queued(position=3, eta_seconds=9.0), FOREVER)
        house.engine.script(Queued(position=1, eta_seconds=1.0), asyncio.Event())
        async with house.session() as chat:
            await chat.say("a", "Never mind.")
            await chat.until("started")
            await chat.send("stop", id="a")
            await chat.frame("done")
            await chat.say("b", "Never mind that either.")
            await chat.frame("queued")
            await chat.send("stop", id="b")
            assert (await chat.frame("done"))["usage"]["completion_tokens"] == 0
            await chat.answer("c", "Hi")
        assert said(house) == [("user", "Hi")]

    async def test_stopping_what_has_just_ended_is_no_error(self, house: House) -> None:
        async with house.session() as chat:
            await chat.answer("a")
            await chat.send("stop", id="a")
            await chat.send("ping")
            await chat.frame("pong")

    async def test_an_unknown_id_is_not_found_and_stops_nothing(self, house: House) -> None:
        more = asyncio.Event()
        house.engine.script("one", more, "two")
        async with house.session() as chat:
            await chat.say("a")
            await chat.until("delta")
            await chat.send("stop", id="z")
            error = await chat.error()
            assert (error["id"], error["code"]) == ("z", "not_found")
            more.set()
            assert joined(await chat.until("done")) == "two"


class TestPing:
    async def test_ping_is_answered_even_while_a_turn_runs(self, house: House) -> None:
        house.engine.script("one", FOREVER)
        async with house.session() as chat:
            await chat.say("a")
            await chat.until("delta")
            await chat.send("ping")
            assert await chat.frame() == {"type": "pong"}


class TestBadFrames:
    BAD = (
        "hello",
        "",
        "{",
        "null",
        "[]",
        "42",
        '"text"',
        "{}",
        '{"type":"unknown"}',
        '{"type":["message"]}',
        '{"type":"ping","type":"ping"}',
        '{"type":"message","id":"x"}',
        '{"type":"message","content":"x"}',
        '{"type":"message","id":1,"content":"x"}',
        '{"type":"message","id":"x","content":7}',
        '{"type":"message","id":"x","content":"nul \\u0000"}',
        '{"type":"message","id":"x","content":"x","options":[]}',
        '{"type":"message","id":"x","content":"x","options":{"max_tokens":1.5}}',
        '{"type":"message","id":"x","content":"x","options":{"temperature":NaN}}',
        '{"type":"start","history":{}}',
        '{"type":"stop"}',
        '{"type":"resume","session":"x","after":-1}',
    )

    @pytest.mark.parametrize("bad", BAD)
    async def test_each_gets_one_clear_error_and_the_session_lives(
        self, house: House, bad: str
    ) -> None:
        async with house.session() as chat:
            await chat.client.send(bad)
            error = await chat.error()
            assert error["code"] == "invalid_frame"
            assert error["seq"] == 1
            assert "Traceback" not in error["message"]
            assert "Error" not in error["message"]
            assert joined(await chat.answer("a")) == "Hello, world."

    @pytest.mark.parametrize(
        "options",
        [
            {"max_tokens": 0},
            {"max_tokens": 2**40},
            {"temperature": -0.1},
            {"temperature": 2.5},
            {"temperature": 10**400},
            {"top_p": 0},
            {"top_p": 1.1},
            {"stop": ""},
            {"stop": ["x"] * 17},
            {"seed": 2**63},
        ],
        ids=str,
    )
    async def test_an_option_outside_its_range_is_named(
        self, house: House, options: dict[str, Any]
    ) -> None:
        async with house.session() as chat:
            await chat.say("a", **options)
            error = await chat.error()
            assert (error["id"], error["code"]) == ("a", "invalid_request")
            assert f"options.{next(iter(options))}" in error["message"]
            await chat.answer("a")

    async def test_a_running_turn_survives_a_bad_frame(self, house: House) -> None:
        more = asyncio.Event()
        house.engine.script("one", more, "two")
        async with house.session() as chat:
            await chat.say("a")
            await chat.until("delta")
            await chat.client.send("nonsense")
            error = await chat.error()
            assert "id" not in error
            more.set()
            assert joined(await chat.until("done")) == "two"

    async def test_too_many_in_a_row_close_1008(self, house: House) -> None:
        await house.open(bad_frames=3)
        async with house.session() as chat:
            for _ in range(2):
                await chat.client.send("nonsense")
                await chat.error()
            await chat.answer("a")
            for _ in range(3):
                await chat.client.send("nonsense")
                await chat.error()
            assert await chat.closed() == (1008, "invalid_frame")

    async def test_deep_nesting_is_refused_quickly(self, house: House) -> None:
        async with house.session() as chat:
            await chat.client.send('{"type":"ping","x":' + "[" * 25_000 + "]" * 25_000 + "}")
            assert "nested" in (await chat.error())["message"]
            await chat.client.send('{"type":"ping","x":' * 1000 + "1" + "}" * 1000)
            assert (await chat.error())["code"] == "invalid_frame"
            await chat.answer("a")

    async def test_a_heap_of_objects_is_refused(self, house: House) -> None:
        async with house.session() as chat:
            await chat.client.send('{"type":"ping","x":[' + ",".join(["{}"] * 30_000) + "]}")
            assert (await chat.error())["code"] == "invalid_frame"

    async def test_half_a_surrogate_pair_does_not_poison_the_conversation(
        self, house: House
    ) -> None:
        async with house.session() as chat:
            await chat.client.send(
                '{"type":"message","id":"a","content":"\\ud83d x \\ud83d\\ude00"}'
            )
            await chat.until("done")
            await chat.client.send('{"type":"message","id":"\\ude00","content":"y"}')
            assert (await chat.until("done"))[-1]["id"] == "\ufffd"
        assert said(house)[0] == ("user", "\ufffd x \U0001f600")

    async def test_a_flood_is_slowed_down(self, house: House) -> None:
        await house.open(frames_per_second=5, bad_frames=50)
        async with house.session() as chat:
            for _ in range(25):
                await chat.send("ping")
            frames = [await chat.frame() for _ in range(25)]
            assert sum(frame["type"] == "pong" for frame in frames) in range(20, 24)
            assert frames[-1]["code"] == "rate_limited"
            assert frames[-1]["retry_after_seconds"] >= 1
        assert not house.engine.calls

    async def test_an_endless_flood_closes_1008(self, house: House) -> None:
        await house.open(frames_per_second=1, bad_frames=5)
        async with house.session() as chat:
            for _ in range(12):
                await chat.send("ping")
            assert await chat.closed() == (1008, "invalid_frame")

    async def test_unknown_fields_are_ignored(self, house: House) -> None:
        async with house.session() as chat:
            fields = {"type": "message", "id": "a", "content": "Hi", "priority": -1, "user": "b"}
            await chat.client.send(json.dumps(fields))
            await chat.until("done")
        assert house.end.work.tenant == "acme"


class TestRefusedTurns:
    async def test_a_refused_turn_can_be_sent_again(self, house: House) -> None:
        house.engine.script(QueueFull("full", retry_after_seconds=2.5))
        async with house.session() as chat:
            (error,) = await chat.answer("a", "Hi")
            assert (error["id"], error["code"], error["retry_after_seconds"]) == (
                "a",
                "queue_full",
                3,
            )
            await chat.answer("a", "Hi")
        assert said(house) == [("user", "Hi")]
        assert [(e.outcome, e.code) for e in house.ends] == [
            ("rejected", "queue_full"),
            ("finished", None),
        ]

    async def test_a_refusal_before_there_is_any_work_is_told_too(self, house: House) -> None:
        house.refusal = QueueFull("full")
        async with house.session() as chat:
            (error,) = await chat.answer("a")
            assert error["code"] == "queue_full"
        assert not house.works

    async def test_a_message_beyond_the_context_is_refused_and_the_history_stays(
        self, house: House
    ) -> None:
        await house.open(engine=ScriptedEngine(context_tokens=50))
        async with house.session() as chat:
            await chat.answer("a", "Hi")
            (error,) = await chat.answer("b", "word " * 60)
            assert error["code"] == "context_length_exceeded"
            await chat.answer("c", "Go on")
        assert said(house)[0] == ("user", "Hi")
        assert house.ends[1].outcome == "rejected"
        await ended(house.engine.calls[-1], "finished")
