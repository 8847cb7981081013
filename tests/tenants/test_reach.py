"""A store that is away is noticed, spared and found again."""

from __future__ import annotations

import asyncio

import pytest

from app.tenants import reach as reach_module
from app.tenants.reach import FAILURES, RETRY_SECONDS, Away, Reach
from tests.fakes import FakeClock


class Store:
    """Answers, fails or hangs as it is told, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.at_once = 0
        self.most_at_once = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def answer(self) -> str:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.at_once -= 1
        return "here"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def told() -> list[bool]:
    return []


@pytest.fixture
def reach(clock, told) -> Reach:
    return Reach((OSError, TimeoutError), told.append, clock=clock.now)


async def fail(reach: Reach, store: Store, times: int) -> None:
    store.error = ConnectionRefusedError("refused")
    for _ in range(times):
        with pytest.raises(Away):
            await reach.ask(store.answer)


async def test_one_failure_is_not_yet_away(reach, told):
    store = Store()
    await fail(reach, store, FAILURES - 1)
    store.error = None
    assert await reach.ask(store.answer) == "here"
    await fail(reach, store, FAILURES - 1)
    assert told == []
    assert reach.away is None


async def test_a_store_that_is_away_is_not_asked(reach, told):
    store = Store()
    await fail(reach, store, FAILURES + 100)
    assert store.asked == FAILURES
    assert told == [True]
    assert reach.away == "refused"


async def test_once_in_a_while_one_finds_out_whether_it_is_back(reach, clock, told):
    store = Store()
    await fail(reach, store, FAILURES)
    for _ in range(3):
        clock.move(RETRY_SECONDS)
        await fail(reach, store, 10)
    assert store.asked == FAILURES + 3
    store.error = None
    clock.move(RETRY_SECONDS)
    assert [await reach.ask(store.answer) for _ in range(5)] == ["here"] * 5
    assert told == [True, False]
    assert reach.away is None


async def test_while_one_finds_out_the_others_do_not_wait(reach, clock):
    store = Store()
    await fail(reach, store, FAILURES)
    clock.move(RETRY_SECONDS)
    store.error = None
    store.gate.clear()
    async with asyncio.TaskGroup() as group:
        finder = group.create_task(reach.ask(store.answer))
        await asyncio.sleep(0)
        with pytest.raises(Away):
            await reach.ask(store.answer)
        store.gate.set()
    assert finder.result() == "here"


async def test_a_store_that_hangs_is_away_after_the_first_few(reach, told, monkeypatch):
    monkeypatch.setattr(reach_module, "TIMEOUT_SECONDS", 0.01)
    store = Store()
    store.gate.clear()
    results = await asyncio.gather(
        *(reach.ask(store.answer) for _ in range(500)), return_exceptions=True
    )
    assert {type(result) for result in results} == {Away}
    assert store.asked <= reach_module.AT_ONCE
    assert told == [True]
    assert reach.away == "no answer within 0.01 s"


async def test_many_questions_take_turns_and_their_wait_is_no_failure(reach, told):
    store = Store()
    assert set(await asyncio.gather(*(reach.ask(store.answer) for _ in range(500)))) == {"here"}
    assert store.most_at_once <= reach_module.AT_ONCE
    assert told == []


async def test_what_is_no_failure_of_the_store_passes(reach):
    store = Store()
    store.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await reach.ask(store.answer)
    assert reach.away is None
