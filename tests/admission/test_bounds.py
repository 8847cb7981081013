"""How long anybody can be kept waiting, by whatever the others do."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.policy import Capacity, Fair
from app.admission.scheduler import Scheduler
from app.admission.tenant_share import TenantShare
from app.admission.ticket import State, Ticket

SEQUENCES = 4
OUTPUT = 40
PROMPT = 300


def newcomer(tenant: str, prompt: int = 100, output: int = 20) -> Ticket:
    return Ticket(
        tenant=tenant,
        work_class="interactive",
        request_id=tenant,
        prompt_tokens=prompt,
        max_output_tokens=output,
        arrived_seconds=0.0,
    )


aggressors = st.lists(
    st.tuples(
        st.integers(1, PROMPT),
        st.integers(1, OUTPUT),
        st.sampled_from(("finish", "abort", "abort at once", "take back")),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=80, deadline=None)
@given(aggressors, st.sampled_from((0.5, 1.0, 4.0)), st.integers(0, 60))
def test_nobody_waits_for_more_than_the_bound(
    habits: list[tuple[int, int, str]], weight: float, before: int
):
    """Invariants 11 and 12: aggressors with endless queues, that also leave as it suits them.

    From the victim's arrival to its grant, the others get at most the sum over them of
    `w * (U + U of the victim)`, and each of their refunds once.
    """
    scheduler = Scheduler(Capacity(sequences=SEQUENCES), policy=Fair(prompt_tokens_per_step=10**9))
    names = [f"aggressor{number}" for number in range(len(habits))]
    for name in (*names, "victim"):
        scheduler.set_tenant(
            TenantShare(
                id=name,
                weight=weight if name == "victim" else 1.0,
                queued=None,
                running=None,
                wait_seconds=1e9,
            )
        )
    now, running, served, victim = 0.0, list[Ticket](), 0.0, newcomer("victim")
    habit_of = dict(zip(names, habits, strict=True))
    for round_number in range(before + 2000):
        now += 0.03
        for name, (prompt, output, _) in habit_of.items():
            scheduler.submit(newcomer(name, prompt, output), now)
        if round_number == before:
            scheduler.submit(victim, now)
            served = 0.0
        for ticket in scheduler.pump(now):
            if ticket.state is State.GRANTED and ticket is not victim:
                running.append(ticket)
                served += ticket.prompt_tokens
        if victim.state is State.GRANTED:
            break
        for ticket in list(running):
            served += act(scheduler, ticket, habit_of[ticket.tenant][2], now)
            if ticket.state is State.ENDED:
                running.remove(ticket)
        scheduler.stepped(now)
    assert victim.state is State.GRANTED
    gain = PROMPT + 2 * OUTPUT * SEQUENCES
    refunds = PROMPT * SEQUENCES
    assert served <= len(habits) * (gain + (100 + 2 * 20) / weight) + refunds + gain


def act(scheduler: Scheduler, ticket: Ticket, habit: str, now: float) -> float:
    """One step of a request's life; returns the service that it brought."""
    if habit == "take back":
        scheduler.take_back(ticket, now)
        return -float(ticket.prompt_tokens)
    if habit == "abort at once":
        scheduler.end(ticket, "aborted", now)
        return 0.0
    scheduler.tokens(ticket, 1, now)
    if habit == "abort" and ticket.output_tokens > 1:
        scheduler.end(ticket, "aborted", now)
    elif ticket.output_tokens >= ticket.max_output_tokens:
        scheduler.end(ticket, "finished", now)
    return 2.0
