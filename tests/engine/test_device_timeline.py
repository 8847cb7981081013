"""When steps and copies end, in numbers for time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.device_timeline import DeviceTimeline, Link


def test_the_first_step_begins_when_it_is_asked_for() -> None:
    assert DeviceTimeline().step_ends_at(now=100.0, seconds=2, goes_on=True) <= 102
    assert DeviceTimeline().step_ends_at(now=100.0, seconds=2, goes_on=False) == 102


def test_a_step_that_goes_on_begins_when_the_last_one_ended() -> None:
    device = DeviceTimeline()
    device.step_ends_at(now=0, seconds=10, goes_on=False)
    assert device.step_ends_at(now=13, seconds=10, goes_on=True) == 20


def test_a_step_after_idling_begins_when_it_is_asked_for() -> None:
    device = DeviceTimeline()
    device.step_ends_at(now=0, seconds=10, goes_on=False)
    assert device.step_ends_at(now=13, seconds=10, goes_on=False) == 23


def test_a_host_slower_than_the_device_sets_the_pace_and_saves_up_nothing() -> None:
    """A pause of the host is not made up for by steps of no length."""
    device = DeviceTimeline()
    device.step_ends_at(now=0, seconds=10, goes_on=False)
    assert device.step_ends_at(now=500, seconds=10, goes_on=True) == 500
    assert device.step_ends_at(now=501, seconds=10, goes_on=True) == 510


def test_a_step_handed_over_early_waits_for_the_device() -> None:
    device = DeviceTimeline()
    device.step_ends_at(now=0, seconds=10, goes_on=False)
    assert device.step_ends_at(now=1, seconds=10, goes_on=True) == 20
    assert device.step_ends_at(now=2, seconds=10, goes_on=False) == 30


def test_a_step_waits_for_what_it_must_not_overtake() -> None:
    device = DeviceTimeline()
    device.step_ends_at(now=0, seconds=10, goes_on=False)
    assert device.step_ends_at(now=11, seconds=10, goes_on=True, not_before=14) == 24


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 20), st.booleans()), max_size=40))
def test_steps_never_overlap_and_never_end_before_they_are_asked_for(
    steps: list[tuple[float, float, bool]],
) -> None:
    device, now, ended = DeviceTimeline(), 0.0, float("-inf")
    for gap, seconds, goes_on in steps:
        now += gap
        ends_at = device.step_ends_at(now=now, seconds=seconds, goes_on=goes_on)
        assert ends_at >= ended + seconds - 1e-9
        assert ends_at >= now - 1e-9
        ended = ends_at


def test_copies_run_one_after_the_other() -> None:
    link = Link()
    assert link.copy_ends_at(not_before=5, seconds=3) == 8
    assert link.copy_ends_at(not_before=6, seconds=3) == 11
    assert link.copy_ends_at(not_before=20, seconds=1) == pytest.approx(21)
