"""Requests and tokens per minute of each tenant.

A request is taken as one, tokens are reserved by estimate and settled to what was used. Whoever
holds a `Charge` settles it once, however the request ends; what is settled is written behind its
back, so that ends need not wait. A tenant without limits costs nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Literal

from app.errors import InvalidRequest, Overloaded
from app.tenants.charge import Charge, Kind, QuotaSpent, state_of
from app.tenants.counters import Counters, OwnCounters, SharedCounters
from app.tenants.minutes import MINUTE_SECONDS, Minutes
from app.tenants.model import Tenant
from app.tenants.reach import RETRY_SECONDS, Away

WhenAway = Literal["allow", "refuse"]

OWN_URL = "memory://"


class Quota:
    """Counts in this process (`storage_url` None), or in a Redis that replicas share.

    While that Redis is away, everything is let through uncounted (`allow`) or answered 503
    (`refuse`); `on_away` hears of it and may read `away`. `clock` is wall time, on which replicas
    agree.

    Raises:
        ValueError: a `storage_url` that is of no use.
    """

    def __init__(
        self,
        storage_url: str | None = None,
        *,
        when_away: WhenAway = "allow",
        on_away: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._counters: Counters = (
            OwnCounters()
            if storage_url in (None, "", OWN_URL)
            else SharedCounters(storage_url, on_away)
        )
        self._when_away = when_away
        self._clock = clock
        self._unwritten: dict[tuple[str, int], int] = {}
        self._settled = asyncio.Event()

    @property
    def away(self) -> str | None:
        """Why the store does not answer, for the log; None while it does."""
        return self._counters.away

    async def take_request(self, tenant: Tenant) -> Charge:
        """One of the tenant's requests per minute.

        Raises:
            QuotaSpent: they are used up.
            Overloaded: the store is away and the setting says refuse.
        """
        limit = tenant.limits.requests_per_minute
        return Charge() if limit is None else await self._take("requests", tenant, limit, 1)

    async def reserve_tokens(self, tenant: Tenant, estimate_tokens: int) -> Charge:
        """What the request may use of the tenant's tokens per minute.

        Raises:
            InvalidRequest: more than the limit, so that it would never fit.
            QuotaSpent: too many are used up now.
            Overloaded: the store is away and the setting says refuse.
        """
        limit = tenant.limits.tokens_per_minute
        if limit is None:
            return Charge()
        if estimate_tokens > limit:
            raise InvalidRequest(
                f"this request may use {estimate_tokens} tokens, and tenant {tenant.id} has "
                f"{limit} tokens per minute: ask for fewer (max_tokens) or shorten the prompt"
            )
        return await self._take("tokens", tenant, limit, max(0, estimate_tokens))

    def settle(self, charge: Charge, used: int) -> None:
        """What `charge` was estimated to be is `used`: the surplus returns, a shortfall is taken.

        Never waits and never fails; where the store is away meanwhile, the estimate stands.
        """
        if charge.settled or charge.name is None:
            return
        charge.settled = True
        surplus = charge.amount - used
        if surplus > 0:  # leaves the minute that it was taken in, which may be over for long
            self._write_later(charge.name, charge.minute, -surplus)
        elif surplus < 0:
            self._write_later(charge.name, self._now()[0], -surplus)

    def give_back(self, charge: Charge) -> None:
        """The request was refused for another reason: nothing of it is used."""
        self.settle(charge, 0)

    async def run(self) -> None:
        """Write what was settled; runs until cancelled."""
        while True:
            await self._settled.wait()
            self._settled.clear()
            await self.write()

    async def write(self) -> None:
        """Write all that is settled and not yet written."""
        while self._unwritten:
            (name, minute), amount = self._unwritten.popitem()
            # Counts of earlier minutes are read no more.
            if amount and minute >= self._now()[0] - 1:
                try:
                    await self._counters.add(name, minute, amount)
                except Away:  # whether it was written is unknown: twice would be worse than never
                    continue

    async def close(self) -> None:
        """Give the store's connections back."""
        await self._counters.close()

    async def _take(self, kind: Kind, tenant: Tenant, limit: int, amount: int) -> Charge:
        try:
            await self.write()
            return await self._count(kind, tenant, limit, amount)
        except Away:
            if self._when_away == "allow":
                return Charge(name=f"{kind}/{tenant.id}", minute=self._now()[0])
            raise Overloaded(
                f"whether tenant {tenant.id} has {kind} left this minute cannot be told now",
                retry_after_seconds=RETRY_SECONDS,
            ) from None

    async def _count(self, kind: Kind, tenant: Tenant, limit: int, amount: int) -> Charge:
        name, (minute, elapsed_seconds) = f"{kind}/{tenant.id}", self._now()
        # Counted first and looked at then: of two that fit alone but not together, one fits.
        used = await self._counters.add(name, minute, amount)
        fits = False
        try:
            before = await self._counters.read(name, minute - 1)
            taken = Minutes(limit=limit, used=used, before=before, elapsed_seconds=elapsed_seconds)
            fits = taken.within
        finally:
            if not fits:  # or the client left, or the store did
                self._write_later(name, minute, -amount)
        if fits:
            return Charge(name=name, minute=minute, amount=amount, state=state_of(kind, taken))
        await self.write()
        without = Minutes(
            limit=limit, used=max(0, used - amount), before=before, elapsed_seconds=elapsed_seconds
        )
        wait_seconds = without.wait_seconds(amount)
        raise QuotaSpent(
            f"tenant {tenant.id} has {limit} {kind} per minute and {without.remaining} left; "
            f"this needs {amount}: try again in {math.ceil(wait_seconds)} s",
            retry_after_seconds=math.ceil(wait_seconds),
            state=state_of(kind, without),
        )

    def _write_later(self, name: str, minute: int, amount: int) -> None:
        at = (name, minute)
        self._unwritten[at] = self._unwritten.get(at, 0) + amount
        self._settled.set()

    def _now(self) -> tuple[int, float]:
        """This minute, and how many of its seconds are over."""
        minute, elapsed_seconds = divmod(self._clock(), MINUTE_SECONDS)
        return int(minute), elapsed_seconds
