"""Ending a coroutine from outside without cancelling its task."""

from __future__ import annotations

import asyncio

import pytest

from app.chat.breaker import Breaker


async def test_what_ends_by_itself_gives_its_result() -> None:
    async def work() -> int:
        return 7

    breaker: Breaker[str] = Breaker()
    assert await breaker.run(work()) == 7
    breaker.trip("late")
    assert breaker.reason == "late"


async def test_tripped_it_ends_and_its_task_goes_on() -> None:
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    breaker: Breaker[str] = Breaker()
    task = asyncio.create_task(breaker.run(work()))
    await asyncio.sleep(0)
    breaker.trip("first")
    breaker.trip("second")
    await task
    assert cleaned
    assert breaker.reason == "first"
    assert task.cancelling() == 0


async def test_tripped_before_it_begins_it_does_not_begin() -> None:
    async def work() -> None:
        raise AssertionError("it began")

    breaker: Breaker[str] = Breaker()
    breaker.trip("early")
    await breaker.run(work())


async def test_a_deadline_trips_and_can_be_taken_back() -> None:
    breaker: Breaker[str] = Breaker()

    async def late() -> None:
        breaker.deadline(0.01, "late")
        await asyncio.Event().wait()

    await breaker.run(late())
    assert breaker.reason == "late"
    again: Breaker[str] = Breaker()

    async def in_time() -> str:
        again.deadline(0.01, "late")
        again.deadline(None)
        await asyncio.sleep(0.02)
        return "done"

    assert await again.run(in_time()) == "done"
    assert again.reason is None


async def test_a_time_out_of_the_work_itself_is_an_error() -> None:
    async def work() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError):
        await Breaker().run(work())


async def test_a_real_cancellation_is_a_cancellation() -> None:
    breaker: Breaker[str] = Breaker()
    task = asyncio.create_task(breaker.run(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
