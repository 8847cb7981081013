"""A moment of admission, as values for `/admin/state`, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass

from app.admission.account import Account
from app.admission.fairness import FairnessMeter
from app.admission.gate import Gate
from app.admission.ledger import Ledger
from app.admission.ticket import WorkClass
from app.admission.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountStatistics:
    """One tenant in one class.

    `share` is what it is due of its class while it has a backlog, else 0. `virtual` is its counter,
    service over weight; `service` all that it was charged, in tokens at their prices.
    """

    tenant: str
    work_class: WorkClass
    weight: float
    queued: int
    running: int
    share: float
    virtual: float
    service: float

    @classmethod
    def of(cls, account: Account) -> AccountStatistics:
        """The account now."""
        total = account.band.backlogged_weight
        return cls(
            tenant=account.tenant,
            work_class=account.work_class,
            weight=account.member.share.weight,
            queued=account.waiting,
            running=account.in_flight,
            share=account.weight / total if account.entry and total else 0.0,
            virtual=account.virtual,
            service=account.service,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """`kv_ceiling_tokens` is what everything in the engine would hold if all ended together."""

    policy: str
    draining: bool
    queued: int
    running: int
    active_sequences: int
    sequence_limit: int
    kv_ceiling_tokens: int
    kv_limit_tokens: int | None
    fairness_index: float
    accounts: tuple[AccountStatistics, ...]

    @classmethod
    def of(cls, ledger: Ledger, window: Window, gate: Gate, fairness: FairnessMeter) -> Statistics:
        """The room now."""
        return cls(
            policy=gate.policy.name,
            draining=gate.draining,
            queued=ledger.waiting,
            running=ledger.in_flight,
            active_sequences=window.sequences,
            sequence_limit=gate.policy.limit(window.capacity),
            kv_ceiling_tokens=window.kv.ceiling,
            kv_limit_tokens=window.capacity.kv_tokens,
            fairness_index=fairness.index,
            accounts=tuple(AccountStatistics.of(account) for account in ledger.accounts()),
        )
