from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.chat.house import House, open_house


@pytest_asyncio.fixture(scope="session")
async def server() -> AsyncIterator[House]:
    async with open_house() as house:
        yield house


@pytest_asyncio.fixture
async def house(server: House) -> AsyncIterator[House]:
    """The server with an engine and a switchboard of their own."""
    await server.open()
    yield server
    await server.close()
