"""The server's life, seen from outside: real processes and sockets, a gateway without engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from tests.test_certificates import make_pair

ROOT = Path(__file__).parent.parent
START_SECONDS = 20
STREAMS = 20

# A child that a polite request does not end, with a grandchild that its own death would orphan.
STUBBORN_FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the grandchild inherits it
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open("{path}.new", "w") as file:
    file.write(f"{{os.getpid()}} {{grandchild.pid}}")
os.rename("{path}.new", "{path}")
if {dies}:
    os._exit(0)
time.sleep(60)
"""


@dataclass
class Server:
    """One process, and where it listens."""

    process: subprocess.Popen[str]
    port: int
    ops: int

    def probe(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.ops}{path}", timeout=5, trust_env=False)

    def url(self, path: str, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    def wait(self, seconds: float = 20) -> tuple[int, str]:
        """Exit code and everything on stderr."""
        _, stderr = self.process.communicate(timeout=seconds)
        return self.process.returncode, stderr

    async def ended(self) -> tuple[int, str]:
        return await asyncio.to_thread(self.wait)

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)


Start = Callable[..., Server]


@pytest.fixture
def start(free_port: Callable[[], int]) -> Iterator[Start]:
    """Starts servers, and ends those that a test has left running."""
    started: list[Server] = []

    def starter(*flags: str, until: str | None = "/readyz", **environment: str) -> Server:
        port, ops = free_port(), free_port()
        settings = {"FAIRGATE_PORT": str(port), "FAIRGATE_OPS_PORT": str(ops), **environment}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fake_gateway", *flags],
            cwd=ROOT,
            env={**os.environ, "FAIRGATE_LOG_FORMAT": "text", **settings},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        server = Server(process, port, ops)
        started.append(server)
        if until is not None:
            wait_for(lambda: server.probe(until).status_code == 200)
        return server

    yield starter
    for server in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)  # what it left behind included
        server.process.communicate()


def wait_for(condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, httpx.HTTPError):
            if condition():
                return
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


async def wait_until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_for, condition)


async def read_stream(client: httpx.AsyncClient, url: str) -> str:
    return (await client.get(url)).text


async def chat(url: str, message: str | None, said: list[str], opened: asyncio.Event) -> int:
    """Say `message` once, collect what comes; returns the close code."""
    async with websockets.connect(url, proxy=None) as socket_:
        if message is not None:
            await socket_.send(message)
            said.append(str(await socket_.recv()))
        opened.set()
        said.extend([str(frame) async for frame in socket_])
    return socket_.close_code or 0


@contextlib.asynccontextmanager
async def http_client() -> Any:
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(timeout=30, limits=limits, trust_env=False) as client:
        yield client


async def test_after_sigterm_every_running_answer_ends_as_it_should(start):
    """Twenty streams on each transport, and idle sockets: nothing is cut, and the code is 0."""
    server = start()
    said: list[list[str]] = [[] for _ in range(STREAMS)]
    opened = [asyncio.Event() for _ in range(STREAMS + 3)]
    async with http_client() as client, asyncio.TaskGroup() as group:
        streams = [
            group.create_task(read_stream(client, server.url("/stream?pieces=30")))
            for _ in range(STREAMS)
        ]
        chats = [
            group.create_task(chat(server.url("/chat", "ws"), "30", said[n], opened[n]))
            for n in range(STREAMS)
        ]
        idle = [
            group.create_task(chat(server.url("/chat", "ws"), None, [], event))
            for event in opened[STREAMS:]
        ]
        for event in opened:
            await event.wait()
        server.tell()
        await wait_until(lambda: server.probe("/readyz").status_code == 503)
        assert server.probe("/readyz").json()["error"]["code"] == "draining"
        assert server.probe("/livez").status_code == 200
        await wait_until(lambda: httpx.get(server.url("/new"), trust_env=False).status_code == 503)
    texts = [stream.result() for stream in streams]
    assert all(text.endswith("data: 29\n\ndata: [DONE]\n\n") for text in texts)
    assert all(frames[-2:] == ["29", "done"] for frames in said)
    assert {task.result() for task in [*chats, *idle]} == {1001}
    code, errors = await server.ended()
    assert code == 0
    assert "Traceback" not in errors


