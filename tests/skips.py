"""No test is skipped in CI, but those that need a GPU: CI installs what they need.

A pytest plugin: `conftest.py` takes its hooks over. Where `CI` is `true`, a skip is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

ALLOWED_MARKER = "gpu"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that was skipped, at set-up or in the middle."""
    report = yield
    if item.get_closest_marker(ALLOWED_MARKER) is None and not hasattr(report, "wasxfail"):
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A whole module that was skipped."""
    report = yield
    _refuse(report)
    return report


def _refuse(report: Any) -> None:
    if report.skipped and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {reason}"
