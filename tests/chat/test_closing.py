"""Refusals before the upgrade, close codes after it, and the drain."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
import websockets

from app.errors import Draining, EngineDead, FairgateError, Loading
from app.tenants.model import Limits, Tenant
from tests.chat.house import SESSIONS, House, KeyRing, ended, eventually, joined
from tests.scripted_engine import FOREVER

SMALL = Tenant(id="small", limits=Limits(connections=1))


async def refused(house: House, key: str | None = None) -> tuple[int, str, dict[str, str]]:
    """Status, code and headers of an upgrade that is refused."""
    with pytest.raises(websockets.InvalidStatus) as caught:
        async with house.connect(SESSIONS, key=key):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"]["code"], dict(response.headers)


class TestHandshake:
    async def test_one_socket_more_than_the_tenant_may_hold_is_429(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=SMALL, k2=Tenant(id="other")))
        async with house.session(key="k1"):
            status, code, headers = await refused(house, "k1")
            assert (status, code) == (429, "too_many_connections")
            assert int(headers["retry-after"]) >= 1
            assert headers["content-type"] == "application/json"
            assert house.chat.connections_of("small") == 1
            async with house.session(key="k2"):
                assert house.chat.open_sockets == 2
        await eventually(lambda: house.chat.connections_of("small") == 0)
        async with house.session(key="k1") as chat:
            await chat.answer("a")

    async def test_the_same_limit_by_hello_is_an_error_and_1013(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=SMALL))
        async with house.session(key="k1"), house.connect(SESSIONS) as chat:
            await chat.send("hello", key="k1")
            assert (await chat.error())["code"] == "too_many_connections"
            assert await chat.closed() == (1013, "too_many_connections")

    async def test_one_socket_more_than_the_server_holds_is_503(self, house: House) -> None:
        await house.open(connections=1)
        async with house.session():
            assert (await refused(house))[:2] == (503, "overloaded")

    async def test_a_draining_server_refuses_by_status(self, house: House) -> None:
        await house.chat.drain(0.1)
        assert (await refused(house))[:2] == (503, "draining")

    async def test_a_client_that_leaves_before_it_is_accepted_is_nobody(self, house: House) -> None:
        app = house._app.router.routes[-1].app  # type: ignore[attr-defined]

        async def receive() -> dict[str, object]:
            return {"type": "websocket.disconnect", "code": 1006}

        async def send(_: object) -> None:
            raise AssertionError("nobody is there")

        await app({"type": "websocket", "state": {}, "subprotocols": []}, receive, send)
        assert house.chat.open_sockets == 0

    async def test_while_the_model_loads_a_socket_closes_1013(self, house: House) -> None:
        """The door refuses this before; here it loads again behind the door's back."""
        house.engine_error = Loading("loading", retry_after_seconds=7)
        async with house.connect(SESSIONS) as chat:
            error = await chat.error()
            assert (error["code"], error["retry_after_seconds"]) == ("loading", 7)
            assert await chat.closed() == (1013, "loading")


