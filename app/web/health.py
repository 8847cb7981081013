"""Health: what the probes may know, written on the main thread and read on the ops port's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from app.errors import Draining, EngineDead, FairgateError, Loading

State = Literal["loading", "ready", "draining", "stopped", "engine_dead"]

# With work in flight even a step without tokens reports statistics; no report for this long, from
# a device whose steps take milliseconds to seconds, and only a restart helps.
STALL_SECONDS = 60.0

# What a probe or a balancer is told to wait; a guess, since nobody knows how long loading takes.
RETRY_SECONDS = 5.0


class Health:
    """Loading, then ready, then draining, then stopped; or the engine is dead, which stays so.

    Written by the main thread alone (its event loop and its signal handlers), read by any. Each
    fact is set once and never taken back, so no lock is needed, and a signal that arrives in the
    middle of another change loses nothing.

    `in_flight` is how many requests the engine holds; `last_output_monotonic` is the
    `time.monotonic()` of its last output of any kind, steps without tokens included. Both are
    written by whoever watches the engine, as often as it likes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ready = False
        self._draining = False
        self._stopped = False
        self._dead: str | None = None
        self._loading = "the model is loading"
        self._in_flight = 0
        self._busy_since = 0.0
        self.last_output_monotonic = 0.0

    @property
    def state(self) -> State:
        """The one word for now; the later states hide the earlier ones."""
        if self._dead is not None:
            return "engine_dead"
        if self._stopped:
            return "stopped"
        if self._draining:
            return "draining"
        return "ready" if self._ready else "loading"

    @property
    def loaded(self) -> bool:
        """Whether it has ever been ready."""
        return self._ready

    def loading(self, what: str) -> None:
        """Say what start-up is busy with: a clause for people, such as `reading the weights`."""
        self._loading = what

    def ready(self) -> None:
        """The engine has made its first token: work may come."""
        self._ready = True

    def drain(self) -> None:
        """The process was told to end: send nothing more here; safe in a signal handler."""
        self._draining = True

    def stop(self) -> None:
        """Nothing is served any more."""
        self._stopped = True

    def engine_died(self, reason: str) -> None:
        """The engine is gone for good; `reason` is for people."""
        self._dead = self._dead or reason

    @property
    def in_flight(self) -> int:
        """Requests inside the engine."""
        return self._in_flight

    @in_flight.setter
    def in_flight(self, count: int) -> None:
        if count and not self._in_flight:
            # An idle engine is silent for hours: the silence counts from the first request on.
            self._busy_since = self._clock()
        self._in_flight = count

    def not_ready(self) -> FairgateError | None:
        """Why no new work should be sent here, or None; what still comes may yet be served."""
        match self.state:
            case "ready":
                return None
            case "loading":
                return Loading(f"not ready: {self._loading}", retry_after_seconds=RETRY_SECONDS)
            case "engine_dead":
                return self._death()
            case _:
                return Draining("the server is shutting down", retry_after_seconds=RETRY_SECONDS)

    def not_alive(self) -> FairgateError | None:
        """Why the process should be restarted, or None."""
        if self._dead is not None:
            return self._death()
        silence = self._clock() - max(self.last_output_monotonic, self._busy_since)
        if self._in_flight and silence > STALL_SECONDS:
            return EngineDead(
                f"{self._in_flight} requests in the engine and no output for {silence:.0f} s",
                retry_after_seconds=RETRY_SECONDS,
            )
        return None

    def _death(self) -> EngineDead:
        return EngineDead(f"the engine is dead: {self._dead}", retry_after_seconds=RETRY_SECONDS)
