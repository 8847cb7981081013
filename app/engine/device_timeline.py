"""When the steps and copies of a simulated device end; knows no engine, `now` is a parameter."""

import math


class DeviceTimeline:
    """One device that computes one step at a time.

    A real device computes while its host schedules the next step. vLLM turns that overlap off where
    it runs on a CPU, so the host's work, 15-35 % of a short step, would lengthen every step. A step
    that goes on with sequences of the last one therefore counts as begun when the last one ended,
    at most its own length ago: the period is the device's time or the host's, whichever is longer.
    """

    def __init__(self) -> None:
        self._free_at = -math.inf

    def step_ends_at(
        self, *, now: float, seconds: float, goes_on: bool, not_before: float | None = None
    ) -> float:
        """Take the device for a step; `goes_on`: it continues sequences of the step before."""
        begins_at = max(self._free_at, now - seconds if goes_on else now)
        if not_before is not None:
            begins_at = max(begins_at, not_before)
        self._free_at = begins_at + seconds
        return self._free_at


class Link:
    """One direction of the bus to host memory: copies run one after the other, beside the steps."""

    def __init__(self) -> None:
        self._free_at = -math.inf

    def copy_ends_at(self, *, not_before: float, seconds: float) -> float:
        """Queue a copy that can begin at `not_before`."""
        self._free_at = max(self._free_at, not_before) + seconds
        return self._free_at
