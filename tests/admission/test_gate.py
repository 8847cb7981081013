"""Who is refused, with which code, and when to come back."""

from __future__ import annotations

from typing import Any

import pytest

from app.admission.events import Event, Refused
from app.admission.policy import Capacity
from app.admission.rules import BandWeights, Prices, Rules, Waits
from app.admission.scheduler import Scheduler
from app.admission.tenant_share import TenantShare
from app.admission.ticket import Ticket
from app.errors import FairgateError, Overloaded, QueueFull, WaitTooLong
from tests.admission.simulation import Call, Engine, Simulation, poisson


def ticket(now: float, tenant: str = "flood", **fields: Any) -> Ticket:
    defaults: dict[str, Any] = {
        "tenant": tenant,
        "work_class": "interactive",
        "request_id": "r",
        "prompt_tokens": 80,
        "max_output_tokens": 64,
        "arrived_seconds": now,
    }
    return Ticket(**defaults | fields)


def flooded(**settings: Any) -> tuple[Scheduler, Simulation]:
    """Ten seconds into a flood of twice the machine."""
    scheduler = Scheduler(Capacity(sequences=64), **settings)
    scheduler.set_tenant(TenantShare(id="flood", queued=None, running=None, wait_seconds=100))
    run = Simulation(scheduler)
    run.add(poisson("flood", 60, 0, 10))
    return scheduler, run.run(10)


def test_only_the_tenant_that_would_wait_too_long_is_refused():
    scheduler, run = flooded()
    with pytest.raises(WaitTooLong) as caught:
        scheduler.check("flood", "interactive", now=run.now, max_wait_seconds=1.0)
    assert 1 <= caught.value.retry_after_seconds <= 60
    scheduler.check("quiet", "interactive", now=run.now, max_wait_seconds=1.0)
    scheduler.check("flood", "interactive", now=run.now, max_wait_seconds=50.0)


def test_it_is_the_servers_fault_where_a_newcomer_would_be_refused_too():
    """Places come free every few tens of milliseconds: nobody gets one in a hundredth of that."""
    scheduler, run = flooded()
    for tenant in ("flood", "newcomer"):
        with pytest.raises(Overloaded):
            scheduler.check(tenant, "interactive", now=run.now, max_wait_seconds=0.0005)


def test_the_answer_with_the_prompt_is_the_same():
    scheduler, run = flooded()
    late = ticket(run.now, wait_deadline_seconds=run.now + 1.0)
    with pytest.raises(WaitTooLong):
        scheduler.submit(late, run.now)
    assert late.outcome == "rejected"
    assert scheduler.statistics().accounts[0].queued == sum(
        call.granted is None for call in run.calls
    )


def test_nobody_is_refused_for_a_wait_that_was_never_measured():
    scheduler = Scheduler(Capacity(sequences=1))
    for _ in range(50):
        scheduler.check("a", "interactive", now=0.0, max_wait_seconds=0.001)
        scheduler.submit(ticket(0.0, "a"), 0.0)
        scheduler.pump(0.0)


def test_parts_of_accepted_work_are_only_delayed():
    scheduler, run = flooded()
    part = ticket(run.now, wait_deadline_seconds=None, part=True)
    scheduler.set_tenant(TenantShare(id="flood", queued=0, wait_seconds=0.001))
    scheduler.submit(part, run.now)
    with pytest.raises(QueueFull):
        scheduler.submit(ticket(run.now), run.now)


def test_all_queues_together_are_bounded():
    scheduler = Scheduler(Capacity(sequences=1), rules=Rules(queued_total=3))
    for number in range(4):
        scheduler.submit(ticket(0.0, f"t{number}"), 0.0)
        scheduler.pump(0.0)
    with pytest.raises(Overloaded):
        scheduler.submit(ticket(0.0, "one more"), 0.0)


def test_a_target_for_the_first_token_bounds_the_wait_unless_the_tenant_has_its_own():
    rules = Rules(waits=Waits(first_token_target_seconds=1.0))
    scheduler, run = flooded(rules=rules)
    scheduler.check("flood", "interactive", now=run.now)
    scheduler.set_tenant(TenantShare(id="flood", queued=None))
    with pytest.raises(WaitTooLong):
        scheduler.check("flood", "interactive", now=run.now)
    scheduler.check("flood", "batch", now=run.now)


def test_a_long_prompt_alone_is_never_refused_for_the_target():
    """Its prefill takes three times the target: served late."""
    rules = Rules(waits=Waits(first_token_target_seconds=1.0))
    run = Simulation(Scheduler(Capacity(sequences=8), rules=rules), Engine(sequences=8))
    run.add([Call("a", 10.0 * number, prompt=30_000) for number in range(20)])
    run.run(250)
    assert all(call.error is None and call.last is not None for call in run.calls)


def test_refusals_are_told_to_the_observer():
    events: list[Event] = []

    class Listener:
        def on_event(self, event: Event) -> None:
            events.append(event)

    scheduler = Scheduler(Capacity(sequences=1), observer=Listener())
    with pytest.raises(FairgateError):
        scheduler.check("a", "interactive", now=0.0, sequences=2)
    assert events == [
        Refused(
            tenant="a", work_class="interactive", code="invalid_request", retry_after_seconds=0.0
        )
    ]


@pytest.mark.parametrize(
    "build",
    [
        lambda: TenantShare(id="a", weight=-1),
        lambda: TenantShare(id="a", weight=float("nan")),
        lambda: TenantShare(id="a", running=0),
        lambda: TenantShare(id="a", queued=-1),
        lambda: Capacity(sequences=0),
        lambda: Capacity(sequences=1, kv_tokens=0),
        lambda: Prices(output=0),
        lambda: BandWeights(interactive=0),
        lambda: BandWeights.strict(floor=1),
        lambda: Waits(batch_seconds=0),
        lambda: Waits(first_token_target_seconds=0),
        lambda: Rules(queued_total=0),
    ],
)
def test_impossible_values_are_refused_when_they_are_made(build: Any):
    with pytest.raises(ValueError, match="must"):
        build()
