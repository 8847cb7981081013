"""Puts what happens into events."""

from __future__ import annotations

from app.admission.account import Account
from app.admission.events import (
    Ended,
    FirstToken,
    Granted,
    Observer,
    Refused,
    Served,
    Waiting,
)
from app.admission.ticket import Ticket, WorkClass
from app.errors import FairgateError
from app.errors import Refused as RefusedError


class Reporter:
    """Tells the observer; sums tokens per account until `served()`."""

    def __init__(self, observer: Observer) -> None:
        self._tell = observer.on_event
        self._unreported: dict[Account, None] = {}

    def refused(self, tenant: str, work_class: WorkClass, error: FairgateError) -> None:
        """Turned away before it waited."""
        seconds = error.retry_after_seconds if isinstance(error, RefusedError) else 0.0
        self._tell(
            Refused(
                tenant=tenant,
                work_class=work_class,
                code=error.code,
                retry_after_seconds=seconds,
            )
        )

    def waiting(self, ticket: Ticket, position: int) -> None:
        """Has to wait."""
        self._tell(
            Waiting(
                tenant=ticket.tenant,
                work_class=ticket.work_class,
                request_id=ticket.request_id,
                position=position,
                eta_seconds=ticket.predicted_seconds or 0.0,
            )
        )

    def granted(self, ticket: Ticket) -> None:
        """May go."""
        self._tell(
            Granted(
                tenant=ticket.tenant,
                work_class=ticket.work_class,
                request_id=ticket.request_id,
                sequences=ticket.sequences,
                prompt_tokens=ticket.prompt_tokens,
                queue_seconds=ticket.queue_seconds,
                predicted_seconds=ticket.predicted_seconds,
            )
        )

    def first_token(self, account: Account, ticket: Ticket, now: float) -> None:
        """The prompt is done."""
        counts = account.unreported
        counts[0] += ticket.prompt_tokens - ticket.cached_tokens
        counts[1] += ticket.cached_tokens
        self._unreported[account] = None
        self._tell(
            FirstToken(
                tenant=ticket.tenant,
                work_class=ticket.work_class,
                request_id=ticket.request_id,
                seconds=now - ticket.arrived_seconds,
                prompt_tokens=ticket.prompt_tokens,
                cached_tokens=ticket.cached_tokens,
            )
        )

    def tokens(self, account: Account, count: int) -> None:
        """Output was made."""
        account.unreported[2] += count
        self._unreported[account] = None

    def served(self) -> None:
        """One event for every account that got something since the last call."""
        if self._unreported:
            accounts, self._unreported = self._unreported, {}
            for account in accounts:
                self._served(account)

    def ended(self, ticket: Ticket, now: float) -> None:
        """Its one outcome; what its tenant got until here is told before."""
        account, granted = ticket.account, ticket.granted_seconds is not None
        if account in self._unreported:
            del self._unreported[account]
            self._served(account)
        self._tell(
            Ended(
                tenant=ticket.tenant,
                work_class=ticket.work_class,
                request_id=ticket.request_id,
                outcome=ticket.outcome or "aborted",
                code=None if ticket.error is None else ticket.error.code,
                granted=granted,
                queue_seconds=ticket.queue_seconds if granted else now - ticket.arrived_seconds,
                output_tokens=ticket.output_tokens,
                seconds_per_token=ticket.seconds_per_token,
            )
        )

    def _served(self, account: Account) -> None:
        prompt, cached, completion = account.unreported
        account.unreported = [0, 0, 0]
        self._tell(
            Served(
                tenant=account.tenant,
                work_class=account.work_class,
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=completion,
            )
        )
