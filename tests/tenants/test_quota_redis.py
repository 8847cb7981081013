"""The quotas of replicas that share a Redis, and what happens while it is away. A real Redis."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from app.errors import Overloaded
from app.tenants import counters, reach
from app.tenants.charge import Charge, QuotaSpent
from app.tenants.model import Limits, Tenant
from app.tenants.quota import Quota, WhenAway
from tests.fakes import FakeClock
from tests.tenants.redis_server import RedisServer, needs_redis

pytestmark = needs_redis

ACME = Tenant(id="acme", limits=Limits(requests_per_minute=8, tokens_per_minute=1000))
BUSY = Tenant(id="busy", limits=Limits(requests_per_minute=10**6))

MakeQuota = Callable[..., Quota]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is slower than a network; and nobody waits a second to see Redis return."""
    monkeypatch.setattr(reach, "TIMEOUT_SECONDS", 5.0)
    monkeypatch.setitem(counters.OPTIONS, "socket_connect_timeout", 5.0)
    monkeypatch.setattr(reach, "RETRY_SECONDS", 0.05)


@pytest_asyncio.fixture
async def redis(tmp_path, free_port) -> AsyncIterator[RedisServer]:
    server = RedisServer(tmp_path, free_port())
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def make_quota(redis) -> AsyncIterator[MakeQuota]:
    async with AsyncExitStack() as stack:

        def make(**more: object) -> Quota:
            clock = FakeClock(6000.0)
            quota = Quota(more.pop("url", redis.url), clock=clock.now, **more)  # type: ignore[arg-type]
            stack.push_async_callback(quota.close)
            return quota

        yield make


async def test_replicas_together_take_no_more_than_the_limit(make_quota):
    replicas = [make_quota(), make_quota()]
    results = await asyncio.gather(
        *(replicas[turn % 2].take_request(ACME) for turn in range(100)), return_exceptions=True
    )
    assert Counter(type(result) for result in results) == {Charge: 8, QuotaSpent: 92}
    with pytest.raises(QuotaSpent):  # and what was refused left nothing behind
        await replicas[0].take_request(ACME)
    replicas[0].give_back(next(result for result in results if isinstance(result, Charge)))
    await replicas[0].write()
    await replicas[1].take_request(ACME)


async def test_one_replica_settles_what_the_other_then_reserves(make_quota):
    one, other = make_quota(), make_quota()
    charge = await one.reserve_tokens(ACME, 1000)
    with pytest.raises(QuotaSpent):
        await other.reserve_tokens(ACME, 1)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(one.run())
        one.settle(charge, 400)
        async with asyncio.timeout(30):
            while (await other.reserve_tokens(ACME, 0)).headers()[1][1] != b"600":
                pass
        writing.cancel()


@pytest.mark.parametrize("when_away", ["allow", "refuse"])
async def test_a_redis_that_stops_and_starts_under_load_is_as_the_setting_says(
    redis, make_quota, when_away: WhenAway
):
    told: list[bool] = []
    quota = make_quota(when_away=when_away, on_away=told.append)
    ends: Counter[str] = Counter()
    happened = asyncio.Condition()
    over = False

    async def client() -> None:
        while not over:
            async with happened:
                happened.notify_all()
            try:
                charge = await quota.take_request(BUSY)
                ends["counted" if charge.headers() else "uncounted"] += 1
            except Overloaded:
                ends["refused"] += 1
            await asyncio.sleep(0.001)

    async def until(end: str) -> None:
        wanted = ends[end] + 20
        async with asyncio.timeout(30), happened:
            await happened.wait_for(lambda: ends[end] >= wanted)

    uncounted = "uncounted" if when_away == "allow" else "refused"
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(client())
        for _ in range(2):
            await until("counted")
            await redis.stop()
            await until(uncounted)
            await redis.start()
        await until("counted")
        over = True
    # A server that is about to end may still answer one question after it has refused others.
    assert told == [True, False] * (len(told) // 2)
    assert len(told) >= 4
    assert set(ends) == {"counted", uncounted}


async def test_a_client_that_leaves_while_redis_is_asked_is_gone(make_quota):
    quota = make_quota()
    over = False

    async def client() -> None:
        while not over:
            await quota.take_request(BUSY)

    stayed = 0
    for pause in range(20):
        tasks = [asyncio.create_task(client()) for _ in range(20)]
        for _ in range(50 + pause):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        over = True
        await asyncio.wait(tasks)
        over = False
        stayed += sum(not task.cancelled() for task in tasks)
    assert stayed == 0


async def test_a_redis_that_hangs_delays_only_the_first_few(redis, make_quota, monkeypatch):
    monkeypatch.setattr(reach, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(reach, "RETRY_SECONDS", 60.0)
    told: list[bool] = []
    quota = make_quota(on_away=told.append)
    await quota.take_request(BUSY)
    redis.hold()
    charges = await asyncio.gather(*(quota.take_request(BUSY) for _ in range(200)))
    assert [charge.headers() for charge in charges] == [[]] * 200
    assert told == [True]
    loop = asyncio.get_running_loop()
    started = loop.time()
    for _ in range(200):
        await quota.take_request(BUSY)
    # 200 waits of 0.05 s would be 10 s.
    assert loop.time() - started < 5


async def test_a_redis_that_hung_counts_right_when_it_goes_on(redis, make_quota, monkeypatch):
    """An answer that came too late is not taken for that of the next question."""
    quota = make_quota()
    await quota.reserve_tokens(ACME, 100)
    monkeypatch.setattr(reach, "TIMEOUT_SECONDS", 0.02)
    redis.hold()
    for _ in range(5):
        await quota.take_request(ACME)
    monkeypatch.setattr(reach, "TIMEOUT_SECONDS", 5.0)
    redis.go_on()
    await asyncio.sleep(reach.RETRY_SECONDS)
    for tokens in (800, 700):
        assert (await quota.reserve_tokens(ACME, 100)).headers()[1][1] == b"%d" % tokens


async def test_why_redis_is_of_no_use_is_told_and_the_password_is_not(tmp_path, free_port):
    port = free_port()
    server = RedisServer(tmp_path, port, "--requirepass", "the right one")
    reasons: list[str | None] = []
    quota = Quota(
        f"redis://:wrong-one@127.0.0.1:{port}/0", on_away=lambda _: reasons.append(quota.away)
    )
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        stack.push_async_callback(quota.close)
        for _ in range(3):
            await quota.take_request(ACME)
    (reason,) = reasons
    assert reason is not None
    assert "password" in reason
    assert "wrong-one" not in reason
