"""The route `/chat`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from fastapi import FastAPI
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from app.chat import frames
from app.chat.answering import MakeWork
from app.chat.connection import Connection, Verdict
from app.chat.dialogue import Dialogue
from app.chat.limits import ChatLimits
from app.chat.outlet import Outlet
from app.chat.plain import PlainTalk
from app.chat.protocol import LONGEST_HELLO, speaks_sessions
from app.chat.switchboard import Switchboard
from app.engine.api import TextEngine
from app.errors import FairgateError, InvalidApiKey
from app.tenants.model import Tenant
from app.web.answers import answer_of, encode, error_body, error_headers
from app.web.caller import Caller, Keys

SUBPROTOCOL = "fairgate.chat.v1"


def mount_chat(
    app: FastAPI,
    *,
    engine: Callable[[], TextEngine],
    keys: Keys,
    make_work: MakeWork,
    limits: ChatLimits | None = None,
) -> Switchboard:
    """Serve `/chat` on `app`; the lifespan must enter the returned switchboard's `running()`.

    The door in front has refused what it can by HTTP status, and has put a `Caller` (None where the
    key is to come with `hello`) into `scope["state"]["caller"]`; beside it, `caller_for` may make
    the caller of such a socket from its tenant and headers. `engine` may raise `Loading`.
    """
    switchboard = Switchboard(engine=engine, keys=keys, make_work=make_work, limits=limits)
    app.router.routes.append(WebSocketRoute("/chat", ChatRoute(switchboard)))
    return switchboard


class ChatRoute:
    """One ASGI call a socket: refuse by HTTP status, or accept and talk until it is closed."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket; whatever it is closed for is no error of the server's."""
        state = scope.get("state", {})
        caller: Caller | None = state.get("caller")
        connection = Connection(
            receive=receive,
            outlet=Outlet(send),
            caller_for=state.get("caller_for", _caller_for),
            max_frame_bytes=self._switchboard.limits.max_frame_bytes,
        )
        if (await receive())["type"] != "websocket.connect":
            return
        house = self._switchboard
        try:
            house.join(connection)
            if caller is not None:
                house.claim(connection, caller)
        except FairgateError as problem:
            house.leave(connection)
            await _deny(send, problem)
            return
        try:
            await self._accept(scope, send, connection)
        finally:
            house.leave(connection)

    async def _accept(self, scope: Scope, send: Send, connection: Connection) -> None:
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None
        try:
            await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})
        except OSError:
            return
        connection.heard_seconds = time.monotonic()
        await connection.run(
            self._talk(connection, sessions=subprotocol is not None),
            closing_seconds=self._switchboard.limits.closing_seconds,
        )

    async def _talk(self, connection: Connection, *, sessions: bool) -> None:
        """Find out which mode this is, and let it take over."""
        house, first = self._switchboard, None
        if connection.caller is None:
            problem = InvalidApiKey("no `hello` with a key came in time")
            # Before it is known to speak frames a socket is told nothing but the close code.
            told = frames.error(0, problem) if sessions else None
            connection.deadline(house.limits.hello_seconds, Verdict.of(problem, told))
        if not sessions:
            first = await connection.next_text()
            connection.heard_seconds = now = time.monotonic()
            unknown = connection.caller is None and len(first) > LONGEST_HELLO
            if unknown or not speaks_sessions(first):
                plain = PlainTalk(house, connection)
                connection.talk = plain
                await plain.run(first, now)
                return
        dialogue = Dialogue(house, connection)
        connection.talk = dialogue
        await dialogue.run(first)


def _caller_for(tenant: Tenant) -> Caller:
    """The caller of a socket whose door left that to us."""
    return Caller(
        tenant=tenant,
        request_id=uuid.uuid4().hex,
        arrived_seconds=time.monotonic(),
        work_class="batch" if tenant.work_class == "batch" else None,
    )


async def _deny(send: Send, problem: FairgateError) -> None:
    """Refuse the upgrade by HTTP status, with the body that every route has."""
    body = encode(error_body(problem))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *error_headers(problem),
    ]
    status = answer_of(problem).status
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
