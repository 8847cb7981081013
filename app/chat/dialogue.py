"""Session mode: what the frames of one socket do to the session behind it."""

from __future__ import annotations

import itertools
import time

from app.chat import frames, protocol
from app.chat.connection import Connection, Verdict
from app.chat.live import LiveSession
from app.chat.patience import Patience
from app.chat.protocol import LONGEST_HELLO, ClientFrame, Hello, Ping, Resume, Say, Start, Stop
from app.chat.switchboard import Switchboard
from app.errors import (
    Busy,
    FairgateError,
    InvalidApiKey,
    InvalidFrame,
    InvalidRequest,
    RateLimited,
)
from app.web.caller import Caller

NO_SESSION_SEQ = 0  # of errors before there is a session whose frames could be numbered
HELLO_FIRST = "say `hello` with a key first"


class Dialogue:
    """One socket that speaks frames. A wrong frame is answered and forgiven, too many are not."""

    def __init__(self, house: Switchboard, connection: Connection) -> None:
        self._house = house
        self._connection = connection
        self._live: LiveSession | None = None
        self._just_greeted = False
        self._patience = Patience(
            bad_frames=house.limits.bad_frames,
            frames_per_second=house.limits.frames_per_second,
            now=time.monotonic(),
        )

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""
        return self._live is not None and self._live.session.turn is not None

    async def run(self, first: str | None = None) -> None:
        """Greet, then answer frame by frame; `first` has been read already."""
        connection = self._connection
        if connection.caller is not None:
            await self._open(connection.caller)
        if first is not None:
            self._just_greeted = self._live is not None
            await self._hear(first)
            self._just_greeted = False
        while not connection.closing:
            await self._hear(await connection.next_text())

    def cut(self, problem: FairgateError) -> None:
        """End the running turn with `problem`, or say it to an idle socket, and close."""
        live = self._live
        if live is not None and live.session.turn is not None:
            live.cut(problem)
        elif live is not None:
            self._connection.finish(Verdict.of(problem, live.session.error(problem)))
        else:
            self._connection.finish(Verdict.of(problem, frames.error(NO_SESSION_SEQ, problem)))

    def left(self, *, goodbye: bool) -> None:
        """Let the session wait for its client, unless that said goodbye."""
        live, house = self._live, self._house
        if live is None or live.connection is not self._connection:
            return
        live.connection = None
        if goodbye or house.limits.resume_seconds == 0 or house.ending is not None:
            house.sessions.end(live)
        else:
            house.sessions.detach(live, time.monotonic())

    async def _hear(self, text: str) -> None:
        if self._connection.closing:
            return  # perhaps because the session has moved to another socket
        now = self._connection.heard_seconds = time.monotonic()
        if self._live is None and len(text) > LONGEST_HELLO:
            self._give_up(InvalidApiKey(HELLO_FIRST))
            return
        frame_id = None
        try:
            self._patience.frame(now, len(text))
            fields = protocol.decode(text)
            frame_id = protocol.frame_id(fields)
            frame = protocol.read(fields)
        except (InvalidFrame, InvalidRequest, RateLimited) as problem:
            await self._refuse(problem, frame_id)
            if self._patience.bad():
                self._connection.finish(Verdict.of(InvalidFrame("too many bad frames")))
            return
        try:
            await self._obey(frame, now)
        except FairgateError as problem:
            await self._refuse(problem, frame_id)

    async def _obey(self, frame: ClientFrame, now: float) -> None:
        live = self._live
        if isinstance(frame, Ping):
            await self._connection.outlet.add(frames.PONG)
        elif isinstance(frame, Hello):
            await self._hello(frame)
        elif live is None:
            self._give_up(InvalidApiKey(HELLO_FIRST))
        elif isinstance(frame, Say):
            self._say(live, frame, now)
        elif isinstance(frame, Stop):
            if live.session.stops(frame.id):
                await live.stop()
        elif isinstance(frame, Start):
            await self._connection.outlet.add(live.session.start(frame))
        else:
            await self._resume(live, frame)

    def _say(self, live: LiveSession, frame: Say, now: float) -> None:
        caller = self._connection.caller
        if caller is not None:
            live.begin(frame, caller, now)
            self._patience.good()

    async def _hello(self, frame: Hello) -> None:
        connection = self._connection
        try:
            tenant = self._house.keys.tenant_of(frame.key)
        except InvalidApiKey as problem:
            if self._live is None:
                self._give_up(problem)
                return
            raise
        if self._live is not None:
            if tenant.id != self._live.session.tenant.id:
                raise InvalidFrame("this socket belongs to another key already")
            if not self._just_greeted:
                await connection.outlet.add(self._live.session.ready())
            return
        try:
            caller = connection.caller_for(tenant)
            self._house.claim(connection, caller)
        except FairgateError as problem:
            self._give_up(problem)
            return
        connection.deadline(None)
        await self._open(caller)

    async def _open(self, caller: Caller) -> None:
        try:
            live = self._house.new_session(caller.tenant)
        except FairgateError as problem:
            self._give_up(problem)
            return
        self._live = live
        live.connection = self._connection
        await self._connection.outlet.add(live.session.ready())

    async def _resume(self, fresh: LiveSession, frame: Resume) -> None:
        """Leave the session that this socket came with for the one it asks for."""
        if fresh.session.turn is not None:
            raise Busy("resume before the first message of a connection")
        house, connection = self._house, self._connection
        live = house.sessions.find(frame.session, fresh.session.tenant.id)
        if live is fresh:
            raise InvalidFrame("this connection is the session's own")
        missed = live.session.missed(frame.after)
        house.sessions.end(fresh)
        house.sessions.attach(live)
        before = live.connection
        if before is not None:
            # A connection that its client has lost may look open here for a minute.
            before.outlet.abandon()
            before.finish(Verdict(1000, "resumed elsewhere"))
        self._live = live
        live.connection = connection
        # In one piece: the running turn may post as soon as the socket is its own.
        await connection.outlet.post(itertools.chain((live.session.ready(),), missed))

    async def _refuse(self, problem: FairgateError, frame_id: str | None) -> None:
        live, outlet = self._live, self._connection.outlet
        if live is None:
            await outlet.add(frames.error(NO_SESSION_SEQ, problem, frame_id))
        else:
            await outlet.add(live.session.error(problem, frame_id))

    def _give_up(self, problem: FairgateError) -> None:
        """There is no session and will be none: say why and close."""
        frame = frames.error(NO_SESSION_SEQ, problem)
        self._connection.finish(Verdict.of(problem, frame))
