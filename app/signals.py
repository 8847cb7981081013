"""SIGTERM and SIGINT: the first asks, the second insists."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from types import FrameType

from app import children

HANDLED = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Notes when the process was first told to end; at the second time it ends at once.

    The handlers stay until the process is gone, so that no moment of the way out is unguarded.
    `on_first` runs inside the handler: it may set values, not log.

    A terminal sends Ctrl-C to the whole process group, and vLLM's EngineCore ends at once when it
    gets it, under every running answer. A signal mask is inherited by threads and processes,
    whatever handlers they install: so SIGINT is blocked here, and let in on one thread alone.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self.asked_seconds: float | None = None

    def install(self) -> None:
        """Handle both from now on; on the main thread, before there are others."""
        for number in HANDLED:
            signal.signal(number, self._on_signal)
        # It unblocks SIGINT in whichever thread first needs it, so it is started before.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def let_in(self) -> None:
        """Called on the one thread that takes SIGINT; the handler runs on the main one even so."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked_seconds is None:
            self.asked_seconds = time.monotonic()
            self._on_first()
            return
        os.write(2, b"fairgate: told to end a second time: ending at once\n")
        children.end_all(grace_seconds=0)
        os._exit(128 + number)  # as shells count; nothing that could wait is run
