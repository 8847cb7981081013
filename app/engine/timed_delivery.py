"""Hands values over at given times, through futures, for an engine that does not wait for them."""

import queue
import threading
import time
from concurrent.futures import Future
from typing import Generic, TypeVar

Value = TypeVar("Value")


def sleep_until(when: float) -> None:
    """Block until `time.perf_counter` reads `when`."""
    if (seconds := when - time.perf_counter()) > 0:
        time.sleep(seconds)


class TimedDelivery(Generic[Value]):
    """One thread, started when first needed, that delivers in the order of the calls.

    Times are absolute, by `time.perf_counter`: a late wake-up delays one value and not the next.
    """

    def __init__(self) -> None:
        self._due: queue.SimpleQueue[tuple[float, Future[Value], Value] | None]
        self._due = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def at(self, when: float, value: Value) -> Future[Value]:
        """A future that has the value from `when` on; at once, where that is past."""
        future: Future[Value] = Future()
        if self._thread is None and when <= time.perf_counter():
            future.set_result(value)
            return future
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._deliver, name="simulated-device", daemon=True
            )
            self._thread.start()
        self._due.put((when, future, value))
        return future

    def close(self) -> None:
        """Deliver what is due, each at its time, then end the thread; waits for that."""
        if self._thread is not None:
            self._due.put(None)
            self._thread.join()
            self._thread = None

    def _deliver(self) -> None:
        while (item := self._due.get()) is not None:
            when, future, value = item
            sleep_until(when)
            future.set_result(value)
