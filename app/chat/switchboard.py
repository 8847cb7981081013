"""All open chat sockets and sessions: who may open one, who is silent, and how they all end."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from app.chat.answering import Answering, MakeWork
from app.chat.connection import Connection, Verdict
from app.chat.limits import ChatLimits
from app.chat.live import LiveSession
from app.chat.session import Session
from app.chat.sessions import Sessions
from app.engine.api import TextEngine
from app.errors import Draining, FairgateError, Overloaded, TooManyConnections, TooSlow
from app.tenants.model import Tenant
from app.web.caller import Caller, Keys

SWEEP_SECONDS = 1.0
SESSION_ID_BYTES = 24  # unguessable: the id alone, with the tenant's key, takes a session over


class Switchboard(Answering):
    """The chat of one gateway. Enter `running()` while it serves; `drain()` before that ends."""

    def __init__(
        self,
        *,
        engine: Callable[[], TextEngine],
        keys: Keys,
        make_work: MakeWork,
        limits: ChatLimits | None = None,
    ) -> None:
        limits = limits or ChatLimits()
        super().__init__(engine=engine, make_work=make_work, limits=limits)
        self.keys = keys
        self.sessions = Sessions(
            resume_seconds=limits.resume_seconds, most_detached=limits.detached_sessions
        )
        self._connections: set[Connection] = set()
        self._by_tenant: Counter[str] = Counter()
        self._one_left = asyncio.Event()

    @property
    def open_sockets(self) -> int:
        """Sockets that are open now, for the gauge `websocket_connections`."""
        return len(self._connections)

    def connections_of(self, tenant_id: str) -> int:
        """Sockets of one tenant that are open now."""
        return self._by_tenant[tenant_id]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer until the block ends; what is still being answered then is cut off."""
        async with asyncio.TaskGroup() as group:
            self.open(group)
            sweeper = group.create_task(self._sweep())
            try:
                yield
            finally:
                sweeper.cancel()
                self._end_all(Draining("the server stops"))
        self.open(None)

    def join(self, connection: Connection) -> None:
        """Count an opened socket; its tenant, once known, is counted by `claim`.

        Raises:
            FairgateError: `ending` has been set, or there are too many sockets.
        """
        self.check_open()
        if len(self._connections) >= self.limits.connections:
            raise Overloaded("the server holds as many sockets as it may", retry_after_seconds=5)
        self._connections.add(connection)

    def claim(self, connection: Connection, caller: Caller) -> None:
        """The socket is this caller's.

        Raises:
            TooManyConnections: its tenant holds as many as it may.
        """
        tenant = caller.tenant
        most = tenant.limits.connections
        if most is not None and self._by_tenant[tenant.id] >= most:
            raise TooManyConnections(
                f"the tenant may hold {most} connections", retry_after_seconds=5
            )
        self._by_tenant[tenant.id] += 1
        connection.caller = caller

    def leave(self, connection: Connection) -> None:
        """The socket is closed."""
        self._connections.discard(connection)
        if connection.caller is not None:
            tenant_id = connection.caller.tenant.id
            self._by_tenant[tenant_id] -= 1
            if not self._by_tenant[tenant_id]:
                del self._by_tenant[tenant_id]
        self._one_left.set()

    def new_session(self, tenant: Tenant) -> LiveSession:
        """A session of `tenant` that nobody is attached to yet.

        Raises:
            FairgateError: the engine cannot be asked yet, or the tenant may use no model.
        """
        session = Session(
            session_id=secrets.token_urlsafe(SESSION_ID_BYTES),
            tenant=tenant,
            model=self.engine().model,
            limits=self.limits,
        )
        live = LiveSession(session, self)
        self.sessions.add(live)
        return live

    def sweep(self, now: float) -> None:
        """End what has been silent for too long: readers, clients, lost sessions."""
        for connection in list(self._connections):
            if not connection.closing:
                self._check(connection, now)
        self.sessions.sweep(now)

    def _check(self, connection: Connection, now: float) -> None:
        blocked_since, heard = connection.outlet.blocked_since, connection.heard_seconds
        if blocked_since is not None:
            if now - blocked_since >= self.limits.stall_seconds:
                connection.end(TooSlow("frames were not read in time"))
            return
        silent_seconds = 0.0 if heard is None or connection.busy else now - heard
        if silent_seconds >= self.limits.idle_seconds:
            connection.finish(Verdict(1000, "idle"))

    async def drain(self, grace_seconds: float) -> int:
        """Take nothing new, close idle sockets with 1001, let answers end; how many were cut off.

        Whoever is not done after `grace_seconds` is told `draining` and closed with 1001.
        """
        return await self.end(Draining("the server is about to stop"), grace_seconds)

    async def end(self, problem: FairgateError, grace_seconds: float) -> int:
        """Like `drain`, for any reason why nothing can begin any more, such as a dead engine."""
        self.ending = self.ending or problem
        self.sessions.end_detached()
        for connection in list(self._connections):
            if not connection.busy:
                connection.end(problem)
        await self._until_all_left(grace_seconds)
        cut = self._end_all(problem)
        await self._until_all_left(self.limits.closing_seconds + 0.5)
        return cut

    def _end_all(self, problem: FairgateError) -> int:
        self.ending = self.ending or problem
        self.sessions.end_detached()
        rest = list(self._connections)
        for connection in rest:
            connection.end(problem)
        return len(rest)

    async def _until_all_left(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._connections:
                    self._one_left.clear()
                    await self._one_left.wait()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(time.monotonic())
