"""Busy minutes in simulated time: what tenants get beside each other, and that a plain queue fails.

The engine is `simulation.py`: 20 ms and 0.1 ms a token, 64 sequences. The suite is that of the VTC
paper: overload, weights, on and off, ramp, shift.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from app.admission.events import Event, Granted
from app.admission.policy import Capacity, Fair
from app.admission.rules import Rules, Waits
from app.admission.scheduler import Scheduler
from app.admission.tenant_share import TenantShare
from tests.admission.simulation import (
    Admission,
    Call,
    Engine,
    PlainFifo,
    Simulation,
    poisson,
    quantile,
)

QUIET_RATE, FLOOD_RATE, FITTING_RATE = 2.0, 60.0, 15.0
SEEDS = ("70", "71", "72", "73")


class Listener:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def fair(
    weights: dict[str, float],
    *,
    sequences: int = 64,
    wait_seconds: float | None = 300.0,
    rules: Rules | None = None,
    observer: Listener | None = None,
    seed: int = 1,
) -> Scheduler:
    scheduler = Scheduler(
        Capacity(sequences=sequences),
        rules=rules,
        observer=observer,
        jitter=random.Random(seed).random,
    )
    for name, weight in weights.items():
        scheduler.set_tenant(
            TenantShare(
                id=name, weight=weight, queued=100_000, running=500, wait_seconds=wait_seconds
            )
        )
    return scheduler


def noisy(admission: Callable[[], Admission], flood_rate: float) -> tuple[list[float], int]:
    """The quiet tenant's times to first token beside a flood, and everybody's tokens."""
    first: list[float] = []
    tokens = 0
    for seed in SEEDS:
        run = Simulation(admission())
        run.add(poisson("quiet", QUIET_RATE, 0, 30, seed=seed))
        run.add(poisson("flood", flood_rate, 0, 30, seed=seed))
        run.run(30)
        assert not any(call.error for call in run.calls)
        first += run.first_tokens("quiet")
        tokens += run.tokens(30)
    return sorted(first), tokens


@pytest.fixture(scope="module")
def floor() -> list[float]:
    """Sharing steps with a flood that fits, without any queue."""
    return noisy(PlainFifo, FITTING_RATE)[0]


def holds_for_the_quiet_tenant(first: list[float], floor: list[float]) -> bool:
    """The promise of the README, in the terms of its figures."""
    p50, p95 = (quantile(first, q) / quantile(floor, q) for q in (0.5, 0.95))
    return p50 <= 1.3 and p95 <= 1.5


def test_a_quiet_tenant_does_not_feel_a_flood(floor: list[float]):
    first, tokens = noisy(lambda: fair({"quiet": 1, "flood": 1}), FLOOD_RATE)
    _, fifo_tokens = noisy(PlainFifo, FLOOD_RATE)
    assert holds_for_the_quiet_tenant(first, floor)
    assert tokens >= 0.97 * fifo_tokens


def test_on_a_plain_fifo_queue_the_same_harness_fails(floor: list[float]):
    first, _ = noisy(PlainFifo, FLOOD_RATE)
    assert not holds_for_the_quiet_tenant(first, floor)
    assert quantile(first, 0.5) > 50 * quantile(floor, 0.5)


def share_error(run: Simulation, weights: dict[str, float], start: float, end: float) -> float:
    """The worst distance of a tenant's service over weight from the mean."""
    per_weight = [run.service(name, start, end) / weight for name, weight in weights.items()]
    mean = sum(per_weight) / len(per_weight)
    return max(abs(value - mean) / mean for value in per_weight)


@pytest.mark.parametrize("sequences", [32, 64])
def test_weights_hold_within_a_percent_over_a_busy_minute(sequences: int):
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    scheduler = fair(weights, sequences=sequences)
    run = Simulation(scheduler, Engine(sequences=sequences))
    for name in weights:
        run.add(poisson(name, 30, 0, 72))
    run.run(72)
    assert share_error(run, weights, 12, 72) <= 0.01
    assert scheduler.statistics().fairness_index >= 0.999


def test_on_a_plain_fifo_queue_weights_do_not_hold():
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    run = Simulation(PlainFifo())
    for name in weights:
        run.add(poisson(name, 30, 0, 30))
    run.run(30)
    assert share_error(run, weights, 5, 30) > 0.4


