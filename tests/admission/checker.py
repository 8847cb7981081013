"""An independent check of the ledger: recomputes every counter from what happened, the slow way.

It shares no code with the ledger. `Checked` stands between a test and a scheduler, tells the
checker what happens, and fails at the first event after which a rule does not hold:

- every counter and the bands' times are what the rules say;
- a dispatch takes the first ticket of an eligible account with the lowest counter of its band;
- the lemma: no eligible account is further behind another of its band than U allows;
- a band's time never falls, and is above an eligible counter by no more than what that was given
  back since it last was not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from app.admission.rules import Rules
from app.admission.scheduler import Scheduler
from app.admission.tenant_share import TenantShare
from app.admission.ticket import Outcome, State, Ticket
from app.errors import FairgateError

Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class Tally:
    """One account, as the checker sees it."""

    tenant: str
    band: str
    weight: float
    counter: float = 0.0
    queue: list[Ticket] = field(default_factory=list)
    flying: list[Ticket] = field(default_factory=list)
    eligible: bool = False
    service: float = 0.0
    # What it may gain from its last dispatch on, what it was given back since its counter was last
    # at the band's time or above, and in all.
    bound: float = 0.0
    refunds: float = 0.0
    refunded: float = 0.0


class Checker:
    """Counters by the book; weights must not change while it runs."""

    def __init__(self, rules: Rules, shares: dict[str, TenantShare]) -> None:
        self.rules = rules
        self.shares = shares
        self.tallies: dict[Key, Tally] = {}
        self.time: dict[str, float] = defaultdict(float)
        self.comparisons = 0
        self.closest = 0.0
        # What each account had been given back when another was last dispatched.
        self.marks: dict[tuple[int, int], float] = {}

    def tally(self, ticket: Ticket) -> Tally:
        key = (ticket.tenant, ticket.work_class)
        if key not in self.tallies:
            weight = self.share(ticket.tenant).weight
            band = ticket.work_class if weight else "background"
            self.tallies[key] = Tally(ticket.tenant, band, weight or 1.0)
        return self.tallies[key]

    def share(self, tenant: str) -> TenantShare:
        return self.shares.get(tenant) or TenantShare(id=tenant)

    def running(self, tenant: str) -> int:
        return sum(len(t.flying) for t in self.tallies.values() if t.tenant == tenant)

    def arrived(self, ticket: Ticket) -> None:
        self.tally(ticket).queue.append(ticket)
        self.update()

    def left(self, ticket: Ticket) -> None:
        self.tally(ticket).queue.remove(ticket)
        self.update()

    def dispatched(self, ticket: Ticket) -> None:
        tally = self.tally(ticket)
        peers = [t for t in self.tallies.values() if t.band == tally.band and t.eligible]
        assert tally.eligible, "dispatched although its tenant may not run"
        assert tally.queue[0] is ticket, "not first in, first out"
        lowest = min(t.counter for t in peers)
        assert tally.counter <= lowest + 1e-6, "somebody else was next"
        if tally.counter >= self.time[tally.band]:
            tally.refunds = 0.0
        self.time[tally.band] = max(self.time[tally.band], tally.counter)
        prices = self.rules.prices
        tally.queue.pop(0)
        tally.flying.append(ticket)
        self.charge(tally, prices.prompt * ticket.prompt_tokens)
        tally.bound = prices.prompt * ticket.prompt_tokens
        for flying in tally.flying:
            left = flying.max_output_tokens * flying.sequences - flying.output_tokens
            tally.bound += prices.output * max(0, left)
        for peer in self.tallies.values():
            self.marks[id(tally), id(peer)] = peer.refunded
        self.update()

    def charge(self, tally: Tally, service: float) -> None:
        tally.service += service
        tally.counter += service / tally.weight

    def refund(self, ticket: Ticket, service: float) -> None:
        tally = self.tally(ticket)
        self.charge(tally, -service)
        tally.refunds += service
        tally.refunded += service

    def made(self, ticket: Ticket, count: int) -> None:
        self.charge(self.tally(ticket), self.rules.prices.output * count)

    def released(self, ticket: Ticket) -> None:
        self.tally(ticket).flying.remove(ticket)
        self.update()

    def update(self) -> None:
        """Who may run and has work is eligible, and lifted when it becomes so."""
        for tally in self.tallies.values():
            limit = self.share(tally.tenant).running
            may_run = limit is None or self.running(tally.tenant) < limit
            eligible = bool(tally.queue) and may_run
            if eligible and not tally.eligible:
                tally.counter = max(tally.counter, self.time[tally.band])
                tally.refunds = 0.0
            tally.eligible = eligible
        if not any(t.queue or t.flying for t in self.tallies.values()):
            for tally in self.tallies.values():
                self.time[tally.band] = max(self.time[tally.band], tally.counter)

    def check(self, scheduler: Scheduler) -> None:
        """Everything that must hold now."""
        ledger = scheduler._ledger
        bands = {band.name: band for band in ledger.all_bands}
        for account in scheduler.statistics().accounts:
            tally = self.tallies.get((account.tenant, account.work_class))
            if tally is None:
                continue
            assert account.queued == len(tally.queue)
            assert account.running == len(tally.flying)
            band = bands[tally.band]
            ours = tally.counter - self.time[tally.band]
            if tally.eligible or ours > 0:
                assert abs(account.virtual - band.virtual - ours) < 1e-6, account
        for name, band in bands.items():
            peers = [t for t in self.tallies.values() if t.band == name and t.eligible]
            assert band.eligible == len(peers)
            for tally in peers:
                assert self.time[name] <= tally.counter + tally.refunds / tally.weight + 1e-6
                for other in peers:
                    self.lemma(tally, other)

    def lemma(self, ahead: Tally, behind: Tally) -> None:
        """What one got since its last dispatch bounds its lead over any other that has work."""
        given_back = behind.refunded - self.marks.get((id(ahead), id(behind)), 0.0)
        allowed = ahead.bound / ahead.weight + given_back / behind.weight
        lead = ahead.counter - behind.counter
        self.comparisons += 1
        assert lead <= allowed + 1e-6, (ahead, behind, lead, allowed)
        if allowed > 0:
            self.closest = max(self.closest, lead / allowed)


class Checked:
    """A scheduler under check, with the same calls."""

    def __init__(self, scheduler: Scheduler, checker: Checker) -> None:
        self.scheduler = scheduler
        self.checker = checker
        self.granted: list[Ticket] = []
        self.ended: list[Ticket] = []
        self._waiting: set[Ticket] = set()
        self._flying: dict[Ticket, None] = {}

    def submit(self, ticket: Ticket, now: float) -> None:
        self.scheduler.submit(ticket, now)
        self._waiting.add(ticket)
        self.checker.arrived(ticket)
        self.checker.check(self.scheduler)

    def announce(self, ticket: Ticket, now: float) -> None:
        self.scheduler.announce(ticket, now)

    def pump(self, now: float) -> list[Ticket]:
        left = self.scheduler.pump(now)
        for ticket in left:
            if ticket not in self._waiting:
                continue
            self._waiting.discard(ticket)
            if ticket.state is State.GRANTED:
                self.granted.append(ticket)
                self._flying[ticket] = None
                self.checker.dispatched(ticket)
            else:
                self.ended.append(ticket)
                self.checker.left(ticket)
        self.checker.check(self.scheduler)
        return left

    def first_token(self, ticket: Ticket, cached_tokens: int, now: float) -> None:
        fresh = ticket.state is State.GRANTED and ticket.first_token_seconds is None
        self.scheduler.first_token(ticket, cached_tokens, now)
        if fresh:
            prices = self.checker.rules.prices
            back = prices.prompt * (1 - prices.cached_share) * ticket.cached_tokens
            self.checker.refund(ticket, back)
        self.checker.check(self.scheduler)

    def tokens(self, ticket: Ticket, count: int, now: float) -> None:
        holds = ticket.holds
        if holds and ticket.state is State.GRANTED:
            self.first_token(ticket, 0, now)
        self.scheduler.tokens(ticket, count, now)
        if holds:
            self.checker.made(ticket, count)
        self.checker.check(self.scheduler)

    def end(
        self, ticket: Ticket, outcome: Outcome, now: float, error: FairgateError | None = None
    ) -> None:
        state = ticket.state
        unused = outcome == "failed" and ticket.first_token_seconds is None
        self.scheduler.end(ticket, outcome, now, error)
        if state is State.GRANTED:
            self.ended.append(ticket)
            if unused:
                self.checker.refund(ticket, self.checker.rules.prices.prompt * ticket.prompt_tokens)
        elif state is State.WAITING:
            self._waiting.discard(ticket)
            self.ended.append(ticket)
            self.checker.left(ticket)
        self._settle()

    def take_back(self, ticket: Ticket, now: float) -> None:
        state = ticket.state
        self.scheduler.take_back(ticket, now)
        if state is State.GRANTED:
            self.checker.refund(ticket, self.checker.rules.prices.prompt * ticket.prompt_tokens)
        elif state is State.WAITING:
            self._waiting.discard(ticket)
            self.checker.left(ticket)
        if state is not State.ENDED:
            self.ended.append(ticket)
        self._settle()

    def stepped(self, now: float) -> None:
        self.scheduler.stepped(now)
        self._expired()
        self._settle()

    def tick(self, now: float) -> None:
        self.scheduler.tick(now)
        self._expired()
        self._settle()

    def next_wakeup(self) -> float | None:
        return self.scheduler.next_wakeup()

    def _expired(self) -> None:
        for ticket in list(self._waiting):
            if ticket.state is State.ENDED:
                self._waiting.discard(ticket)
                self.ended.append(ticket)
                self.checker.left(ticket)

    def _settle(self) -> None:
        for ticket in list(self._flying):
            if not ticket.holds:
                del self._flying[ticket]
                self.checker.released(ticket)
        self.checker.check(self.scheduler)
