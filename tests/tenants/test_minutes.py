"""The arithmetic of a sliding minute."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from app.tenants.minutes import Minutes

MINUTES = st.builds(
    Minutes,
    limit=st.integers(1, 10**6),
    used=st.integers(0, 10**6),
    before=st.integers(0, 10**6),
    elapsed_seconds=st.floats(0, 59.999),
)


def later(minutes: Minutes, seconds: float) -> Minutes:
    """The same limit after `seconds` in which nothing was used."""
    used, before, elapsed = minutes.used, minutes.before, minutes.elapsed_seconds + seconds
    while elapsed >= 60:
        used, before, elapsed = 0, used, elapsed - 60
    return Minutes(limit=minutes.limit, used=used, before=before, elapsed_seconds=elapsed)


def fits(minutes: Minutes, amount: int) -> bool:
    return Minutes(
        limit=minutes.limit,
        used=minutes.used + amount,
        before=minutes.before,
        elapsed_seconds=minutes.elapsed_seconds,
    ).within


def test_the_minute_before_fades_evenly():
    minutes = Minutes(limit=100, used=10, before=60, elapsed_seconds=45)
    assert minutes.taken == 10 + 60 / 4
    assert minutes.remaining == 75


def test_no_double_burst_around_the_full_minute():
    """All of the limit in the last second leaves nothing in the next minute's first."""
    assert later(Minutes(limit=60, used=60, before=0, elapsed_seconds=59.9), 0.1).remaining == 0


def test_the_wait_is_what_it_takes_for_the_minute_before_to_fade():
    assert Minutes(limit=60, used=0, before=60, elapsed_seconds=0).wait_seconds(1) == 1
    assert Minutes(limit=60, used=60, before=0, elapsed_seconds=50).wait_seconds(60) == 70


@settings(deadline=None)
@given(MINUTES, st.data())
def test_whoever_waits_as_told_fits_and_whoever_comes_earlier_does_not(minutes, data):
    amount = data.draw(st.integers(0, minutes.limit))
    wait_seconds = minutes.wait_seconds(amount)
    assert 0 <= wait_seconds <= 120
    assert fits(later(minutes, wait_seconds), amount)
    assert fits(later(minutes, math.ceil(wait_seconds)), amount)
    # Even of one use, a tenth of a second fades more than the rounding that is allowed for.
    if wait_seconds > 0.1:
        assert not fits(later(minutes, wait_seconds - 0.1), amount)


@settings(deadline=None)
@given(MINUTES)
def test_what_remains_fits_and_one_more_does_not(minutes):
    assert 0 <= minutes.remaining <= minutes.limit
    if minutes.within:
        assert fits(minutes, minutes.remaining)
        if minutes.remaining < minutes.limit:
            assert not fits(minutes, minutes.remaining + 1)


@settings(deadline=None)
@given(MINUTES)
def test_after_the_reset_everything_is_free(minutes):
    after = later(minutes, minutes.reset_seconds + 1e-6)
    assert after.remaining == minutes.limit