async def test_what_outlives_the_grace_is_told_so(start):
    """The rest gets an explicit end, never [DONE]; a session that hears nothing is closed 1001."""
    server = start(FAIRGATE_DRAIN_SECONDS="0.3")
    said: list[str] = []
    opened = asyncio.Event(), asyncio.Event()
    async with http_client() as client, asyncio.TaskGroup() as group:
        stream = group.create_task(read_stream(client, server.url("/stream?pieces=2000")))
        talking = group.create_task(chat(server.url("/chat", "ws"), "2000", said, opened[0]))
        deaf = group.create_task(chat(server.url("/stubborn", "ws"), None, [], opened[1]))
        for event in opened:
            await event.wait()
        server.tell()
    assert "event: error" in stream.result()
    assert '"code":"draining"' in stream.result()
    assert "[DONE]" not in stream.result()
    assert said[-1] == "error draining"
    assert talking.result() == deaf.result() == 1001
    code, errors = await server.ended()
    assert code == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
async def test_a_second_signal_of_either_kind_ends_at_once(start, tmp_path, second):
    """Children that ignore a polite request included; the code says that it was no proper end."""
    pids = tmp_path / "pids"
    server = start(FAKE_CHILD=STUBBORN_FAMILY.format(path=pids, dies=False))
    await wait_until(pids.exists)
    async with http_client() as client, asyncio.TaskGroup() as group:
        stream = group.create_task(until_cut(client, server.url("/stream?pieces=2000")))
        await wait_until(lambda: server.probe("/readyz").status_code == 200)
        server.tell(signal.SIGINT)
        await wait_until(lambda: server.probe("/readyz").status_code == 503)
        server.tell(second)
        assert (await server.ended())[0] == 128 + second
    assert stream.result() == "cut"
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


async def until_cut(client: httpx.AsyncClient, url: str) -> str:
    try:
        return await read_stream(client, url)
    except httpx.HTTPError:
        return "cut"


@pytest.mark.parametrize("dies", [False, True], ids=["lives on", "is an orphan's parent"])
def test_no_child_outlives_a_proper_end(start, tmp_path, dies):
    pids = tmp_path / "pids"
    server = start(FAKE_CHILD=STUBBORN_FAMILY.format(path=pids, dies=dies))
    wait_for(pids.exists)
    server.tell()
    assert server.wait()[0] == 0
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


# Ends at once when it is interrupted, as an engine does; the test sees that it was.
INTERRUPTIBLE = """
import os, signal, sys, time
def interrupted(number, frame):
    open("{path}.interrupted", "w").close()
    os._exit(1)
signal.signal(signal.SIGINT, interrupted)
open("{path}", "w").close()
time.sleep(60)
"""


async def test_ctrl_c_reaches_the_server_but_not_its_children(start, tmp_path):
    """A terminal sends it to the whole group; the answers still end as they should."""
    ready = tmp_path / "ready"
    server = start(FAKE_CHILD=INTERRUPTIBLE.format(path=ready))
    await wait_until(ready.exists)
    async with http_client() as client, asyncio.TaskGroup() as group:
        stream = group.create_task(read_stream(client, server.url("/stream?pieces=30")))
        await wait_until(lambda: running_answers(server) == 1)
        os.killpg(server.process.pid, signal.SIGINT)
    assert stream.result().endswith("data: [DONE]\n\n")
    assert (await server.ended())[0] == 0
    assert not (tmp_path / "ready.interrupted").exists()


def running_answers(server: Server) -> int:
    return int(httpx.get(server.url("/running"), trust_env=False).text)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_during_the_drain_delay_readiness_is_503_and_work_is_still_served(start):
    server = start(FAIRGATE_DRAIN_DELAY_SECONDS="1.5")
    server.tell()
    wait_for(lambda: server.probe("/readyz").status_code == 503)
    late = httpx.get(server.url("/stream?pieces=3"), trust_env=False)
    assert late.status_code == 200
    assert late.text.endswith("[DONE]\n\n")
    assert server.wait()[0] == 0


