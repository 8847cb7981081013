"""The state machine of admission: what happens comes in, and who may go comes out.

No clock and no await: `now` is a parameter, in monotonic seconds that never go back. Everything
that happens is told to the observer. `pump()` after any input gives the tickets that left the
queue since: granted, expired, or failed with the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from app.admission.account import Account
from app.admission.deadlines import Deadlines
from app.admission.events import Observer, Silence
from app.admission.fairness import FairnessMeter
from app.admission.forecast import Forecast
from app.admission.gate import Gate
from app.admission.holds import Holds
from app.admission.ledger import Ledger
from app.admission.lengths import Lengths
from app.admission.policy import BatchPolicy, Capacity, Fair, Hindrance
from app.admission.positions import Positions
from app.admission.reporter import Reporter
from app.admission.rules import Rules
from app.admission.statistics import Statistics
from app.admission.tenant_share import TenantShare
from app.admission.ticket import Outcome, State, Ticket, WorkClass
from app.admission.window import Window
from app.errors import FairgateError, TimedOut


class Scheduler:
    """The ledger says who is next, the policy whether it fits, the gate who may wait at all.

    `jitter()` gives a number between 0 and 1, to spread those who are told to come back.
    """

    def __init__(
        self,
        capacity: Capacity,
        *,
        policy: BatchPolicy | None = None,
        rules: Rules | None = None,
        observer: Observer | None = None,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        rules = Rules() if rules is None else rules
        self._report = Reporter(observer or Silence())
        self._ledger = Ledger(rules)
        self._lengths = Lengths()
        self._window = Window(capacity, self._lengths)
        self._forecast = Forecast(self._ledger.all_bands, jitter or (lambda: 0.5))
        self._gate = Gate(
            rules,
            policy or Fair(),
            ledger=self._ledger,
            lengths=self._lengths,
            window=self._window,
            forecast=self._forecast,
        )
        self._positions = Positions(self._forecast.eta)
        self._deadlines = Deadlines()
        self._holds = Holds()
        self._fairness = FairnessMeter()
        self._paced = False
        self._left: list[Ticket] = []

    @property
    def policy(self) -> BatchPolicy:
        """How much at once; may be replaced while it runs."""
        return self._gate.policy

    @policy.setter
    def policy(self, policy: BatchPolicy) -> None:
        self._gate.policy = policy

    def set_tenant(self, share: TenantShare) -> None:
        """The tenant's share and limits from now on."""
        self._ledger.set_share(share)

    def forget_tenant(self, tenant: str) -> None:
        """The tenant has the default share from now on."""
        self._ledger.forget(tenant)

    def drain(self) -> None:
        """Refuse whoever comes now, but parts of what was accepted."""
        self._gate.draining = True

    def check(
        self,
        tenant: str,
        work_class: WorkClass,
        *,
        now: float,
        sequences: int = 1,
        arrived_seconds: float | None = None,
        max_wait_seconds: float | None = None,
    ) -> None:
        """Raise what `submit()` would raise now, as far as it is known without the prompt."""
        try:
            self._gate.check(
                tenant,
                work_class,
                now=now,
                sequences=sequences,
                arrived_seconds=now if arrived_seconds is None else arrived_seconds,
                max_wait_seconds=max_wait_seconds,
            )
        except FairgateError as error:
            self._report.refused(tenant, work_class, error)
            raise

    def submit(self, ticket: Ticket, now: float) -> None:
        """The ticket waits from now on; `pump()` may grant it at once.

        Raises:
            FairgateError: it may not even wait; then it has ended as rejected.
        """
        try:
            self._gate.admit(ticket, now)
        except FairgateError as error:
            self._report.refused(ticket.tenant, ticket.work_class, error)
            raise
        account = ticket.account = self._ledger.account(ticket.tenant, ticket.work_class)
        ticket.state = State.WAITING
        self._ledger.push(account, ticket, now)
        self._deadlines.add(ticket)

    def announce(self, ticket: Ticket, now: float) -> None:
        """After a `pump()` that did not grant it: tell a new ticket where it stands."""
        account = ticket.payer
        if ticket.modelled_seconds is not None:
            ticket.predicted_seconds = self._forecast.likely(account.band, ticket.modelled_seconds)
        self._report.waiting(ticket, self._positions.joined(account, ticket, now))

    def pump(self, now: float) -> list[Ticket]:
        """Grant whoever may go; the tickets that left the queue since the last call."""
        while (account := self._next(now)) is not None:
            self._grant(account, now)
        left, self._left = self._left, []
        return left

    def first_token(self, ticket: Ticket, cached_tokens: int, now: float) -> None:
        """The engine has made the first token; so many of the prompt's came from its cache."""
        if ticket.state is not State.GRANTED or ticket.first_token_seconds is not None:
            return
        ticket.first_token_seconds = now
        ticket.cached_tokens = min(max(0, cached_tokens), ticket.prompt_tokens)
        if ticket.cached_tokens:
            self._ledger.refund_cached(ticket.payer, ticket.cached_tokens)
        self._window.first_token(ticket)
        self._forecast.first_token(now - (ticket.granted_seconds or now))
        self._report.first_token(ticket.payer, ticket, now)

    def tokens(self, ticket: Ticket, count: int, now: float) -> None:
        """The engine has made more tokens; what it makes after an abort counts too."""
        if not ticket.holds:
            return
        if ticket.first_token_seconds is None:
            self.first_token(ticket, 0, now)
        account = ticket.payer
        ticket.output_tokens += count
        ticket.last_token_seconds = now
        self._ledger.charge_output(account, count)
        self._report.tokens(account, count)

    def end(
        self, ticket: Ticket, outcome: Outcome, now: float, error: FairgateError | None = None
    ) -> None:
        """The turn, or the wait for it, is over; only the first call counts."""
        if ticket.state is State.WAITING:
            self._unqueue(ticket, outcome, now, error)
        elif ticket.state is State.GRANTED:
            self._window.ended(ticket)
            unused = outcome == "failed" and ticket.first_token_seconds is None
            if outcome == "finished":
                self._lengths.finished(ticket)
            elif unused and not isinstance(error, TimedOut):
                # It failed before its prompt was worked on; one that ran out of time did not.
                self._ledger.refund_unused(ticket.payer, ticket.prompt_tokens)
            self._close(ticket, outcome, now, error)
            if outcome == "finished" or self._gate.dead is not None:
                self._release(ticket)
            else:
                self._holds.add(ticket, now)

    def take_back(self, ticket: Ticket, now: float) -> None:
        """Whoever waited is gone; a grant that it had not seen yet is as if never given."""
        if ticket.state is State.GRANTED:
            self._window.ended(ticket)
            self._ledger.refund_unused(ticket.payer, ticket.prompt_tokens)
            self._close(ticket, "aborted", now, None)
            self._release(ticket)
        else:
            self.end(ticket, "aborted", now)

    def stepped(self, now: float) -> None:
        """The engine has delivered the output of a step."""
        window = self._window
        self._holds.stepped(now)
        window.stepped(self.policy.limit(window.capacity), now)
        self._report.served()
        self.tick(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        for ticket in self._holds.due(now):
            self._release(ticket)
        for ticket in self._deadlines.due(now):
            self._expire(ticket, now)
        self._window.pace.tick(now)
        self._forecast.sample(now)
        self._fairness.sample(self._ledger.accounts(), now)
        self._positions.tick(now)

    def next_wakeup(self) -> float | None:
        """When to call `tick()`, if nothing else happens before."""
        times = (
            self._deadlines.next_seconds(),
            self._holds.next_seconds,
            self._positions.next_seconds,
            self._window.pace.refill_seconds if self._paced else None,
        )
        return min((time for time in times if time is not None), default=None)

    def kill(self, error: FairgateError, now: float) -> None:
        """The engine is dead: everyone who waits gets `error`, and whoever comes."""
        self._gate.dead = error
        for account in self._ledger.accounts():
            while (ticket := account.head()) is not None:
                self._unqueue(ticket, "failed", now, error)
        for ticket in self._holds.all():
            self._release(ticket)

    def statistics(self) -> Statistics:
        """This moment; may be called from another thread, which may see a step half counted."""
        return Statistics.of(self._ledger, self._window, self._gate, self._fairness)

    def _next(self, now: float) -> Account | None:
        """Whose head may be granted now; heads whose time is up expire on the way."""
        self._paced = False
        for rank, account in enumerate(self._ledger.heads()):
            ticket = account.head()
            while ticket is not None and ticket.deadline_seconds < now:
                self._expire(ticket, now)
                ticket = account.head()
            if ticket is None:
                # Its tenant has nothing left: the bands must be asked again who is next.
                return self._next(now)
            if self._may_go(account, ticket, rank):
                return account
        return None

    def _may_go(self, account: Account, ticket: Ticket, rank: int) -> bool:
        band = account.band
        ticket.background = band is self._ledger.background
        ticket.light = self.policy.light_first and account.credit > 0 and band.name == "interactive"
        # Nobody passes who is next, but a light tenant of the other band uses the reserve.
        if rank and not ticket.light:
            return False
        hindrance = None
        if self._window.sequences:
            hindrance = self.policy.hindrance(ticket, self._window)
            self._paced |= hindrance is Hindrance.PACING
        return hindrance is None

    def _grant(self, account: Account, now: float) -> None:
        ticket = self._ledger.dispatch(account)
        ticket.state, ticket.holds, ticket.granted_seconds = State.GRANTED, True, now
        self._window.grant(ticket)
        self._deadlines.left(ticket)
        self._positions.left(account, ticket)
        if ticket.predicted_seconds is not None:
            waited = now - ticket.submitted_seconds
            self._forecast.waited(account.band, ticket.modelled_seconds, waited)
        self._left.append(ticket)
        self._report.granted(ticket)

    def _expire(self, ticket: Ticket, now: float) -> None:
        waited = now - ticket.submitted_seconds
        self._forecast.waited(ticket.payer.band, ticket.modelled_seconds, waited)
        self._unqueue(ticket, "expired", now, self._gate.waited_too_long(ticket, now))

    def _unqueue(
        self, ticket: Ticket, outcome: Outcome, now: float, error: FairgateError | None
    ) -> None:
        self._close(ticket, outcome, now, error)
        self._ledger.left(ticket.payer, ticket)
        self._deadlines.left(ticket)
        self._positions.left(ticket.payer, ticket)
        self._left.append(ticket)

    def _close(
        self, ticket: Ticket, outcome: Outcome, now: float, error: FairgateError | None
    ) -> None:
        ticket.state, ticket.outcome, ticket.error = State.ENDED, outcome, error
        self._report.ended(ticket, now)

    def _release(self, ticket: Ticket) -> None:
        ticket.holds = False
        self._window.release(ticket)
        self._ledger.release(ticket.payer)
