"""How even the shares are: Jain's index over the tenants that had a backlog, of the last minute.

Only tenants that wanted more can be compared, and only with those that wanted it at the same time.
So time is cut into short spans; in each, a tenant with a backlog all through gets its service over
weight, relative to the mean of its band; a tenant's figure is the mean of these.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from app.admission.account import Account

SPAN_SECONDS = 5.0
SPANS = 12


class FairnessMeter:
    """Samples the accounts every few seconds."""

    def __init__(self) -> None:
        self._spans: deque[dict[str, float]] = deque(maxlen=SPANS)
        self._started_seconds: float | None = None

    @property
    def index(self) -> float:
        """1 where everyone got its share, or nobody competed; 1/n where one of n got everything."""
        sums: dict[str, list[float]] = defaultdict(list)
        for span in list(self._spans):
            for tenant, relative in span.items():
                sums[tenant].append(relative)
        means = [sum(values) / len(values) for values in sums.values()]
        squares = sum(mean * mean for mean in means)
        return sum(means) ** 2 / (len(means) * squares) if squares else 1.0

    def sample(self, accounts: Iterable[Account], now: float) -> None:
        """Close a span where one is over; cheap otherwise."""
        started = self._started_seconds
        if started is not None and now - started < SPAN_SECONDS:
            return
        self._started_seconds = now
        bands: dict[str, dict[str, float]] = defaultdict(dict)
        for account in accounts:
            got = (account.service - account.marked) / account.weight
            account.marked = account.service
            if started is not None and account.entry and account.backlogged_seconds <= started:
                band = bands[account.band.name]
                band[account.tenant] = band.get(account.tenant, 0.0) + got
        span: dict[str, float] = {}
        for band in bands.values():
            mean = sum(band.values()) / len(band)
            if len(band) > 1 and mean > 0:
                span.update({tenant: got / mean for tenant, got in band.items()})
        self._spans.append(span)