def test_opposite_shapes_get_equal_service():
    """Long prompts with short answers beside short prompts with long answers."""
    weights = {"reader": 1.0, "writer": 1.0}
    run = Simulation(fair(weights))
    run.add(poisson("reader", 20, 0, 100, prompt=1000, output=25))
    run.add(poisson("writer", 20, 0, 100, prompt=50, output=300))
    run.run(100)
    assert share_error(run, weights, 30, 90) <= 0.02


def test_a_returning_tenant_gets_its_share_at_once_and_no_more():
    """A minute of silence is neither credit nor debt."""
    weights = {"steady": 1.0, "other": 1.0, "back": 1.0}
    run = Simulation(fair(weights))
    for name in ("steady", "other"):
        run.add(poisson(name, 30, 0, 90))
    run.add(poisson("back", 30, 0, 10))
    run.add(poisson("back", 60, 70, 90))
    run.run(90)
    got = {name: run.service(name, 70.5, 80.5) for name in weights}
    due = sum(got.values()) / 3
    assert got["back"] == pytest.approx(due, rel=0.05)


def test_an_idle_tenants_share_is_used_by_others():
    run = Simulation(fair({"a": 1.0, "absent": 9.0}))
    run.add(poisson("a", 60, 0, 20))
    alone = Simulation(fair({"a": 1.0}))
    alone.add(poisson("a", 60, 0, 20))
    assert run.run(20).tokens(20) == alone.run(20).tokens(20)


def test_a_ramping_tenant_takes_nothing_from_one_below_its_share():
    """Its rate grows from a little to twice the machine; the other's first tokens do not notice."""
    rng = random.Random(3)
    run = Simulation(fair({"modest": 1.0, "ramping": 1.0}))
    run.add(poisson("modest", 6, 0, 60))
    when = 0.0
    while when < 60:
        when += rng.expovariate(2 + when)
        run.add([Call("ramping", when)])
    run.run(60)
    early = [
        c.first - c.arrived
        for c in run.calls
        if c.tenant == "modest" and c.first and c.arrived < 20
    ]
    late = [
        c.first - c.arrived
        for c in run.calls
        if c.tenant == "modest" and c.first and c.arrived > 40
    ]
    assert quantile(sorted(late), 0.9) < 2 * quantile(sorted(early), 0.9)
    assert run.service("modest", 40, 60) == pytest.approx(6 * 20 * (80 + 2 * 64), rel=0.15)


def test_a_shift_of_shapes_keeps_shares_equal():
    """In mid-run one tenant's requests become eight times longer."""
    weights = {"same": 1.0, "shifting": 1.0}
    run = Simulation(fair(weights))
    run.add(poisson("same", 30, 0, 90))
    run.add(poisson("shifting", 30, 0, 30, output=32))
    run.add(poisson("shifting", 30, 30, 90, output=256, seed="8"))
    run.run(90)
    assert share_error(run, weights, 5, 30) <= 0.05
    # The old short ones wait in its queue until about now; then only long ones come.
    assert share_error(run, weights, 60, 90) <= 0.05


def test_batch_gets_a_tenth_of_interactive_beside_it_and_everything_alone():
    run = Simulation(fair({"chat": 1.0, "papers": 1.0}))
    run.add(poisson("papers", 30, 0, 90, work_class="batch"))
    run.add(poisson("chat", 60, 5, 90))
    run.run(90)
    assert run.service("papers", 2, 5) > 0.8 * run.service("chat", 45, 48)
    # What ran when the other came is charged while it runs: batch has its lead to pay off first.
    ratio = run.service("chat", 30, 90) / run.service("papers", 30, 90)
    assert ratio == pytest.approx(10, rel=0.05)


def test_background_runs_only_in_what_is_left():
    run = Simulation(fair({"paying": 1.0, "free": 0.0}))
    run.add(poisson("free", 30, 0, 30))
    run.add(poisson("paying", 60, 10, 30))
    run.run(30)
    assert run.service("free", 2, 10) > 0
    assert run.service("free", 15, 30) < 0.01 * run.service("paying", 15, 30)


def mixed(name: str, rate: float, start: float, end: float, *, seed: str = "3") -> list[Call]:
    """Lengths as in a chat: most short, some long."""
    rng = random.Random(f"{seed}{name}")
    calls = poisson(name, rate, start, end, seed=seed)
    for call in calls:
        call.prompt = rng.randrange(30, 150)
        call.output = max(8, min(160, int(rng.lognormvariate(3.9, 0.6))))
        call.limit = 256
    return calls


EIGHT = {f"t{number}": 1.0 for number in range(8)}


