"""When a waiting client hears its place again: as news, but not as often as it changes."""

from __future__ import annotations

NEAR_POSITION = 50
NEAR_SECONDS, FAR_SECONDS = (
    0.5,
    5.0,
)  # the contract's: twice a second for the first 50, else every 5 s


class QueueReports:
    """Decides for one waiting turn which positions are reported; times are monotonic seconds."""

    __slots__ = ("_reported", "_reported_seconds", "latest")

    def __init__(self) -> None:
        self.latest: tuple[int, float] | None = None
        self._reported: int | None = None
        self._reported_seconds = 0.0

    def changed(self, position: int, eta_seconds: float) -> None:
        """Take note of where the turn stands now."""
        self.latest = (position, eta_seconds)

    def due_in(self, now: float) -> float | None:
        """Seconds until `latest` is to be reported, 0 for at once; None if it is no news."""
        if self.latest is None or self.latest[0] == self._reported:
            return None
        if self._reported is None:
            return 0.0
        pause = NEAR_SECONDS if self.latest[0] <= NEAR_POSITION else FAR_SECONDS
        return max(0.0, self._reported_seconds + pause - now)

    def reported(self, now: float) -> None:
        """`latest` has been reported."""
        if self.latest is not None:
            self._reported = self.latest[0]
            self._reported_seconds = now
