"""A real gateway in a process of its own, as a user starts it, for tests over real sockets."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

SIMULATED = ("--simulate", "base=5,token=0.01,kv_tokens=60000", "--max-num-seqs", "64")
READY_SECONDS = 240
# Read before any test takes the settings out of the environment.
CACHE_DIR = os.environ.get("FAIRGATE_CACHE_DIR")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass(slots=True)
class Served:
    """A running gateway; `log` is the file that its output goes to."""

    process: subprocess.Popen[bytes]
    port: int
    ops_port: int
    log: Path
    model: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ops_url(self) -> str:
        return f"http://127.0.0.1:{self.ops_port}"

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels; 0 where there is none."""
        page = httpx.get(self.ops_url + "/metrics", trust_env=False).text
        total = 0.0
        for line in page.splitlines():
            match = re.match(r"([a-zA-Z_:]+)(\{[^}]*\})? (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(match[3])
        return total

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def output(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def launched(*flags: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    """A gateway that has just been started; ended, with its children, afterwards."""
    port, ops_port = free_port(), free_port()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FAIRGATE_")}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve", *flags],
                cwd=folder,
                env=clean
                | {"FAIRGATE_PORT": str(port), "FAIRGATE_OPS_PORT": str(ops_port)}
                | ({"FAIRGATE_CACHE_DIR": CACHE_DIR} if CACHE_DIR else {})
                | (env or {}),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        served = Served(process, port, ops_port, log)
        try:
            yield served
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@contextmanager
def serving(*flags: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    """A gateway that is ready."""
    with launched(*flags, env=env) as served:
        wait_ready(served)
        models = httpx.get(served.url + "/v1/models", trust_env=False).json()
        if "data" in models:
            served.model = models["data"][0]["id"]
        yield served


def wait_ready(served: Served, seconds: float = READY_SECONDS) -> None:
    """Wait for `/readyz`; fails with the end of the log where the gateway ended first."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if served.process.poll() is not None:
            raise AssertionError(f"exited {served.process.returncode}: {served.output()[-2000:]}")
        try:
            if httpx.get(served.ops_url + "/readyz", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"not ready in {seconds} s: {served.output()[-2000:]}")
