"""One gateway on the simulated device for every API test of this folder, started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import SIMULATED, Served, serving

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM, torch and transformers warn when they are imported, each release in another way."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def simulated() -> Iterator[Served]:
    """A ready gateway on the simulated device: 64 sequences, short steps."""
    with serving(*SIMULATED) as served:
        yield served
