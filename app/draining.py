"""The uvicorn server that drains before it stops.

uvicorn's own way is to close every WebSocket with 1012 the moment a signal arrives, and to send the
signal to itself again in the end. Here the running answers end first, sockets close with 1001, and
the process leaves with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from socket import socket
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from app import logs
from app.signals import Signals
from app.web.health import Health

GOING_AWAY = 1001  # RFC 6455, section 7.4.1

# After the last answer: for its bytes to leave, and for peers to answer the closing frame.
FLUSH_SECONDS = 5
# A dead engine makes every answer end at once: time to tell the clients, not to wait for anything.
LAST_WORDS_SECONDS = 2.0
# Longer than a healthy engine needs to stop; whatever is left after it is killed.
STOP_SECONDS = 20.0

log = logs.get_logger(__name__)


class Gateway(Protocol):
    """What the server needs of the app: `app.state.gateway`."""

    @property
    def failed(self) -> str | None:
        """Why it cannot go on (start failed, engine dead), for people; None while it can."""

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new work from now on, and return when none runs any more.

        What still runs after `grace_seconds` is given an explicit end, and this returns.
        """

    async def stop(self) -> None:
        """Stop the engine, whatever state it is in; start-up under way is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPlan:
    """`delay_seconds` still serving with readiness 503, then `grace_seconds` for running work."""

    grace_seconds: float
    delay_seconds: float


class GoingAway(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, but when the server stops it says 1001, and waits for the peer's answer.

    Sockets whose session has said goodbye itself are left alone. Closing the transport at once, as
    uvicorn does, resets the connection under a peer that is just sending.
    """

    def shutdown(self) -> None:
        """Called by the server for each connection, once."""
        if not self.handshake_complete or self.transport.is_closing():
            super().shutdown()
            return
        if not self.close_sent:
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY})
            self.conn.send_close(GOING_AWAY, "draining")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.disconnected = True  # a session that speaks on learns that its peer is gone
            self.transport.resume_reading()
        if self.close_timer is None:
            self.close_timer = self.loop.call_later(FLUSH_SECONDS, self.transport.close)

    async def run_asgi(self) -> None:
        """One session, and then a bounded time for its last bytes.

        A closed transport still waits for its buffer to be read; a peer that never reads would
        keep both for as long as it likes.
        """
        await super().run_asgi()
        self.loop.call_later(self.close_timeout + FLUSH_SECONDS, self.transport.abort)


class DrainingServer(uvicorn.Server):
    """Serves until a signal or a failure, then drains, then stops; on `run()`'s thread throughout.

    `beside` runs on the same loop and is cancelled at the end.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        gateway: Gateway,
        health: Health,
        signals: Signals,
        plan: DrainPlan,
        beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._health = health
        self._signals = signals
        self._plan = plan
        self._beside = beside

    async def serve(self, sockets: list[socket] | None = None) -> None:
        """Run to the end; the signals are ours and are not sent again afterwards."""
        async with asyncio.TaskGroup() as group:
            companions = [group.create_task(companion()) for companion in self._beside]
            try:
                await self._serve(sockets)
            finally:
                for companion in companions:
                    companion.cancel()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is time to drain."""
        await super().on_tick(counter)
        if self._gateway.failed is not None:
            return True
        if self._signals.asked_seconds is None:
            return False
        if not self._health.loaded:
            return True  # nobody was ever sent here: no balancer to wait for
        return time.monotonic() - self._signals.asked_seconds >= self._plan.delay_seconds

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Drain, close, stop the engine: each for a bounded time."""
        failed = self._gateway.failed is not None
        grace_seconds = LAST_WORDS_SECONDS if failed else self._plan.grace_seconds
        self._health.drain()
        log.info("server.draining", grace_seconds=grace_seconds)
        with self._logged("server.drain_failed"):
            async with asyncio.timeout(grace_seconds + FLUSH_SECONDS):
                await self._gateway.drain(grace_seconds)
        with self._logged("server.close_failed"):
            async with asyncio.timeout(STOP_SECONDS):
                await super().shutdown(sockets)
        with self._logged("server.stop_failed"):
            async with asyncio.timeout(STOP_SECONDS):
                await self._gateway.stop()

    @contextlib.contextmanager
    def _logged(self, event: str) -> Iterator[None]:
        # Whatever goes wrong on the way out, the next step out is still taken.
        try:
            yield
        except Exception:
            log.exception(event)
