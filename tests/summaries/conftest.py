from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.summaries.house import House, open_house


@pytest_asyncio.fixture(scope="session")
async def server() -> AsyncIterator[House]:
    async with open_house() as house:
        yield house


@pytest.fixture
def house(server: House) -> House:
    """The server with an engine of its own."""
    server.reset()
    return server