class TestCloseCodes:
    async def test_a_binary_frame_closes_1003(self, house: House) -> None:
        for data in (b"\x00\x01", b'{"type":"ping"}', b"\xff"):
            async with house.session() as chat:
                await chat.client.send(data)
                assert (await chat.error())["code"] == "unsupported_media_type"
                assert await chat.closed() == (1003, "unsupported_media_type")
        async with house.connect() as chat:
            await chat.client.send(b"What is gravity?")
            assert await chat.rest() == []
            assert chat.client.close_code == 1003

    async def test_a_running_turn_is_not_lost_silently_to_a_binary_frame(
        self, house: House
    ) -> None:
        house.engine.script("one", FOREVER)
        async with house.session() as chat:
            await chat.say("a")
            await chat.until("delta")
            await chat.client.send(b"\x00")
            await chat.client.send("ignored from here on")
            error = await chat.error()
            assert (error["id"], error["code"]) == ("a", "unsupported_media_type")
            assert (await chat.closed())[0] == 1003
        await ended(house.engine.calls[0], "closed")
        assert house.end.outcome == "failed"

    async def test_a_binary_frame_ends_a_plain_answer_with_1003(self, house: House) -> None:
        house.engine.script("one", FOREVER)
        async with house.connect() as chat:
            await chat.client.send("Hi")
            await chat.text()
            await chat.client.send(b"\x00")
            assert await chat.rest() == []
            assert chat.client.close_code == 1003

    @pytest.mark.parametrize("mode", ["session", "plain"])
    async def test_a_frame_beyond_the_limit_closes_1009(self, house: House, mode: str) -> None:
        async with house.connect(*[SESSIONS] * (mode == "session")) as chat:
            await chat.client.send("x" * (1024 * 1024 + 1))
            code, reason = await chat.closed()
            assert code == 1009
            assert reason

    async def test_many_fragments_count_as_one_message(self, house: House) -> None:
        async with house.session() as chat:
            with contextlib.suppress(websockets.ConnectionClosed):
                await chat.client.send("x" * 4096 for _ in range(1000))
            assert (await chat.closed())[0] == 1009

    async def test_a_frame_just_within_the_limit_is_read(self, house: House) -> None:
        frame = '{"type":"ping","x":""}'
        async with house.session() as chat:
            await chat.client.send(frame[:-2] + "x" * (1024 * 1024 - len(frame)) + frame[-2:])
            await chat.frame("pong")

    async def test_our_own_limit_closes_1009_where_the_servers_is_larger(
        self, house: House
    ) -> None:
        await house.open(max_frame_bytes=1024)
        async with house.session() as chat:
            await chat.client.send("x" * 1025)
            assert (await chat.error())["code"] == "too_large"
            assert await chat.closed() == (1009, "too_large")

    async def test_a_silent_socket_closes_1000_when_idle_for_too_long(self, house: House) -> None:
        await house.open(idle_seconds=1000)
        house.engine.script(FOREVER)
        async with house.session() as idle, house.session() as busy, house.connect() as mute:
            await busy.say("a")
            await busy.until("started")
            house.chat.sweep(asyncio.get_running_loop().time() + 900)
            house.chat.sweep(asyncio.get_running_loop().time() + 1100)
            assert await idle.closed() == (1000, "idle")
            assert await mute.closed() == (1000, "idle")
            await busy.send("stop", id="a")
            await busy.frame("done")
            await busy.answer("b")

    async def test_our_own_fault_closes_1011(
        self, house: House, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(_: object) -> None:
            raise ZeroDivisionError("a bug")

        async with house.session() as chat:
            (connection,) = house.chat._connections
            connection.talk._live.session.start = broken  # type: ignore[union-attr]
            await chat.send("start")
            assert await chat.closed() == (1011, "internal")
        assert "chat.failed" in caplog.text


class TestDrain:
    async def test_idle_sockets_are_told_and_closed_1001_at_once(self, house: House) -> None:
        await house.open(keys=KeyRing(k1=Tenant(id="acme")))
        async with (
            house.session(key="k1") as idle,
            house.connect(SESSIONS) as unknown,
            house.connect(key="k1") as undecided,
        ):
            assert await house.chat.drain(30) == 0
            error = await idle.error()
            assert error["code"] == "draining"
            assert error["retry_after_seconds"] >= 1
            assert await idle.closed() == (1001, "draining")
            assert await unknown.closed() == (1001, "draining")
            assert await undecided.closed() == (1001, "draining")

    async def test_running_turns_end_first(self, house: House) -> None:
        more = asyncio.Event()
        house.engine.script("one", more, "two")
        house.engine.script("one", more, "two")
        async with house.session() as chat, house.connect() as plain:
            await chat.say("a")
            await chat.until("delta")
            await plain.client.send("Hi")
            assert await plain.text() == "one"
            draining = asyncio.create_task(house.chat.drain(30))
            await eventually(lambda: house.chat.ending is not None)
            await chat.say("b")
            assert (await chat.error())["code"] == "busy"
            more.set()
            frames = await chat.until("done")
            assert joined(frames) == "two"
            assert frames[-1]["finish_reason"] == "stop"
            assert await chat.closed() == (1001, "draining")
            assert await plain.rest() == ["two"]
            assert plain.client.close_code == 1000
            assert await draining == 0
        assert [e.outcome for e in house.ends] == ["finished", "finished"]

    async def test_the_rest_is_told_why_at_the_deadline(self, house: House) -> None:
        house.engine.script("one", FOREVER)
        house.engine.script("one", FOREVER)
        async with house.session() as chat, house.connect() as plain:
            await chat.say("a")
            await chat.until("delta")
            await plain.client.send("Hi")
            assert await plain.text() == "one"
            assert await house.chat.drain(0.05) == 2
            error = await chat.error()
            assert (error["id"], error["code"]) == ("a", "draining")
            assert await chat.closed() == (1001, "draining")
            assert await plain.rest() == []
            assert plain.client.close_code == 1001
        assert {(e.outcome, e.code) for e in house.ends} == {("failed", "draining")}
        assert all(call.closed for call in house.engine.calls)

    async def test_a_turn_that_the_engine_ends_for_the_drain_closes_too(self, house: House) -> None:
        killed = asyncio.Event()
        house.engine.script("one", killed, Draining("took too long"))
        async with house.session() as chat:
            await chat.say("a")
            await chat.until("delta")
            draining = asyncio.create_task(house.chat.drain(30))
            await eventually(lambda: house.chat.ending is not None)
            killed.set()
            assert (await chat.error())["code"] == "draining"
            assert await chat.closed() == (1001, "draining")
            assert await draining == 0

    async def test_lost_sessions_end_with_the_drain(self, house: House) -> None:
        more = asyncio.Event()
        house.engine.script("one", FOREVER)
        house.engine.script("one", more)
        async with house.session() as chat:
            await chat.say("a")
            await chat.until("delta")
            chat.cut()
        await eventually(lambda: house.chat.sessions.detached == 1)
        async with house.session() as other:
            await other.say("b")
            await other.until("delta")
            draining = asyncio.create_task(house.chat.drain(30))
            await ended(house.engine.calls[0], "closed")
            more.set()
            await other.until("done")
            await draining
        assert len(house.chat.sessions) == 0

    @pytest.mark.parametrize(
        ("problem", "code"), [(EngineDead("dead"), 1011), (Draining("drain"), 1001)]
    )
    async def test_the_end_has_the_code_of_its_reason(
        self, house: House, problem: FairgateError, code: int
    ) -> None:
        async with house.session() as chat:
            await house.chat.end(problem, 0.05)
            assert (await chat.error())["code"] == problem.code
            assert await chat.closed() == (code, problem.code)

    async def test_without_running_the_chat_refuses_to_answer(self, house: House) -> None:
        house.chat.open(None)
        async with house.connect() as chat:
            await chat.client.send("Hi")
            assert await chat.closed() == (1011, "internal")
