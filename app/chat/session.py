"""One conversation as a state machine: frames and engine events in, frames out, `now` a parameter.

It knows no socket and no engine, so it survives the one and is tested without the other.

    idle --message--> running --(done | error | stopped)--> idle

`seq` counts `started`, `delta`, `done` and `error`, and each of these goes into the journal before
it is returned: whatever was numbered can be heard again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from app.chat import frames
from app.chat.history import History
from app.chat.journal import Journal
from app.chat.limits import ChatLimits
from app.chat.models import model_for
from app.chat.options import GivenOptions
from app.chat.protocol import Say, Start
from app.chat.queue_reports import QueueReports
from app.engine.api import End, ModelInfo, Options, Timing, Usage
from app.errors import Busy, FairgateError, InvalidFrame, NotFound
from app.tenants.model import Tenant


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """One message being answered; times are monotonic seconds."""

    id: str
    content: str
    options: Options
    model: str | None
    began_seconds: float
    prefix: str
    said: list[str] = field(default_factory=list)
    reports: QueueReports = field(default_factory=QueueReports)
    prompt_tokens: int = 0
    queue_seconds: float | None = None
    first_seconds: float | None = None


class Session:
    """History, options and the running turn of one conversation of `tenant`."""

    def __init__(
        self, *, session_id: str, tenant: Tenant, model: ModelInfo, limits: ChatLimits
    ) -> None:
        self.id = session_id
        self.tenant = tenant
        self.turn: Turn | None = None
        self.turns = 0
        self.history = History()
        self._info = model
        self._limits = limits
        self._model = model_for(tenant, model)
        self._options = GivenOptions()
        self._journal = Journal(limits.replay_bytes)
        self._seq = 0
        self._last_turn_id: str | None = None
        self._last_turn_seq = 0

    def ready(self) -> str:
        """The frame that says which session this is and which model answers."""
        return frames.ready(self.id, self._model)

    def start(self, frame: Start) -> str:
        """Set up the conversation; answered by `ready` again.

        Raises:
            InvalidFrame: a message was sent before.
            NotFound: no such model, or not for this tenant.
        """
        if self.turns:
            raise InvalidFrame("`start` comes before the first message")
        self._model = model_for(self.tenant, self._info, frame.model)
        self._options = frame.options
        self.history = History(frame.system, frame.history)
        return self.ready()

    def begin(self, frame: Say, now: float) -> Turn:
        """Make `frame` the running turn.

        Raises:
            Busy: another one runs.
        """
        if self.turn is not None:
            raise Busy("one message at a time: the one before is still being answered")
        limits = self._limits
        options = frame.options.over(self._options).resolve(
            default_tokens=limits.default_max_tokens,
            most_tokens=self.tenant.limits.output_tokens,
        )
        # Who sends the next message has heard the last answer, or asks for it again very soon.
        self._journal.forget(self._last_turn_seq)
        self._last_turn_seq = self._seq
        self.turns += 1
        self._last_turn_id = frame.id
        self.turn = Turn(
            id=frame.id,
            content=frame.content,
            options=options,
            model=None if self._model == self._info.name else self._model,
            began_seconds=now,
            prefix=frames.delta_prefix(frame.id),
        )
        return self.turn

    def stops(self, turn_id: str) -> bool:
        """Whether there is a turn to stop; one that has just ended is stopped already.

        Raises:
            NotFound: this is neither the running turn nor the last one.
        """
        if turn_id != self._last_turn_id:
            raise NotFound("no such message is being answered", param="id")
        return self.turn is not None

    def started(self, queue_seconds: float) -> str:
        """The engine has the turn."""
        turn = self._running()
        turn.queue_seconds = queue_seconds
        return self._kept(frames.started(turn.id, self._next(), queue_seconds))

    def delta(self, text: str, now: float) -> str:
        """More of the answer; once per token."""
        turn = self._running()
        if turn.first_seconds is None:
            turn.first_seconds = now
        turn.said.append(text)
        self._seq += 1
        self._journal.delta(self._seq, turn.prefix, text)
        return frames.delta(turn.prefix, self._seq, text)

    def done(self, end: End) -> str:
        """The answer is complete and part of the history."""
        return self._over(end.finish_reason, end.usage, end.timing)

    def stopped(self, usage: Usage, now: float) -> str:
        """The turn was stopped; what was said stays in the history."""
        turn = self._running()
        waited = now - turn.began_seconds
        timing = Timing(
            queue_seconds=waited if turn.queue_seconds is None else turn.queue_seconds,
            ttft_seconds=(turn.first_seconds or now) - turn.began_seconds,
            total_seconds=waited,
        )
        return self._over("stopped", usage, timing)

    def failed(self, problem: FairgateError) -> str:
        """The turn ended by an error: it never happened, so that it can be sent again."""
        turn = self._running()
        self.turn = None
        return self._kept(frames.error(self._next(), problem, turn.id))

    def error(self, problem: FairgateError, turn_id: str | None = None) -> str:
        """Something else went wrong; a running turn goes on."""
        return self._kept(frames.error(self._next(), problem, turn_id))

    def queue_report(self, now: float) -> str | None:
        """Where the waiting turn stands, if that is news."""
        turn = self._running()
        if turn.reports.due_in(now) != 0.0:
            return None
        turn.reports.reported(now)
        return self._standing(turn)

    def missed(self, after: int) -> Iterator[str]:
        """What a client has to hear that heard frame `after` last, in order.

        Raises:
            SessionNotFound: part of it is no longer kept.
            InvalidFrame: there never was such a frame.
        """
        heard_again = self._journal.after(after)
        standing = None
        if self.turn is not None and self.turn.queue_seconds is None:
            standing = self._standing(self.turn)

        def replay() -> Iterator[str]:
            yield from heard_again
            if standing is not None:
                yield standing

        return replay()

    def _running(self) -> Turn:
        if self.turn is None:
            raise RuntimeError("no turn is running")
        return self.turn

    def _standing(self, turn: Turn) -> str | None:
        if turn.reports.latest is None:
            return None
        position, eta_seconds = turn.reports.latest
        return frames.queued(turn.id, position, eta_seconds)

    def _over(self, reason: str, usage: Usage, timing: Timing) -> str:
        turn = self._running()
        self.turn = None
        if turn.said or reason != "stopped":
            self.history.add(turn.content, "".join(turn.said))
        return self._kept(frames.done(turn.id, self._next(), reason, usage, timing))

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _kept(self, frame: str) -> str:
        self._journal.whole(self._seq, frame)
        return frame
