"""The way out of a socket: order, back-pressure, and nothing lost to a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from app.chat.outlet import MOST_WAITING, Outlet


class Wire:
    """A server's `send` that can be held up, and that can lose its peer."""

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()
        self.sent: list[str] = []
        self.closed: tuple[int, str] | None = None
        self.error: Exception | None = None

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.writable.wait()
        if self.error is not None:
            raise self.error
        if message["type"] == "websocket.close":
            self.closed = (message["code"], message["reason"])
        else:
            self.sent.append(message["text"])


@pytest.fixture
def wire() -> Wire:
    return Wire()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_free_wire_takes_a_frame_without_a_switch_of_tasks(wire: Wire) -> None:
    outlet = Outlet(wire.send)
    post = outlet.post("a")
    with pytest.raises(StopIteration):
        post.send(None)
    assert wire.sent == ["a"]
    assert outlet.blocked_since is None


async def test_frames_of_two_tasks_leave_in_the_order_they_came(wire: Wire) -> None:
    outlet = Outlet(wire.send)
    wire.writable.clear()
    async with asyncio.TaskGroup() as group:
        for frame in "abc":
            group.create_task(outlet.post(frame))
        await settle()
        assert outlet.blocked_since is not None
        await outlet.add("d")
        wire.writable.set()
    assert wire.sent == ["a", "b", "c", "d"]


async def test_a_cancelled_writer_loses_nothing(wire: Wire) -> None:
    outlet = Outlet(wire.send)
    wire.writable.clear()
    writer = asyncio.create_task(outlet.post(iter(["a", "b"])))
    await settle()
    await outlet.add("c")
    waiting = asyncio.create_task(outlet.post("d"))
    await settle()
    writer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writer
    wire.writable.set()
    await waiting
    assert wire.sent == ["a", "b", "c", "d"]


async def test_the_line_behind_a_stalled_send_is_bounded(wire: Wire) -> None:
    outlet = Outlet(wire.send)
    wire.writable.clear()
    writer = asyncio.create_task(outlet.post("a"))
    await settle()
    for _ in range(MOST_WAITING - 1):
        await outlet.add("x")
    one_more = asyncio.create_task(outlet.add("y"))
    await settle()
    assert not one_more.done()
    wire.writable.set()
    await asyncio.gather(writer, one_more)
    assert len(wire.sent) == MOST_WAITING + 1


async def test_abandoned_it_frees_its_writer_and_drops_the_rest(wire: Wire) -> None:
    outlet = Outlet(wire.send)
    wire.writable.clear()
    writer = asyncio.create_task(outlet.post("a"))
    waiting = asyncio.create_task(outlet.post("b"))
    await settle()
    outlet.abandon()
    outlet.abandon()
    await asyncio.gather(writer, waiting)
    wire.writable.set()
    await outlet.post("c")
    assert wire.sent == []


async def test_a_cancellation_is_not_swallowed_by_abandoning(wire: Wire) -> None:
    outlet = Outlet(wire.send)
    wire.writable.clear()
    writer = asyncio.create_task(outlet.post("a"))
    await settle()
    outlet.abandon()
    writer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writer


async def test_after_abandoning_a_time_limit_still_ends_the_close(wire: Wire) -> None:
    outlet = Outlet(wire.send)
    wire.writable.clear()
    writer = asyncio.create_task(outlet.post("a"))
    await settle()
    outlet.abandon()
    await writer
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await outlet.close(1008, "too_slow", last="bye")


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("after close")])
async def test_a_peer_that_is_gone_is_no_error(wire: Wire, error: Exception) -> None:
    outlet = Outlet(wire.send)
    wire.error = error
    await outlet.post("a")
    await outlet.post("b")
    await outlet.close(1000, "")
    assert wire.sent == []
    assert wire.closed is None


async def test_closing_sends_what_stands_in_line_first(wire: Wire) -> None:
    outlet = Outlet(wire.send)
    wire.writable.clear()
    writer = asyncio.create_task(outlet.post("a"))
    await settle()
    closing = asyncio.create_task(outlet.close(1001, "draining", last="z"))
    await settle()
    await outlet.post("too late")
    wire.writable.set()
    await asyncio.gather(writer, closing)
    assert wire.sent == ["a", "z"]
    assert wire.closed == (1001, "draining")
