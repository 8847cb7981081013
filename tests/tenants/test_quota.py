"""Requests and tokens per minute, counted in this process under a clock that we turn."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidRequest, RateLimited
from app.tenants import quota as quota_module
from app.tenants.charge import Charge, QuotaSpent, QuotaState
from app.tenants.counters import OwnCounters
from app.tenants.model import Limits, Tenant
from app.tenants.quota import Quota
from tests.fakes import FakeClock, settle

ACME = Tenant(id="acme", limits=Limits(requests_per_minute=2, tokens_per_minute=1000))
FREE = Tenant(id="free")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(6000.0)  # a full minute


@pytest.fixture
def quota(clock) -> Quota:
    return Quota(clock=clock.now)


async def spent(quota: Quota, tokens: int | None = None, tenant: Tenant = ACME) -> QuotaSpent:
    taking = quota.take_request(tenant) if tokens is None else quota.reserve_tokens(tenant, tokens)
    with pytest.raises(QuotaSpent) as caught:
        await taking
    return caught.value


def remaining(charge: Charge) -> int:
    assert charge.state is not None
    return charge.state.remaining


async def test_the_limit_passes_and_one_more_does_not(quota):
    for _ in range(2):
        await quota.take_request(ACME)
    error = await spent(quota)
    assert isinstance(error, RateLimited)
    assert error.code == "rate_limited"
    assert "2 requests per minute" in error.message


async def test_whoever_waits_as_told_passes(quota, clock):
    """And without waiting, or a second too early, does not."""
    for tokens in (900, 90):
        await quota.reserve_tokens(ACME, tokens)
    for tokens in (11, 500, 1000):
        error = await spent(quota, tokens)
        retry_seconds = error.retry_after_seconds
        assert retry_seconds == int(retry_seconds) >= 1
        clock.move(retry_seconds - 1)
        await spent(quota, tokens)
        clock.move(1)
        quota.give_back(await quota.reserve_tokens(ACME, tokens))


async def test_a_refusal_uses_nothing_up(quota, clock):
    await quota.take_request(ACME)
    await quota.take_request(ACME)
    wait_seconds = (await spent(quota)).retry_after_seconds
    for _ in range(50):
        assert (await spent(quota)).retry_after_seconds == wait_seconds
    clock.move(120)
    assert remaining(await quota.take_request(ACME)) == 1


async def test_what_another_limit_refused_is_given_back(quota):
    """Two per minute: one runs, one is refused for something else, the next one still passes."""
    await quota.take_request(ACME)
    refused = await quota.take_request(ACME)
    quota.give_back(refused)
    quota.give_back(refused)
    assert remaining(await quota.take_request(ACME)) == 0
    await spent(quota)


async def test_the_surplus_of_an_estimate_returns(quota):
    charge = await quota.reserve_tokens(ACME, 1000)
    await spent(quota, 1)
    quota.settle(charge, 300)
    assert remaining(await quota.reserve_tokens(ACME, 700)) == 0


async def test_the_shortfall_of_an_estimate_is_charged(quota):
    charge = await quota.reserve_tokens(ACME, 10)
    quota.settle(charge, 995)
    await spent(quota, 10)
    assert remaining(await quota.reserve_tokens(ACME, 5)) == 0


async def test_more_than_the_limit_may_be_used_but_nothing_remains(quota, clock):
    quota.settle(await quota.reserve_tokens(ACME, 1), 3000)
    error = await spent(quota, 1)
    assert error.state.remaining == 0
    clock.move(error.retry_after_seconds)
    await quota.reserve_tokens(ACME, 1)


async def test_a_charge_is_settled_once(quota):
    charge = await quota.reserve_tokens(ACME, 1000)
    quota.settle(charge, 400)
    quota.settle(charge, 0)
    quota.give_back(charge)
    assert remaining(await quota.reserve_tokens(ACME, 600)) == 0


async def test_a_surplus_returns_to_the_minute_that_it_was_taken_in(quota, clock):
    charge = await quota.reserve_tokens(ACME, 1000)
    clock.move(60 + 30)
    assert remaining(await quota.reserve_tokens(ACME, 0)) == 500
    quota.settle(charge, 200)
    assert remaining(await quota.reserve_tokens(ACME, 0)) == 900


async def test_a_surplus_of_long_ago_is_nobodys(quota, clock):
    charge = await quota.reserve_tokens(ACME, 1000)
    clock.move(600)
    await quota.reserve_tokens(ACME, 1000)
    quota.settle(charge, 0)
    await spent(quota, 1)


async def test_a_shortfall_is_charged_when_it_is_known(quota, clock):
    charge = await quota.reserve_tokens(ACME, 0)
    clock.move(600)
    quota.settle(charge, 1000)
    await spent(quota, 1)


async def test_what_can_never_fit_is_the_clients_to_change(quota):
    with pytest.raises(InvalidRequest, match=r"1001 tokens.*1000 tokens per minute"):
        await quota.reserve_tokens(ACME, 1001)
    assert remaining(await quota.reserve_tokens(ACME, 1000)) == 0


async def test_a_tenant_without_limits_never_meets_the_store(quota, monkeypatch):
    monkeypatch.setattr(quota, "_counters", None)
    charges = [await quota.take_request(FREE), await quota.reserve_tokens(FREE, 10**9)]
    for charge in charges:
        assert charge.headers() == []
        quota.settle(charge, 5)
    await quota.write()


async def test_tenants_and_kinds_are_counted_apart(quota):
    other = Tenant(id="other", limits=ACME.limits)
    await quota.reserve_tokens(ACME, 1000)
    assert remaining(await quota.reserve_tokens(other, 1000)) == 0
    assert remaining(await quota.take_request(ACME)) == 1


async def test_a_new_limit_keeps_the_count(quota):
    """A reload neither forgives nor forgets."""
    await quota.reserve_tokens(ACME, 600)
    lower = Tenant(id="acme", limits=Limits(tokens_per_minute=500))
    higher = Tenant(id="acme", limits=Limits(tokens_per_minute=2000))
    assert (await spent(quota, 1, lower)).state.remaining == 0
    assert remaining(await quota.reserve_tokens(higher, 0)) == 1400


async def test_the_headers_say_limit_rest_and_reset(quota, clock):
    clock.move(20)
    charge = await quota.reserve_tokens(ACME, 300)
    assert charge.headers() == [
        (b"x-ratelimit-limit-tokens", b"1000"),
        (b"x-ratelimit-remaining-tokens", b"700"),
        (b"x-ratelimit-reset-tokens", b"100s"),
    ]
    state = QuotaState(kind="requests", limit=2, remaining=1, reset_seconds=0.2)
    assert state.headers() == [
        (b"x-ratelimit-limit-requests", b"2"),
        (b"x-ratelimit-remaining-requests", b"1"),
        (b"x-ratelimit-reset-requests", b"1s"),
    ]


async def test_a_refusal_carries_its_headers(quota):
    await quota.take_request(ACME)
    await quota.take_request(ACME)
    assert (await spent(quota)).state.headers()[1] == (b"x-ratelimit-remaining-requests", b"0")


async def test_many_at_once_take_no_more_than_the_limit(quota):
    tenant = Tenant(id="t", limits=Limits(requests_per_minute=8))
    results = await asyncio.gather(
        *(quota.take_request(tenant) for _ in range(200)), return_exceptions=True
    )
    assert sum(isinstance(result, Charge) for result in results) == 8


class SlowCounters(OwnCounters):
    """Suspends before each answer, as a store elsewhere does."""

    async def add(self, name: str, minute: int, amount: int) -> int:
        total = await super().add(name, minute, amount)
        await asyncio.sleep(0)
        return total

    async def read(self, name: str, minute: int) -> int:
        await asyncio.sleep(0)
        return await super().read(name, minute)


@pytest.fixture
def slow(clock, monkeypatch) -> Quota:
    monkeypatch.setattr(quota_module, "OwnCounters", SlowCounters)
    return Quota(clock=clock.now)


async def test_of_many_that_overtake_each_other_no_more_than_the_limit_pass(slow):
    tenant = Tenant(id="t", limits=Limits(tokens_per_minute=80))
    results = await asyncio.gather(
        *(slow.reserve_tokens(tenant, 10) for _ in range(200)), return_exceptions=True
    )
    assert sum(isinstance(result, Charge) for result in results) == 8
    await spent(slow, 10, tenant)
    assert await slow._counters.read("tokens/t", 100) == 80


@pytest.mark.parametrize("rounds", range(4))
async def test_whoever_leaves_while_it_is_counted_keeps_nothing(slow, rounds):
    """Cancelled at any await: what it took is given back, or it never took it."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(slow.reserve_tokens(ACME, 1000))
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await settle()
        if not task.cancelled():
            slow.give_back(task.result())
    await slow.write()
    taken = await slow._counters.read("tokens/acme", 100)
    # Cancelled inside the very first addition nobody knows whether it was made.
    assert taken == 0 or (rounds == 1 and taken == 1000)


