"""A running server with `/summarize`, a scripted engine behind it and a stub of the door before."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from app.engine.api import Api, Outcome, Work
from app.errors import FairgateError
from app.summaries.limits import SummaryLimits
from app.summaries.routes import mount_summaries
from app.tenants.model import Tenant
from app.web.caller import Caller
from tests.scripted_engine import ScriptedEngine

# Longer than what is its own summary, and of different sentences.
TEXT = (
    "The council voted on Tuesday to close the market hall by the bridge. "
    "Engineers had found that its iron roof was rusted through in eleven places. "
    "Forty traders will move to a car park behind the station in June. "
    "Residents collected three thousand signatures against it."
)
SUMMARY = ["The council closes ", "the market hall. ", "Traders move ", "in June."]


def limits_with(**limits: Any) -> SummaryLimits:
    """Limits under which texts of any length are read."""
    return SummaryLimits(**{"calls": 4096, **limits})


@dataclass(frozen=True, slots=True)
class Ended:
    """How one request ended, as the metrics would learn."""

    outcome: Outcome
    code: str | None
    work: Work


class House:
    """One server for all tests; engine, limits and tenant are new for each."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.reset()

    def reset(self) -> None:
        self.engine = ScriptedEngine()
        self.engine.answer = lambda _: SUMMARY
        self.limits = limits_with()
        self.tenant = Tenant(id="acme")
        self.ends: list[Ended] = []
        self.refusal: FairgateError | None = None
        self.deadline_seconds: float | None = None
        self.visits = self.arrived = 0

    @property
    def end(self) -> Ended:
        """The one end that was recorded."""
        (end,) = self.ends
        return end

    def make_work(self, caller: Caller, api: Api, *, streamed: bool, batch: bool = False) -> Work:
        return Work(
            tenant=caller.tenant.id,
            api=api,
            request_id=caller.request_id,
            arrived_seconds=caller.arrived_seconds,
            work_class="batch" if batch else "interactive",
            streamed=streamed,
            deadline_seconds=None
            if self.deadline_seconds is None
            else caller.arrived_seconds + self.deadline_seconds,
            on_end=lambda work, outcome, code: self.ends.append(Ended(outcome, code, work)),
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The door: says who is calling."""
        app = FastAPI()
        if self.refusal is not None:
            raise self.refusal
        mount_summaries(
            app, engine=lambda: self.engine, make_work=self.make_work, limits=self.limits
        )
        scope.setdefault("state", {})["caller"] = Caller(
            tenant=self.tenant, request_id="r1", arrived_seconds=time.monotonic()
        )
        self.visits += 1
        self.arrived += 1
        try:
            await app(scope, receive, send)
        finally:
            self.visits -= 1

    async def post(self, body: Any = None, path: str = "/summarize", **options: Any) -> Answer:
        """One request to the end."""
        if body is not None:
            options["json"] = body
        async with httpx.AsyncClient(base_url=self.url, timeout=20) as client:
            response = await client.post(path, **options)
        return Answer(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def stream(self, body: Any, path: str = "/summarize") -> AsyncIterator[Stream]:
        """One streamed request, to be read event by event or left."""
        body = {"stream": True, **body}
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=20) as client,
            client.stream("POST", path, json=body) as response,
        ):
            yield Stream(response)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response."""

    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> Any:
        return self.json["error"]


class Stream:
    """Server-sent events as they come; comments are events named `:`."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self._response = response
        self._events = self._read()

    async def _read(self) -> AsyncIterator[tuple[str, Any]]:
        buffer = b""
        async for data in self._response.aiter_bytes():
            buffer += data
            while b"\n\n" in buffer:
                block, buffer = buffer.split(b"\n\n", 1)
                yield parsed(block)
        assert not buffer

    async def next(self) -> tuple[str, Any]:
        return await anext(self._events)

    async def rest(self) -> list[tuple[str, Any]]:
        return [event async for event in self._events]


def parsed(block: bytes) -> tuple[str, Any]:
    lines = block.decode().splitlines()  # as strict as the readers that split at U+2028 too
    if lines[0].startswith(":"):
        (comment,) = lines
        return ":", comment[1:].strip()
    name, data = lines
    assert name.startswith("event: ")
    assert data.startswith("data: ")
    return name[7:], json.loads(data[6:])


@asynccontextmanager
async def open_house() -> AsyncIterator[House]:
    """The server on a free port, until the block is left."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        house = House(f"http://127.0.0.1:{sock.getsockname()[1]}")
        config = uvicorn.Config(
            house, log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[sock]))
            while not server.started:  # noqa: ASYNC110 - uvicorn tells of it by this flag alone
                await asyncio.sleep(0.005)
            try:
                yield house
            finally:
                server.should_exit = True
                await serving
