"""A running server with `/chat`, a scripted engine behind it and a stub of the door before it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
import websockets
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection

from app.chat.limits import ChatLimits
from app.chat.socket import mount_chat
from app.chat.switchboard import Switchboard
from app.draining import GoingAway
from app.engine.api import Api, Outcome, Work
from app.errors import FairgateError, InvalidApiKey
from app.tenants.model import Tenant
from app.web.answers import answer_of, encode, error_body
from app.web.caller import Anonymous, Caller, Keys
from tests.scripted_engine import ScriptedEngine

SESSIONS = "fairgate.chat.v1"
PATIENCE_SECONDS = 5.0
ACME = Tenant(id="acme")


@dataclass(frozen=True, slots=True)
class Ended:
    """How one turn ended, as the metrics would learn."""

    outcome: Outcome
    code: str | None
    work: Work


class KeyRing:
    """Tenants by their keys in clear."""

    anonymous = False

    def __init__(self, **tenants: Tenant) -> None:
        self._tenants = tenants

    def tenant_of(self, key: str | None) -> Tenant:
        if key is None or key not in self._tenants:
            raise InvalidApiKey("no such key")
        return self._tenants[key]


class House:
    """One server for all tests; what it serves is new for each."""

    chat: Switchboard
    server: uvicorn.Server

    def __init__(self, url: str) -> None:
        self.url = url
        self._running: asyncio.Task[None] | None = None

    async def open(
        self,
        *,
        tenant: Tenant = ACME,
        keys: Keys | None = None,
        engine: ScriptedEngine | None = None,
        **limits: Any,
    ) -> None:
        """Serve chat to `tenant`, or to whoever has one of `keys`, from now on."""
        await self.close()
        self.engine = engine or ScriptedEngine()
        self.keys: Keys = keys or Anonymous(tenant)
        self.ends: list[Ended] = []
        self.works: list[Work] = []
        self.refusal: FairgateError | None = None
        self.engine_error: FairgateError | None = None
        self.deadline_seconds: float | None = None
        self._app = FastAPI()
        self.chat = mount_chat(
            self._app,
            engine=self._engine,
            keys=self.keys,
            make_work=self.make_work,
            limits=ChatLimits(**limits),
        )
        ready, self._stop = asyncio.Event(), asyncio.Event()
        self._running = asyncio.create_task(self._run(ready, self._stop))
        await ready.wait()

    async def close(self) -> None:
        """End what is served; every turn must have ended exactly once then."""
        if self._running is None:
            return
        self._stop.set()
        await self._running
        self._running = None
        await eventually(lambda: self.chat.open_sockets == 0)
        assert not self.engine.running
        assert [ended.work for ended in self.ends] == sorted(
            self.works, key=[ended.work for ended in self.ends].index
        ), "a turn without its end, or with two"

    @property
    def end(self) -> Ended:
        """The one end that was recorded."""
        (end,) = self.ends
        return end

    def make_work(self, caller: Caller, api: Api, *, streamed: bool, batch: bool = False) -> Work:
        if self.refusal is not None:
            raise self.refusal
        work = Work(
            tenant=caller.tenant.id,
            api=api,
            request_id=caller.request_id,
            arrived_seconds=caller.arrived_seconds,
            work_class=caller.work_class or ("batch" if batch else "interactive"),
            streamed=streamed,
            output_tokens_limit=caller.tenant.limits.output_tokens,
            deadline_seconds=None
            if self.deadline_seconds is None
            else caller.arrived_seconds + self.deadline_seconds,
            on_end=lambda work, outcome, code: self.ends.append(Ended(outcome, code, work)),
        )
        self.works.append(work)
        return work

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The door: says who is calling, as far as the handshake tells."""
        try:
            caller = self._caller(scope)
        except FairgateError as problem:
            start = {"type": "websocket.http.response.start", "status": answer_of(problem).status}
            await receive()
            await send({**start, "headers": []})
            body = encode(error_body(problem))
            await send({"type": "websocket.http.response.body", "body": body})
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    def _caller(self, scope: Any) -> Caller | None:
        headers = dict(scope["headers"])
        key = headers.get(b"authorization", b"").decode().removeprefix("Bearer ") or None
        for protocol in scope["subprotocols"]:
            key = protocol.removeprefix("bearer.") if protocol.startswith("bearer.") else key
        if key is None and not self.keys.anonymous:
            return None
        batch = headers.get(b"x-fairgate-class") == b"batch"
        return Caller(
            tenant=self.keys.tenant_of(key),
            request_id="r1",
            arrived_seconds=0.0,
            work_class="batch" if batch else None,
        )

    def _engine(self) -> ScriptedEngine:
        if self.engine_error is not None:
            raise self.engine_error
        return self.engine

    async def _run(self, ready: asyncio.Event, stop: asyncio.Event) -> None:
        async with self.chat.running():
            ready.set()
            await stop.wait()

    @asynccontextmanager
    async def connect(
        self, *subprotocols: str, key: str | None = None, headers: dict[str, str] | None = None
    ) -> AsyncIterator[Chat]:
        """A client with these subprotocols; `key` goes into the header."""
        sent = dict(headers or {})
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        async with websockets.connect(
            self.url,
            subprotocols=subprotocols or None,  # type: ignore[arg-type]
            additional_headers=sent,
            compression=None,
            proxy=None,
            max_queue=None,  # a client that does not read shall still see the close
        ) as client:
            yield Chat(client)

    @asynccontextmanager
    async def session(self, **options: Any) -> AsyncIterator[Chat]:
        """A client in session mode that has read its `ready`."""
        async with self.connect(SESSIONS, **options) as chat:
            chat.ready = await chat.frame("ready")
            yield chat