async def test_what_is_settled_is_written_behind(slow):
    """A route's end does not wait for the store."""
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(slow.run())
        charge = await slow.reserve_tokens(ACME, 1000)
        slow.settle(charge, 10)
        await settle()
        assert await slow._counters.read("tokens/acme", 100) == 10
        writer.cancel()


async def test_old_minutes_are_forgotten(clock):
    counters = OwnCounters()
    for minute in range(1000):
        await counters.add("x", minute, 1)
    assert len(counters._minutes) == 2
    await counters.add("x", 5, 1)
    assert list(counters._minutes) == [5]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 40), st.integers(0, 1000), st.none() | st.integers(0, 1000), st.booleans()
        ),
        max_size=40,
    )
)
async def test_exactly_what_the_sliding_minute_holds_is_let_in(steps):
    """Whatever is reserved, settled below or above the estimate, in any order."""
    clock = FakeClock(6000.0)
    quota = Quota(clock=clock.now)
    held: list[Charge] = []
    used_in: dict[int, int] = {}

    def taken() -> float:
        minute, elapsed_seconds = int(clock.now() // 60), clock.now() % 60
        return used_in.get(minute, 0) + used_in.get(minute - 1, 0) * (1 - elapsed_seconds / 60)

    def use(minute: float, amount: int) -> None:
        used_in[int(minute)] = used_in.get(int(minute), 0) + amount

    for pause_seconds, estimate, used, last in steps:
        clock.move(pause_seconds)
        if taken() + estimate > 1000.001:
            assert 1 <= (await spent(quota, estimate)).retry_after_seconds <= 240
        elif taken() + estimate < 999.999:
            charge = await quota.reserve_tokens(ACME, estimate)
            held.append(charge)
            use(clock.now() // 60, estimate)
            assert remaining(charge) == pytest.approx(1000 - taken(), abs=1)
        if held and used is not None:
            charge = held.pop(-1 if last else 0)
            quota.settle(charge, used)
            surplus = charge.amount - used
            use(charge.minute if surplus > 0 else clock.now() // 60, -surplus)


@pytest.mark.parametrize(
    "url",
    [
        "rubbish",
        "memcached://localhost",
        "redis://user:secret@host:no-port/0",
        "redis+sentinel://user:secret@host:1",
    ],
)
def test_a_url_of_no_use_is_refused_without_showing_its_password(url):
    with pytest.raises(ValueError, match="Redis") as caught:
        Quota(url)
    assert "secret" not in str(caught.value)


async def test_no_url_and_memory_count_here():
    for url in (None, "", "memory://"):
        quota = Quota(url)
        assert remaining(await quota.take_request(ACME)) == 1
        await quota.close()
