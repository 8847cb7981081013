"""The fair queue: every tenant's counters, in two bands and the background behind them.

Between the bands the same rule holds as within one: each has a counter, the lowest that has
eligible work is next, and a band that gets work after having none is lifted. Tenants of weight 0
are the background: equal among themselves, and next only while no other band has eligible work.
Costs are O(log n) per request and O(1) per token.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.admission.account import Account, Member
from app.admission.band import Band
from app.admission.rules import Rules
from app.admission.tenant_share import TenantShare
from app.admission.ticket import Ticket, WorkClass

# Beyond this a double no longer resolves single tokens at weights of 1,000 and more.
REBASE_AT = 2.0**50


class Ledger:
    """Who waits, what everyone was charged, and who is next."""

    def __init__(self, rules: Rules) -> None:
        prices, light = rules.prices, rules.light_tokens
        self._prompt_price = prices.prompt
        self._output_price = prices.output
        self._cached_refund = prices.prompt * (1.0 - prices.cached_share)
        self._light_tokens = light
        self._members: dict[str, Member] = {}
        self.bands: dict[WorkClass, Band] = {
            "interactive": Band("interactive", rules.bands.interactive, light),
            "batch": Band("batch", rules.bands.batch, light),
        }
        self.background = Band("background", 0.0, light)
        self.all_bands = (*self.bands.values(), self.background)
        self._counter = 0.0
        self.waiting = 0
        self.in_flight = 0

    def set_share(self, share: TenantShare) -> None:
        """The tenant's share and limits from now on; counters stay, only later charges change."""
        member = self._members.get(share.id)
        if member is None:
            self._members[share.id] = Member(share)
            return
        could_run = member.may_run
        member.share = share
        for account in member.accounts.values():
            self._reweigh(account, share.weight)
        if member.may_run != could_run:
            self._open(member) if member.may_run else self._shut(member)

    def forget(self, tenant: str) -> None:
        """The tenant has the default share from now on."""
        if tenant in self._members:
            self.set_share(TenantShare(id=tenant))

    def member(self, tenant: str) -> Member:
        """What is known of a tenant; a new one has the default share."""
        member = self._members.get(tenant)
        if member is None:
            member = self._members[tenant] = Member(TenantShare(id=tenant))
        return member

    def account(self, tenant: str, work_class: WorkClass) -> Account:
        """The tenant's account of a class, a new one where it has none."""
        member = self.member(tenant)
        account = member.accounts.get(work_class)
        if account is None:
            band = self.band(work_class, member.share.weight)
            account = Account(member, work_class, band, self._light_tokens)
            member.accounts[work_class] = account
        return account

    def band(self, work_class: WorkClass, weight: float) -> Band:
        """Where a tenant of this weight queues its work of this class."""
        return self.bands[work_class] if weight > 0 else self.background

    def accounts(self) -> Iterator[Account]:
        """Every account there is; safe to read from another thread, which may miss the newest."""
        for member in list(self._members.values()):
            yield from list(member.accounts.values())

    def push(self, account: Account, ticket: Ticket, now: float) -> None:
        """A ticket joins the end of its tenant's queue."""
        account.queue.append(ticket)
        account.waiting += 1
        account.backlog += ticket.cost
        account.member.queued += not ticket.part
        self.waiting += 1
        if account.waiting == 1:
            account.backlogged_seconds = now
            if account.member.may_run:
                self._enter(account)

    def left(self, account: Account, ticket: Ticket) -> None:
        """A ticket that waited no longer does, and was not dispatched."""
        self._unqueue(account, ticket)
        account.sweep()
        if account.waiting == 0:
            account.band.leave(account)
            self._rest_if_idle(account)

    def heads(self) -> Iterator[Account]:
        """The next account of each band that has eligible work, the one to serve first first."""
        first, second = self.bands["interactive"], self.bands["batch"]
        # Of equals interactive; a batch band of weight 0 comes only while interactive has nothing.
        if second.counter < first.counter and second.weight:
            first, second = second, first
        served = False
        if first.eligible and (account := first.first()) is not None:
            served = True
            yield account
        if second.eligible and (account := second.first()) is not None:
            served = True
            yield account
        if not served and (account := self.background.first()) is not None:
            yield account

    def dispatch(self, account: Account) -> Ticket:
        """Take the account's first ticket and charge its prompt."""
        ticket = account.head()
        if ticket is None:
            raise LookupError(f"{account.tenant} has nothing waiting")
        account.queue.popleft()
        band, member = account.band, account.member
        band.dispatched(account)
        if band.counter > self._counter and band.weight:
            self._counter = band.counter
        band.charge(account, self._prompt_price * ticket.prompt_tokens)
        self._unqueue(account, ticket)
        account.in_flight += 1
        member.running += 1
        self.in_flight += 1
        if not member.may_run:
            self._shut(member)
        elif account.waiting == 0:
            band.leave(account)
        if band.virtual > REBASE_AT:
            band.rebase(a for a in self.accounts() if a.band is band)
        return ticket

    def charge_output(self, account: Account, tokens: int) -> None:
        """So many tokens were made for the account."""
        account.band.charge(account, self._output_price * tokens)

    def refund_cached(self, account: Account, tokens: int) -> None:
        """So many tokens of a prompt came from the prefix cache."""
        account.band.refund(account, self._cached_refund * tokens)

    def refund_unused(self, account: Account, tokens: int) -> None:
        """A prompt of so many tokens never reached the engine."""
        account.band.refund(account, self._prompt_price * tokens)

    def release(self, account: Account) -> None:
        """One that was dispatched holds nothing in the engine any more."""
        member = account.member
        could_run = member.may_run
        account.in_flight -= 1
        member.running -= 1
        self.in_flight -= 1
        if not could_run and member.may_run:
            self._open(member)
        self._rest_if_idle(account)

    def _unqueue(self, account: Account, ticket: Ticket) -> None:
        account.waiting -= 1
        account.backlog = account.backlog - ticket.cost if account.waiting else 0.0
        account.member.queued -= not ticket.part
        self.waiting -= 1

    def _enter(self, account: Account) -> None:
        band = account.band
        if band.weight and not band.eligible:
            band.counter = max(band.counter, self._counter)
        band.enter(account)

    def _open(self, member: Member) -> None:
        """Below its `running` limit again: as if its queues had been empty until now."""
        for account in member.accounts.values():
            if account.waiting and not account.entry:
                self._enter(account)

    def _shut(self, member: Member) -> None:
        for account in member.accounts.values():
            account.band.leave(account)

    def _reweigh(self, account: Account, weight: float) -> None:
        band = self.band(account.work_class, weight)
        if band is account.band:
            band.reweigh(account, weight or 1.0)
            return
        # Counters of different bands do not compare: it starts in the other one as a newcomer.
        placed = bool(account.entry)
        account.band.leave(account)
        account.band, account.weight, account.parked = band, weight or 1.0, False
        account.virtual = band.virtual
        if placed:
            self._enter(account)
        elif account.idle:
            band.park(account)

    def _rest_if_idle(self, account: Account) -> None:
        if not account.idle:
            return
        account.band.park(account)
        if self.waiting == 0 and self.in_flight == 0:
            for band in self.all_bands:
                band.rest()
                self._counter = max(self._counter, band.counter)
