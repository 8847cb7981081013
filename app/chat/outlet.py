"""The way out of one socket: frames leave in order, one at a time, and a stalled reader is seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

AsgiMessage = MutableMapping[str, Any]
Send = Callable[[AsgiMessage], Awaitable[None]]

MOST_WAITING = 64  # answers to a client's own frames that may wait behind a stalled send


class Outlet:
    """Whoever has a frame writes it itself, so that a token costs no switch of tasks.

    Two tasks have frames: the socket's reader and its running turn. Where one of them finds the
    other writing, its frame waits in line. A frame leaves the line only when the server has taken
    it: a writer that is cancelled in between loses nothing. Once the peer is gone frames vanish
    silently, because leaving is normal; the reader is who learns of it.
    """

    __slots__ = ("_abandoned", "_line", "_open", "_send", "_turn_over", "_writer", "blocked_since")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._line: list[str | Iterator[str]] = []
        self._open = True
        self._abandoned = False
        self._writer: asyncio.Task[Any] | None = None
        self._turn_over: asyncio.Event | None = None
        self.blocked_since: float | None = None

    async def post(self, frames: str | Iterator[str]) -> None:
        """Send `frames` and wait until the server has taken all that stands in line."""
        if self._open:
            self._line.append(frames)
            await self._flush()

    async def add(self, frame: str) -> None:
        """Send `frame`, or leave it in line where another one is on its way."""
        if self._open and self._writer is not None and len(self._line) < MOST_WAITING:
            self._line.append(frame)
        else:
            await self.post(frame)

    async def close(self, code: int, reason: str, *, last: str | None = None) -> None:
        """Send what stands in line, `last`, and the close frame; nothing leaves after that."""
        if last is not None:
            self._line.append(last)
        self._open = False
        await self._flush()
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError):
            return

    def abandon(self) -> None:
        """Send nothing more, and free whoever waits for the peer to read."""
        self._open = False
        self._line.clear()
        if self._writer is not None and not self._abandoned:
            self._abandoned = True
            self._writer.cancel()

    async def _flush(self) -> None:
        while self._line:
            if self._writer is None:
                await self._write()
            else:
                if self._turn_over is None:
                    self._turn_over = asyncio.Event()
                await self._turn_over.wait()

    async def _write(self) -> None:
        self._writer = task = asyncio.current_task()
        try:
            while self._line:
                frame = self._line[0]
                if not isinstance(frame, str):
                    following = next(frame, None)
                    if following is None:
                        self._line.pop(0)
                        continue
                    # Put down before it is sent: see the class about cancelled writers.
                    frame = following
                    self._line.insert(0, frame)
                self.blocked_since = time.monotonic()
                await self._send({"type": "websocket.send", "text": frame})
                self._line.pop(0)
        except asyncio.CancelledError:
            # Only a cancellation by abandon() ends here, and only if there was no other.
            if not self._abandoned or task is None or task.uncancel() > 0:
                raise
        except (OSError, RuntimeError):
            # The peer is gone. uvicorn raises RuntimeError once it has failed a connection itself.
            self._open = False
            self._line.clear()
        finally:
            self._abandoned = False
            self._writer = None
            self.blocked_since = None
            if self._turn_over is not None:
                self._turn_over.set()
                self._turn_over = None
