"""How long the wait will be, and when to come back.

While a band has a backlog, its backlogged tenants share the service that they get by weight. So a
ticket waits for its band's next grant, and then for what is ahead of it: the cost of its tenant's
own queue and what its tenant is ahead of the band's time, at its tenant's part of that rate.
What that model gets wrong is corrected by how wrong it was lately.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from app.admission.account import Account
from app.admission.band import Band
from app.admission.recent import Recent

# Over which the service rate is averaged: long enough for a few answers, short enough for a shift.
AVERAGED_SECONDS = 5.0
# How often it is sampled, and how much of it must be there before anyone is refused for it.
SAMPLE_SECONDS = 0.25
ENOUGH_SECONDS = 1.0
# Predictions that the correction learns from, and below which they are all noise.
REMEMBERED = 64
SHORT_SECONDS = 0.05
# A prediction above this part of what is left is refused: the rest is for its error.
PATIENCE = 0.8
# The part of a tenant's rate that those who were told to come back are thought to return at: while
# they return, others arrive.
RETURN_SHARE = 0.3
RETRY_AFTER_SECONDS = (1.0, 60.0)


@dataclass(slots=True)
class Meter:
    """What a band served while it had a backlog; amounts and seconds fade alike."""

    service: float = 0.0
    grants: float = 0.0
    seconds: float = 0.0
    seen_service: float = 0.0
    seen_grants: int = 0
    seen_seconds: float | None = None
    errors: Recent = field(default_factory=lambda: Recent(REMEMBERED))

    def sample(self, band: Band, now: float) -> None:
        """Add what happened since the last sample, if there was a backlog all the time."""
        if not band.eligible:
            self.seen_seconds = None
            return
        if self.seen_seconds is not None:
            elapsed = now - self.seen_seconds
            if elapsed < SAMPLE_SECONDS:
                return
            keep = math.exp(-elapsed / AVERAGED_SECONDS)
            self.service = keep * self.service + band.backlogged_service - self.seen_service
            self.grants = keep * self.grants + band.grants - self.seen_grants
            self.seconds = keep * self.seconds + elapsed
        self.seen_seconds = now
        self.seen_service = band.backlogged_service
        self.seen_grants = band.grants

    @property
    def known(self) -> bool:
        """Measured for long enough."""
        return self.seconds >= ENOUGH_SECONDS and self.service > 0 and self.grants > 0

    def correction(self, share: float) -> float:
        """At this quantile, what to multiply the model by."""
        found = self.errors.quantile(share)
        return 1.0 if found is None or len(self.errors) < 8 else min(4.0, max(0.25, found))


class Forecast:
    """Predictions per band, from what the bands measured. `jitter()` is between 0 and 1."""

    def __init__(self, bands: tuple[Band, ...], jitter: Callable[[], float]) -> None:
        self._meters = {band.name: Meter() for band in bands}
        self._bands = bands
        self._jitter = jitter
        self._first_token_seconds = Recent(REMEMBERED)

    def sample(self, now: float) -> None:
        """Look at the bands; cheap, and to be called at every step."""
        for band in self._bands:
            self._meters[band.name].sample(band, now)

    def wait_seconds(self, band: Band, account: Account | None, weight: float) -> float | None:
        """The model's wait of one more ticket at the end of the account's queue; None: unknown."""
        ahead = 0.0 if account is None else account.backlog
        return self.wait_behind(band, account, weight, ahead)

    def wait_behind(
        self, band: Band, account: Account | None, weight: float, ahead: float
    ) -> float | None:
        """The model's wait behind a cost of `ahead` in the account's own queue; None: unknown."""
        meter = self._meters[band.name]
        if not meter.known:
            return None
        lead = 0.0
        if account is not None:
            lead = max(0.0, account.virtual - band.virtual) * account.weight
        return meter.seconds / meter.grants + (ahead + lead) / self._rate(band, account, weight)

    def likely(self, band: Band, modelled_seconds: float) -> float:
        """The model's wait, corrected to be too short as often as too long."""
        return modelled_seconds * self._meters[band.name].correction(0.5)

    def eta(self, account: Account, position: int) -> float:
        """The likely rest of the wait at a position of the account's queue; 0 where unknown."""
        ahead = account.backlog * (position - 1) / max(1, account.waiting)
        modelled = self.wait_behind(account.band, account, account.weight, ahead)
        return 0.0 if modelled is None else self.likely(account.band, modelled)

    def refuses(self, band: Band, modelled_seconds: float | None, left_seconds: float) -> bool:
        """Whether a wait so long, corrected to be too short one time in five, is too long."""
        if modelled_seconds is None:
            return left_seconds < 0
        likely = modelled_seconds * self._meters[band.name].correction(0.8)
        return likely > PATIENCE * left_seconds

    def newcomer_refused(self, band: Band, allowed_seconds: float) -> bool:
        """Whether a tenant with nothing queued or running would be refused too."""
        meter = self._meters[band.name]
        if not meter.known:
            return False
        return self.refuses(band, meter.seconds / meter.grants, allowed_seconds)

    def retry_after(
        self, band: Band, account: Account | None, cost: float, allowed_seconds: float, now: float
    ) -> float:
        """Whole seconds after which this tenant is likely to be let in; counts it as promised.

        Others of the tenant were told to return, too: what they will bring is ahead of this one.
        """
        low, high = RETRY_AFTER_SECONDS
        seconds = 0.0
        if account is not None and (waited := self.wait_seconds(band, account, account.weight)):
            rate = RETURN_SHARE * self._rate(band, account, account.weight)
            elapsed = now - account.promised_seconds
            account.promised = max(0.0, account.promised - rate * elapsed)
            account.promised_seconds = now
            seconds = waited + account.promised / rate - 0.4 * allowed_seconds
            account.promised += cost
        return math.ceil(min(high, max(low, seconds * (1.0 + self._jitter()))))

    def waited(self, band: Band, modelled_seconds: float | None, actual_seconds: float) -> None:
        """Learn from a wait that is over."""
        if modelled_seconds is not None and modelled_seconds >= SHORT_SECONDS:
            self._meters[band.name].errors.add(actual_seconds / modelled_seconds)

    def first_token(self, seconds: float) -> None:
        """Learn how long the engine takes from the hand-over to the first token."""
        self._first_token_seconds.add(seconds)

    def allowed_wait(self, target_seconds: float) -> float:
        """What a target for the first token leaves for the wait; never less than half of it."""
        usual = self._first_token_seconds.quantile(0.8) or 0.0
        return target_seconds - min(usual, target_seconds / 2)

    def _rate(self, band: Band, account: Account | None, weight: float) -> float:
        """Service per second of the account once it waits, by the band's meter."""
        meter = self._meters[band.name]
        counted = account is not None and account.entry
        total = band.backlogged_weight + (0.0 if counted else weight)
        return meter.service / meter.seconds * weight / total
