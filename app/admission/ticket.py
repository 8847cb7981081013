"""One request that wants a turn: what it asks for, where it stands, and its single outcome."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from app.errors import FairgateError

if TYPE_CHECKING:
    from app.admission.account import Account
    from app.admission.kv_peak import Reservation

WorkClass = Literal["interactive", "batch"]
Outcome = Literal["finished", "failed", "aborted", "expired", "rejected"]


class QueueListener(Protocol):
    """Told synchronously, at most a few times a second, where a waiting request stands."""

    def __call__(self, position: int, eta_seconds: float, /) -> None:
        """`position` 1 is next of its tenant and class."""


class State(enum.Enum):
    """Where a ticket is; it only ever moves down this list."""

    NEW = "new"
    WAITING = "waiting"
    GRANTED = "granted"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """A request for one turn; the fields after `part` belong to the scheduler.

    `max_output_tokens` is per sequence. All times are monotonic seconds. `wait_deadline_seconds`
    lowers what the tenant's own limit gives. A `part` belongs to a whole that was accepted before:
    it is delayed, never refused for a full queue or a long wait.
    """

    tenant: str
    work_class: WorkClass
    request_id: str
    prompt_tokens: int
    max_output_tokens: int
    arrived_seconds: float
    sequences: int = 1
    wait_deadline_seconds: float | None = None
    on_queued: QueueListener | None = None
    streamed: bool = False
    part: bool = False

    state: State = field(default=State.NEW, init=False)
    outcome: Outcome | None = field(default=None, init=False)
    error: FairgateError | None = field(default=None, init=False)
    account: Account | None = field(default=None, init=False, repr=False)
    cost: float = field(default=0.0, init=False)
    expected_tokens: int = field(default=0, init=False)
    light: bool = field(default=False, init=False)
    background: bool = field(default=False, init=False)
    holds: bool = field(default=False, init=False)
    reservation: Reservation | None = field(default=None, init=False, repr=False)
    deadline_seconds: float = field(default=float("inf"), init=False)
    predicted_seconds: float | None = field(default=None, init=False)
    modelled_seconds: float | None = field(default=None, init=False)
    told_position: int = field(default=0, init=False)
    submitted_seconds: float = field(default=0.0, init=False)
    granted_seconds: float | None = field(default=None, init=False)
    granted_step: int = field(default=0, init=False)
    first_token_seconds: float | None = field(default=None, init=False)
    last_token_seconds: float | None = field(default=None, init=False)
    cached_tokens: int = field(default=0, init=False)
    output_tokens: int = field(default=0, init=False)

    @property
    def queue_seconds(self) -> float:
        """From arrival at the door to the hand-over to the engine; 0 before that."""
        if self.granted_seconds is None:
            return 0.0
        return max(0.0, self.granted_seconds - self.arrived_seconds)

    @property
    def seconds_per_token(self) -> float | None:
        """From the first token to the last, per token of a sequence; None below two tokens."""
        more = self.output_tokens / self.sequences - 1
        if self.first_token_seconds is None or self.last_token_seconds is None or more <= 0:
            return None
        return (self.last_token_seconds - self.first_token_seconds) / more

    @property
    def payer(self) -> Account:
        """The account that it waits in and is charged to; it must have been submitted."""
        if self.account is None:
            raise LookupError(f"{self.request_id} was never submitted")
        return self.account
