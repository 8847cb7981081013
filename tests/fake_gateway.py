"""A gateway without an engine, run by the server's tests as `python -m tests.fake_gateway`.

    GET /stream?pieces=N&seconds=S   N events, S seconds apart, then [DONE]; an `error` event if cut
    GET /busy?seconds=S              says `blocked`, then blocks the event loop
    GET /die                         the engine dies
    GET /running                     how many answers run
    GET /spec                        the ASGI version that the server announces
    WebSocket /chat                  each message is a number N: N frames, then `done`
    WebSocket /stubborn              a session that does not hear of the drain, and speaks on

FAKE_START: `ready` (default), `loading` (never ready), `fails`, `wrong` (raises in make_app).
FAKE_CHILD: a Python program to run as a child.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs

from app.errors import Draining
from app.flags import read_server_flags
from app.metrics import Metrics
from app.server import leave, run
from app.settings import Settings, load_settings
from app.web.answers import encode, error_body
from app.web.health import Health

PIECE_SECONDS = 0.05


class FakeGateway:
    """Counts what runs, and drains as the real one promises to."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self.failed: str | None = None
        self.running = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.draining = asyncio.Event()
        self.cut = asyncio.Event()

    def start(self) -> None:
        """Start-up as FAKE_START says."""
        match os.environ.get("FAKE_START", "ready"):
            case "fails":
                self.failed = "not enough memory for the model"
            case "ready":
                self.health.ready()
        if child := os.environ.get("FAKE_CHILD"):
            # As vLLM starts its EngineCore: a bare `subprocess` would not touch signal masks.
            multiprocessing.get_context("spawn").Process(target=exec, args=(child, {})).start()

    async def drain(self, grace_seconds: float) -> None:
        self.draining.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self.idle.wait()
        self.cut.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self.idle.wait()

    async def stop(self) -> None:
        self.health.stop()

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        self.running += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    async def pieces(self, count: int, seconds: float = PIECE_SECONDS) -> AsyncIterator[int]:
        """Numbers, until the gateway is cut or the engine dead."""
        with self.work():
            for number in range(count):
                await asyncio.sleep(seconds)
                if self.cut.is_set() or self.failed:
                    raise Draining("the server is shutting down")
                yield number


class State:
    """Carries the gateway, as the real application's does."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.gateway = gateway


class FakeApp:
    """Plain ASGI: the framework is not what is tested here."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.state = State(gateway)
        self.gateway = gateway

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match scope["type"], scope.get("path", ""):
            case "lifespan", _:
                await self.lifespan(receive, send)
            case "websocket", path:
                await self.websocket(path, receive, send)
            case _, "/stream":
                await self.stream(scope, send)
            case _, path:
                await self.plain(path, scope, send)

    async def lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        self.gateway.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def plain(self, path: str, scope: Any, send: Any) -> None:
        status, body = 200, b"ok"
        if path == "/busy":
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"blocked", "more_body": True})
            time.sleep(query(scope, "seconds", 1))  # noqa: ASYNC251  blocking is the point
            await send({"type": "http.response.body"})
            return
        if path == "/die":
            self.gateway.failed = "the engine died"
            self.gateway.health.engine_died("killed")
        elif path == "/running":
            body = b"%d" % self.gateway.running
        elif path == "/spec":
            body = scope["asgi"]["spec_version"].encode()
        elif self.gateway.draining.is_set():
            status, body = 503, encode(error_body(Draining("the server is shutting down")))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def stream(self, scope: Any, send: Any) -> None:
        count, seconds = int(query(scope, "pieces", 10)), query(scope, "seconds", PIECE_SECONDS)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        end = b"data: [DONE]\n\n"
        try:
            async for number in self.gateway.pieces(count, seconds):
                body = b"data: %d\n\n" % number
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except Draining as error:
            end = b"event: error\ndata: " + encode(error_body(error)) + b"\n\n"
        await send({"type": "http.response.body", "body": end})

    async def websocket(self, path: str, receive: Any, send: Any) -> None:
        await receive()
        if self.gateway.draining.is_set():
            await send({"type": "websocket.http.response.start", "status": 503, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"draining"})
            return
        await send({"type": "websocket.accept"})
        while True:
            message = await self.next_message(path, receive)
            if message is None:
                await send({"type": "websocket.close", "code": 1001, "reason": "draining"})
                return
            if message["type"] == "websocket.disconnect":
                if path == "/stubborn":
                    await send({"type": "websocket.send", "text": "and another thing"})
                return
            try:
                async for number in self.gateway.pieces(int(message["text"])):
                    await send({"type": "websocket.send", "text": str(number)})
                await send({"type": "websocket.send", "text": "done"})
            except Draining as error:
                await send({"type": "websocket.send", "text": f"error {error.code}"})

    async def next_message(self, path: str, receive: Any) -> Any:
        """The next message, or None when the server drains."""
        if path == "/stubborn":
            return await receive()
        message = asyncio.ensure_future(receive())
        draining = asyncio.ensure_future(self.gateway.draining.wait())
        await asyncio.wait({message, draining}, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        if message.done():
            return message.result()
        message.cancel()
        return None


def query(scope: Any, name: str, default: float) -> float:
    values = parse_qs(scope["query_string"].decode()).get(name)
    return float(values[0]) if values else default


def make_app(_settings: Settings, health: Health, metrics: Metrics) -> FakeApp:
    if os.environ.get("FAKE_START") == "wrong":
        raise ValueError("argument --max-num-seqs: invalid int value: 'many'")
    return FakeApp(FakeGateway(health))


if __name__ == "__main__":
    leave(run(load_settings(), read_server_flags(sys.argv[1:]), make_app))