@pytest.mark.parametrize(
    ("weights", "most"),
    [
        pytest.param(EIGHT, 0.15, id="all with a backlog"),
        # The heaviest asks for just less than its share: its queue comes and goes.
        pytest.param({"a": 1.0, "b": 2.0, "c": 4.0}, 0.25, id="one at the edge"),
    ],
)
def test_the_predicted_wait_is_about_right(weights: dict[str, float], most: float):
    listener = Listener()
    run = Simulation(fair(weights, wait_seconds=10, observer=listener))
    for name in weights:
        run.add(mixed(name, 50 / len(weights), 0, 60))
    run.run(60)
    errors = sorted(
        abs(event.predicted_seconds - event.queue_seconds) / event.queue_seconds
        for event in listener.events
        if isinstance(event, Granted)
        and event.predicted_seconds is not None
        and event.queue_seconds > 0.05
    )
    assert len(errors) > 1000
    assert quantile(errors, 0.5) <= most


@pytest.mark.parametrize("rate", [60.0, 120.0])
def test_past_saturation_what_is_admitted_is_served_in_time(rate: float):
    """Two and four times the machine: early refusal keeps the first tokens inside the target."""
    rules = Rules(waits=Waits(first_token_target_seconds=1.0))
    run = Simulation(fair(EIGHT, wait_seconds=None, rules=rules))
    for name in EIGHT:
        run.add(mixed(name, rate / 8, 0, 30))
    run.run(30)
    good = sum(c.first is not None and c.first - c.arrived <= 1.0 for c in run.calls)
    late = sum(c.first is not None and c.first - c.arrived > 1.0 for c in run.calls)
    assert late <= 0.01 * good
    assert good >= 28 * 28


@pytest.mark.parametrize("seed", [1, 2])
def test_clients_that_return_when_told_are_let_in(seed: int):
    """After a burst of twice the machine over a steady half."""
    scheduler = fair(EIGHT, wait_seconds=2, seed=seed)
    run = Simulation(scheduler)
    tries: dict[Call, int] = {}

    def come_back(run: Simulation, call: Call) -> None:
        retry_after = getattr(call.error, "retry_after_seconds", None)
        if retry_after is not None:
            again = Call(call.tenant, run.now + retry_after, call.prompt, call.output, call.limit)
            tries[again] = tries.get(call, 0) + 1
            run.add([again])

    run.on_end = come_back
    for name in EIGHT:
        run.add(mixed(name, 15 / 8, 0, 80, seed=f"s{seed}"))
        run.add(mixed(name, 62 / 8, 15, 20, seed=f"b{seed}"))
    run.run(120)
    first = [call for call, count in tries.items() if count == 1]
    assert len(first) > 50
    assert sum(call.error is None for call in first) >= 0.8 * len(first)
    assert max(tries.values()) <= 3


def test_a_lone_request_never_waits():
    run = Simulation(fair({"a": 1.0}))
    run.add([Call("a", float(second)) for second in range(20)])
    run.run(25)
    assert all(call.granted == call.arrived for call in run.calls)


def test_the_engine_is_kept_shallow_yet_never_idle():
    """What is granted is running or joins with the next steps; a flood never sees free steps."""
    run = Simulation(fair({"a": 1.0}))
    run.add(poisson("a", 60, 0, 20))
    deepest = 0
    places: list[int] = []

    def look(run: Simulation) -> None:
        nonlocal deepest
        deepest = max(deepest, len(run._inbox))
        if run.now > 5:
            places.append(len(run._running))

    run.watch = look
    run.run(20)
    # Beside what came during the running step, the engine's own queue is empty.
    assert deepest <= 3
    assert sum(places) / len(places) > 0.95 * 64


def test_kv_admission_leaves_nothing_to_preempt():
    """Answers of known length: what runs never holds more than the cache."""
    scheduler = Scheduler(Capacity(sequences=64, kv_tokens=6000), policy=Fair(kv_share=1.0))
    run = Simulation(scheduler)
    rng = random.Random(4)
    calls = [
        Call("a", rng.random() * 10, rng.randrange(50, 400), 1 << rng.randrange(3, 8))
        for _ in range(300)
    ]
    run.add(calls)
    fullest = 0

    def look(run: Simulation) -> None:
        nonlocal fullest
        fullest = max(fullest, sum(c.prefilled + c.made for c in run._running))

    run.watch = look
    run.run(120)
    assert all(call.last is not None for call in run.calls)
    assert 0.75 * 6000 < fullest <= 6000
