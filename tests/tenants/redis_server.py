"""A Redis of the tests' own, that can be stopped, started and held still."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed"
)


class RedisServer:
    """Keeps nothing when it stops; listens on loopback only."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port)]
        self._command += ["--save", "", "--appendonly", "no", "--dir", str(folder), *options]
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._process = await asyncio.to_thread(
            subprocess.Popen, self._command, stdout=subprocess.DEVNULL
        )
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    await writer.wait_closed()
                    return

    async def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            await asyncio.to_thread(self._process.wait)
            self._process = None

    def hold(self) -> None:
        """It takes connections and never answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
