"""From the first second to the exit code, with vLLM's real processes: start, drain, death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from tests.serving import SIMULATED, Served, launched, serving, wait_ready

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

CHAT = "/v1/chat/completions"
# Twenty such answers fit the KV cache together, or some would wait; 12 s at 5 ms a step.
LONG = 2500


def descendants(pid: int) -> set[int]:
    """Every living process below `pid`."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                found |= {int(child)} | descendants(int(child))
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def engine_core(served: Served) -> int:
    """The process id of vLLM's EngineCore."""
    for pid in descendants(served.process.pid):
        if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no EngineCore")


async def exit_code(served: Served, within_seconds: float) -> int:
    return await asyncio.to_thread(served.process.wait, within_seconds)


class Stream:
    """One long answer over SSE or WebSocket: what came, and how it ended."""

    def __init__(self, served: Served, tokens: int) -> None:
        self.served = served
        self.tokens = tokens
        self.begun = asyncio.Event()
        self.frames: list[Any] = []
        self.close_code: int | None = None
        self.ended_seconds = 0.0

    async def over_sse(self) -> None:
        body = {
            "model": self.served.model,
            "messages": [{"role": "user", "content": f"{id(self)}"}],
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with (
            httpx.AsyncClient(base_url=self.served.url, timeout=60, trust_env=False) as client,
            client.stream("POST", CHAT, json=body) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    self.frames.append(line[6:])
                    self.begun.set()
        self.ended_seconds = time.monotonic()

    async def over_websocket(self) -> None:
        url = self.served.url.replace("http", "ws") + "/chat"
        async with websockets.connect(
            url, subprotocols=[websockets.Subprotocol("fairgate.chat.v1")], proxy=None
        ) as socket:
            await socket.recv()
            options = {"max_tokens": self.tokens}
            message = {"type": "message", "id": "1", "content": "hi", "options": options}
            await socket.send(json.dumps(message))
            with contextlib.suppress(websockets.ConnectionClosedError):
                async for text in socket:
                    frame = json.loads(text)
                    self.frames.append(frame)
                    if frame["type"] == "delta":
                        self.begun.set()
        self.close_code = socket.close_code
        self.ended_seconds = time.monotonic()


@contextlib.asynccontextmanager
async def running_streams(served: Served, tokens: int) -> Any:
    """Ten streams on each transport, all under way; awaited at the end of the block."""
    sse = [Stream(served, tokens) for _ in range(10)]
    chats = [Stream(served, tokens) for _ in range(10)]
    async with asyncio.TaskGroup() as group:
        for stream in sse:
            group.create_task(stream.over_sse())
        for stream in chats:
            group.create_task(stream.over_websocket())
        async with asyncio.timeout(60):
            for stream in (*sse, *chats):
                await stream.begun.wait()
        yield sse, chats


async def test_sigterm_lets_twenty_streams_end_properly_and_leaves_nothing_running() -> None:
    with serving(*SIMULATED) as served:
        children = descendants(served.process.pid)
        assert children
        async with running_streams(served, 400) as (sse, chats):
            served.signal(signal.SIGTERM)
            async with httpx.AsyncClient(trust_env=False) as client:
                ready = await client.get(served.ops_url + "/readyz")
                assert (ready.status_code, ready.json()["error"]["code"]) == (503, "draining")
                await asyncio.sleep(0.3)  # until the next look of the server at its signals
                refused = await client.get(served.url + "/v1/models")
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
                assert refused.headers["retry-after"]
                assert (await client.get(served.ops_url + "/livez")).status_code == 200
        for stream in sse:
            usage, end = stream.frames[-2:]
            assert json.loads(usage)["usage"]["completion_tokens"] == 400
            assert end == "[DONE]"
        for stream in chats:
            done = stream.frames[-1]
            assert (done["type"], done["usage"]["completion_tokens"]) == ("done", 400)
            assert stream.close_code == 1001
        assert await exit_code(served, 30) == 0
        # Python's own resource tracker leaves by itself, a moment after its parent.
        for _ in range(100):
            if not [pid for pid in children if alive(pid)]:
                break
            await asyncio.sleep(0.05)
        assert not [pid for pid in children if alive(pid)]
        assert "Traceback" not in served.output()


async def test_beyond_the_grace_every_stream_is_told_why_and_the_exit_is_clean() -> None:
    with serving(*SIMULATED, env={"FAIRGATE_DRAIN_SECONDS": "1"}) as served:
        async with running_streams(served, LONG) as (sse, chats):
            served.signal(signal.SIGTERM)
        for stream in sse:
            assert "[DONE]" not in stream.frames
            assert json.loads(stream.frames[-1])["error"]["code"] == "draining"
        for stream in chats:
            assert (stream.frames[-1]["type"], stream.frames[-1]["code"]) == ("error", "draining")
            assert stream.close_code == 1001
        assert await exit_code(served, 30) == 0


async def test_a_dead_engine_is_told_to_every_stream_within_a_second_and_ends_the_process() -> None:
    with serving(*SIMULATED) as served:
        async with running_streams(served, LONG) as (sse, chats):
            killed_seconds = time.monotonic()
            os.kill(engine_core(served), signal.SIGKILL)
        for stream in sse:
            assert "[DONE]" not in stream.frames
            assert json.loads(stream.frames[-1])["error"]["code"] == "engine_dead"
        for stream in chats:
            errors = [frame for frame in stream.frames if frame["type"] == "error"]
            assert [frame["code"] for frame in errors] == ["engine_dead"]
            assert stream.close_code == 1011
        last_seconds = max(stream.ended_seconds for stream in (*sse, *chats))
        # The issue's own bound; measured about 0.2 s on two busy cores.
        assert last_seconds - killed_seconds < 5
        assert await exit_code(served, 60) != 0


async def test_both_ports_answer_from_the_first_seconds_and_say_that_the_model_loads() -> None:
    with launched(*SIMULATED) as served:
        async with httpx.AsyncClient(trust_env=False) as client:
            live = await until_answered(client, served.ops_url + "/livez")
            assert live.status_code == 200
            ready = await client.get(served.ops_url + "/readyz")
            assert (ready.status_code, ready.json()["error"]["code"]) == (503, "loading")
            for path in ("/v1/models", "/summarize"):
                early = await until_answered(client, served.url + path)
                assert (early.status_code, early.json()["error"]["code"]) == (503, "loading")
                assert early.headers["retry-after"]
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(served.url.replace("http", "ws") + "/chat", proxy=None)
            assert refused.value.response.status_code == 503
            await asyncio.to_thread(wait_ready, served)
            models = await client.get(served.url + "/v1/models")
            assert models.status_code == 200


async def until_answered(client: httpx.AsyncClient, url: str) -> httpx.Response:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(httpx.TransportError):
                return await client.get(url)
            await asyncio.sleep(0.05)


async def test_sigterm_during_the_start_ends_it_cleanly() -> None:
    with launched(*SIMULATED) as served:
        async with httpx.AsyncClient(trust_env=False) as client:
            await until_answered(client, served.url + "/health")
        await asyncio.sleep(3)
        served.signal(signal.SIGTERM)
        assert await exit_code(served, 60) == 0


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--max-num-sequences", "4"], "--max-num-sequences"),
        (["--api-server-count", "2"], "--api-server-count"),
        (["--simulate", "9b"], "9b"),
        (["no/such-model-here", "--max-model-len", "64"], "no/such-model-here"),
    ],
    ids=["unknown flag", "refused flag", "unknown law", "missing model"],
)
async def test_a_start_that_fails_says_so_in_one_line_and_a_code(
    flags: list[str], word: str
) -> None:
    with launched(*flags, env={"HF_HUB_OFFLINE": "1"}) as served:
        assert await exit_code(served, 120) not in (0, None)
        told = [line for line in served.output().splitlines() if '"server.failed"' in line]
        assert len(told) == 1, served.output()[-2000:]
        assert word in json.loads(told[0])["reason"]


async def test_short_answers_never_wait_for_long_ones() -> None:
    """Continuous batching: four sequences, twelve clients, and nobody waits for the longest."""
    flags = ("--simulate", "base=5,token=0.01", "--max-num-seqs", "4")
    lengths = [400, 20, 20, 20, 200, 20, 20, 20, 100, 20, 20, 20]
    with serving(*flags) as served:
        order: list[int] = []

        async def one(client: httpx.AsyncClient, tokens: int) -> None:
            body = {
                "model": served.model,
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": tokens,
                "ignore_eos": True,
            }
            response = await client.post(CHAT, json=body)
            assert response.json()["usage"]["completion_tokens"] == tokens
            order.append(tokens)

        async with (
            httpx.AsyncClient(base_url=served.url, timeout=60, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            for tokens in lengths:
                group.create_task(one(client, tokens))
        # One slot works through the long one; the others serve everybody else meanwhile.
        assert order[-1] == 400
        assert order[:3] == [20, 20, 20]
        assert order.index(100) < order.index(400)