def test_while_loading_the_ops_port_says_so_and_sigterm_ends_with_0(start):
    """Alive, not ready, and no drain delay where nobody was ever sent."""
    server = start(until="/livez", FAKE_START="loading", FAIRGATE_DRAIN_DELAY_SECONDS="600")
    response = server.probe("/readyz")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "loading"
    assert int(response.headers["retry-after"]) >= 1
    wait_for(lambda: httpx.get(server.url("/spec"), trust_env=False).status_code == 200)
    server.tell()
    assert server.wait()[0] == 0


def test_the_engines_death_ends_every_answer_and_the_process(start):
    """By itself, with a code that makes a supervisor start it again."""
    server = start()
    with httpx.stream("GET", server.url("/stream?pieces=2000"), trust_env=False) as stream:
        lines = stream.iter_lines()
        next(lines)
        httpx.get(server.url("/die"), trust_env=False)
        rest = list(lines)
    assert "event: error" in rest
    assert "data: [DONE]" not in rest
    code, errors = server.wait()
    assert code == 1
    assert errors.splitlines()[-1] == "fairgate: the engine died"


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        pytest.param("FAIRGATE_PORT", "API port", id="api"),
        pytest.param("FAIRGATE_OPS_PORT", "ops port", id="ops"),
    ],
)
def test_a_taken_port_is_one_readable_line(start, setting, what):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        code, errors = start(until=None, **{setting: str(taken)}).wait()
    assert code == 1
    assert f"fairgate: the {what} 127.0.0.1:{taken} is taken" in errors.splitlines()[-1]
    assert setting in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("flags", "environment", "code", "says"),
    [
        pytest.param([], {"FAKE_START": "fails"}, 1, "not enough memory", id="engine"),
        pytest.param([], {"FAKE_START": "wrong"}, 1, "--max-num-seqs", id="flag"),
        pytest.param([], {"FAIRGATE_HOST": "192.0.2.1"}, 1, "cannot be opened", id="host"),
        pytest.param(
            ["--ssl-certfile=none.pem", "--ssl-keyfile=none.pem"], {}, 1, "No such file", id="tls"
        ),
    ],
)
def test_a_failed_start_says_why_in_its_last_line(start, flags, environment, code, says):
    got, errors = start(*flags, until=None, **environment).wait()
    assert got == code
    assert errors.splitlines()[-1].startswith("fairgate: ")
    assert says in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_where_logs_are_json_a_failed_start_is_json_too(start):
    _, errors = start(until=None, FAKE_START="fails", FAIRGATE_LOG_FORMAT="json").wait()
    last = json.loads(errors.splitlines()[-1])
    assert last["event"] == "server.failed"
    assert "not enough memory" in last["reason"]


def test_probes_and_metrics_are_answered_while_the_loop_is_blocked(start):
    """And the lag of the loop shows afterwards."""
    server = start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as busy:
        busy.sendall(b"GET /busy?seconds=3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        seen = b""
        while b"blocked" not in seen:
            seen += busy.recv(1000)
        for path in ("/livez", "/readyz", "/metrics"):
            assert server.probe(path).status_code == 200
        busy.setblocking(False)
        with pytest.raises(BlockingIOError):  # blocked until now
            busy.recv(1)
    wait_for(lambda: lag_seconds(server) > 1)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_with_a_certificate_the_port_speaks_tls(start, tmp_path):
    certificate, key = make_pair(tmp_path, "localhost")
    server = start(f"--ssl-certfile={certificate}", f"--ssl_keyfile={key}")
    response = httpx.get(server.url("/spec", "https"), verify=False, trust_env=False)
    assert response.text == "2.3"
    server.tell()
    code, errors = server.wait()
    assert code == 0
    assert f"https://127.0.0.1:{server.port}" in errors


def lag_seconds(server: Server) -> float:
    lines = server.probe("/metrics").text.splitlines()
    line = next(line for line in lines if line.startswith("fairgate_event_loop_lag_seconds_sum"))
    return float(line.split()[-1])


def test_the_server_announces_an_asgi_version_that_reports_disconnects(start):
    """Streams are cancelled when their client leaves only under 2.3; 2.4 would raise in send."""
    server = start()
    response = httpx.get(server.url("/spec"), trust_env=False)
    assert response.text == "2.3"
    assert "server" not in response.headers
