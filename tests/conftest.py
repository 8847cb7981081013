"""What every test may use; kept light, for it is imported before any of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from tests.skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["free_port", "pytest_make_collect_report", "pytest_runtest_makereport"]


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Gives a port of this machine that nobody listens on, another one at each call."""
    given: set[int] = set()

    def find() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            if port not in given:
                given.add(port)
                return port

    return find


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own FAIRGATE_* variables change no test."""
    for name in list(os.environ):
        if name.upper().startswith("FAIRGATE_"):
            monkeypatch.delenv(name)
