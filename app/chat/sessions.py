"""The sessions that are open, and those that wait for their client to come back."""

from __future__ import annotations

from collections import OrderedDict

from app.chat.live import LiveSession
from app.errors import SessionNotFound


class Sessions:
    """Finds sessions by id; keeps those that lost their socket for `resume_seconds`.

    A tenant may leave `most_detached` of them behind, or as many as it may hold connections; then
    the oldest goes. Times are monotonic seconds.
    """

    def __init__(self, *, resume_seconds: float, most_detached: int) -> None:
        self._resume_seconds = resume_seconds
        self._most_detached = most_detached
        self._all: dict[str, LiveSession] = {}
        self._detached: dict[str, OrderedDict[str, float]] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def detached(self) -> int:
        """Sessions without a socket."""
        return sum(len(lost) for lost in self._detached.values())

    def add(self, live: LiveSession) -> None:
        """A session has begun."""
        self._all[live.session.id] = live

    def find(self, session_id: str, tenant_id: str) -> LiveSession:
        """The tenant's session with this id.

        Raises:
            SessionNotFound: unknown, expired or another tenant's; they look the same from outside.
        """
        live = self._all.get(session_id)
        if live is None or live.session.tenant.id != tenant_id:
            raise SessionNotFound("no such session; it may have expired", param="session")
        return live

    def attach(self, live: LiveSession) -> None:
        """The session has a socket again."""
        tenant_id = live.session.tenant.id
        lost = self._detached.get(tenant_id)
        if lost is not None:
            lost.pop(live.session.id, None)
            if not lost:
                del self._detached[tenant_id]

    def detach(self, live: LiveSession, now: float) -> None:
        """The session has lost its socket; where too many have, the oldest of its tenant ends."""
        tenant = live.session.tenant
        lost = self._detached.setdefault(tenant.id, OrderedDict())
        lost[live.session.id] = now
        most = tenant.limits.connections
        while len(lost) > (self._most_detached if most is None else most):
            self.end(self._all[next(iter(lost))])

    def end(self, live: LiveSession) -> None:
        """Forget the session and abort its turn."""
        self.attach(live)
        self._all.pop(live.session.id, None)
        live.leave()

    def sweep(self, now: float) -> None:
        """End the sessions that nobody has come back to."""
        for lost in list(self._detached.values()):
            for session_id, since in list(lost.items()):
                if now - since < self._resume_seconds:
                    break
                self.end(self._all[session_id])

    def end_detached(self) -> None:
        """Nobody will come back: end all that have no socket."""
        self.sweep(float("inf"))