class Chat:
    """The client's end of one socket."""

    ready: dict[str, Any]

    def __init__(self, client: ClientConnection) -> None:
        self.client = client

    async def send(self, kind: str, **fields: Any) -> None:
        await self.client.send(json.dumps({"type": kind, **fields}))

    async def say(self, turn: str, content: str = "Hi", **options: Any) -> None:
        await self.send("message", id=turn, content=content, options=options)

    async def text(self) -> str:
        """The next text frame as it came."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            received = await self.client.recv()
        assert isinstance(received, str)
        return received

    async def frame(self, kind: str | None = None) -> dict[str, Any]:
        """The next frame, which must be of this kind."""
        frame: dict[str, Any] = json.loads(await self.text())
        assert kind is None or frame["type"] == kind, frame
        return frame

    async def until(self, *kinds: str) -> list[dict[str, Any]]:
        """All frames up to the first of one of these kinds."""
        frames = [await self.frame()]
        while frames[-1]["type"] not in kinds:
            frames.append(await self.frame())
        return frames

    async def answer(self, turn: str, content: str = "Hi", **options: Any) -> list[dict[str, Any]]:
        """Say something and read to the end of the turn."""
        await self.say(turn, content, **options)
        return await self.until("done", "error")

    async def error(self) -> dict[str, Any]:
        return await self.frame("error")

    async def closed(self) -> tuple[int | None, str | None]:
        """Wait for the close; its code and reason. What comes before is dropped."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while True:
                    await self.client.recv()
            except websockets.ConnectionClosed:
                return self.client.close_code, self.client.close_reason

    async def rest(self) -> list[str]:
        """All text frames up to the close."""
        frames: list[str] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while True:
                    frames.append(str(await self.client.recv()))
            except websockets.ConnectionClosed:
                return frames

    def cut(self) -> None:
        """Lose the connection, without a word to the server."""
        self.client.transport.abort()


def joined(frames: list[dict[str, Any]]) -> str:
    """The text of the deltas among `frames`."""
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


async def eventually(true: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until something is true that nobody announces."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - see the docstring
            await asyncio.sleep(0.005)


async def ended(call: Any, how: str) -> None:
    """Wait until the engine's call is over, and check how."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        await call.over.wait()
    assert call.ended == how


@asynccontextmanager
async def open_house() -> AsyncIterator[House]:
    """The server on a free port, until the block is left."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        house = House(f"ws://127.0.0.1:{sock.getsockname()[1]}/chat")
        config = uvicorn.Config(
            house,
            ws=GoingAway,
            ws_max_size=ChatLimits().max_frame_bytes,
            ws_per_message_deflate=False,
            lifespan="off",
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
        server = house.server = uvicorn.Server(config)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[sock]))
            while not server.started:  # noqa: ASYNC110 - uvicorn does not announce it
                await asyncio.sleep(0.005)
            try:
                yield house
            finally:
                server.should_exit = True
                await serving
