"""Readers that do not read: bounded memory, no harm to others, an end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import websockets

from tests.chat.house import SESSIONS, Chat, House, ended, eventually

BIG = "x" * 4096


@asynccontextmanager
async def lazy(house: House, *subprotocols: str) -> AsyncIterator[Chat]:
    """A client with a small window that reads only when it is told to."""
    host, port = house.url.removeprefix("ws://").removesuffix("/chat").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    async with websockets.connect(
        house.url,
        sock=sock,
        subprotocols=subprotocols or None,  # type: ignore[arg-type]
        compression=None,
        proxy=None,
        max_queue=1,
    ) as client:
        yield Chat(client)
        client.transport.abort()


def stalled(house: House) -> bool:
    return any(c.outlet.blocked_since is not None for c in house.chat._connections)


async def test_the_engine_is_not_asked_for_more_than_is_read(house: House) -> None:
    house.engine.script(*[BIG] * 5000)
    async with lazy(house, SESSIONS) as chat:
        await chat.frame("ready")
        await chat.say("a", max_tokens=5000)
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        made = len(house.engine.calls[0].pieces)
        for _ in range(50):
            await asyncio.sleep(0)
        # What the socket's buffers took, and one piece more.
        assert len(house.engine.calls[0].pieces) == made < 1500


async def test_others_do_not_notice(house: House) -> None:
    house.engine.script(*[BIG] * 5000)
    async with lazy(house, SESSIONS) as chat, house.session() as other:
        await chat.frame("ready")
        await chat.say("a", max_tokens=5000)
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        await other.answer("b")


async def test_a_stalled_turn_is_aborted_and_its_socket_closed(house: House) -> None:
    await house.open(stall_seconds=10, closing_seconds=0.05)
    house.engine.script(*[BIG] * 5000)
    async with lazy(house, SESSIONS) as chat:
        ready = await chat.frame("ready")
        await chat.say("a", max_tokens=5000)
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        now = asyncio.get_running_loop().time()
        house.chat.sweep(now + 5)
        await asyncio.sleep(0)
        assert house.engine.running
        house.chat.sweep(now + 11)
        await ended(house.engine.calls[0], "closed")
        await eventually(lambda: house.chat.open_sockets == 0)
        assert (house.end.outcome, house.end.code) == ("aborted", "too_slow")
        assert house.chat.sessions.detached == 1
    live = house.chat.sessions.find(ready["session"], "acme")
    assert live.session.turn is None


async def test_its_socket_does_not_outlive_it_for_long(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing waits for the peer to read what is buffered, which this one never does."""
    monkeypatch.setattr("app.draining.FLUSH_SECONDS", 0.1)
    await house.open(stall_seconds=10, closing_seconds=0.05)
    house.engine.script(*[BIG] * 5000)
    connections = house.server.server_state.connections
    before = set(connections)
    async with lazy(house, SESSIONS) as chat:
        await chat.frame("ready")
        open_now = set(connections)
        await chat.say("a", max_tokens=5000)
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        (protocol,) = open_now - before
        protocol.close_timeout = 0.1  # type: ignore[union-attr]
        house.chat.sweep(asyncio.get_running_loop().time() + 11)
        await eventually(lambda: protocol not in connections)


async def test_one_that_reads_again_in_time_is_told_1008(house: House) -> None:
    await house.open(stall_seconds=10, closing_seconds=3)
    house.engine.script(*[BIG] * 5000)
    async with lazy(house, SESSIONS) as chat:
        await chat.frame("ready")
        await chat.say("a", max_tokens=5000)
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        house.chat.sweep(asyncio.get_running_loop().time() + 11)
        await ended(house.engine.calls[0], "closed")
        chat.client.transport.resume_reading()
        frames = await chat.until("error")
        assert (frames[-1]["id"], frames[-1]["code"]) == ("a", "too_slow")
        numbers = [frame["seq"] for frame in frames]
        assert numbers == list(range(1, len(numbers) + 1))
        assert await chat.closed() == (1008, "too_slow")


async def test_a_slow_reader_that_catches_up_gets_it_all(house: House) -> None:
    house.engine.script(*[BIG] * 800)
    async with lazy(house, SESSIONS) as chat:
        await chat.frame("ready")
        await chat.say("a", max_tokens=800)
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        chat.client.transport.resume_reading()
        frames = await chat.until("done")
        assert len(frames) == 802


async def test_a_plain_reader_that_stalls_is_aborted_too(house: House) -> None:
    await house.open(stall_seconds=10, closing_seconds=0.05, plain_max_tokens=5000)
    house.engine.script(*[BIG] * 5000)
    async with lazy(house) as chat:
        await chat.client.send("Hi")
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        house.chat.sweep(asyncio.get_running_loop().time() + 11)
        await ended(house.engine.calls[0], "closed")
        await eventually(lambda: house.chat.open_sockets == 0)
    assert (house.end.outcome, house.end.code) == ("aborted", "too_slow")


async def test_a_stop_is_obeyed_while_the_reader_stalls(house: House) -> None:
    house.engine.script(*[BIG] * 5000)
    async with lazy(house, SESSIONS) as chat:
        await chat.frame("ready")
        await chat.say("a", max_tokens=5000)
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        await chat.send("stop", id="a")
        await ended(house.engine.calls[0], "closed")
        chat.client.transport.resume_reading()
        frames = await chat.until("done")
        assert frames[-1]["finish_reason"] == "stopped"
        numbers = [frame["seq"] for frame in frames]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_a_stalled_connection_can_be_taken_over_at_once(house: House) -> None:
    """The turn does not hang on the old socket, and nothing is lost with it."""
    await house.open(replay_bytes=2**24, closing_seconds=600)
    house.engine.script(*[BIG] * 2000)
    async with lazy(house, SESSIONS) as old, house.session() as new:
        session = (await old.frame("ready"))["session"]
        await old.say("a", max_tokens=2000)
        old.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        await new.send("resume", session=session, after=1)
        await new.frame("ready")
        frames = await new.until("done", "error")
        assert frames[0]["seq"] == 2
        assert [f["seq"] for f in frames] == list(range(2, 2003))


async def test_one_that_closes_without_reading_leaves_its_turn_free(house: House) -> None:
    """Not with a goodbye: the turn goes on for the resume time, without waiting for the reader."""
    await house.open(replay_bytes=2**26)
    house.engine.script(*[BIG] * 2000)
    async with lazy(house, SESSIONS) as chat:
        await chat.frame("ready")
        await chat.say("a", max_tokens=2000)
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        chat.client.protocol.send_close(4000)
        chat.client.send_data()
        await ended(house.engine.calls[0], "finished")
        assert house.chat.sessions.detached == 1


async def test_pings_without_reading_do_not_fill_memory(house: House) -> None:
    await house.open(frames_per_second=1_000_000)
    house.engine.script(*[BIG] * 5000)
    async with lazy(house, SESSIONS) as chat:
        await chat.frame("ready")
        await chat.say("a", max_tokens=5000)
        chat.client.transport.pause_reading()
        await eventually(lambda: stalled(house))
        (connection,) = house.chat._connections
        for _ in range(300):
            await chat.send("ping")
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(connection.outlet._line) <= 70
