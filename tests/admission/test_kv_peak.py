"""The forecast of the KV cache against running everything to its end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.kv_peak import KvPeak, Reservation
from app.admission.ticket import Ticket

requests = st.tuples(st.integers(1, 200), st.integers(1, 60), st.sampled_from((1, 1, 1, 2, 4)))
moves = st.lists(st.one_of(requests, st.just("step"), st.integers(0, 10)), min_size=1, max_size=60)


def request(prompt: int, output: int, sequences: int) -> Ticket:
    return Ticket(
        tenant="a",
        work_class="interactive",
        request_id="r",
        prompt_tokens=prompt,
        max_output_tokens=output,
        sequences=sequences,
        arrived_seconds=0.0,
    )


def brute_force(running: list[Ticket]) -> int:
    """One token a step for every sequence, until its limit; the most that is held at any end."""
    left = [(t, t.output_tokens // t.sequences) for t in running]
    fullest = 0
    while left:
        left = [(t, made + 1) for t, made in left]
        held = sum(t.prompt_tokens + t.sequences * made for t, made in left)
        fullest = max(fullest, held)
        left = [(t, made) for t, made in left if made < t.max_output_tokens]
    return fullest


@settings(max_examples=150, deadline=None)
@given(moves, st.integers(200, 3000))
def test_the_peak_is_that_of_running_everything_to_its_end(
    moves: list[tuple[int, int, int] | str | int], limit: int
):
    """Invariant 13, for lengths that are known; and `fits` is the same question asked before."""
    kv = KvPeak(1, lambda ticket, beyond: ticket.max_output_tokens, grain_steps=1)
    running: dict[Ticket, Reservation] = {}
    for move in moves:
        if isinstance(move, tuple):
            ticket = request(*move)
            fits = brute_force([*running, ticket]) <= limit
            assert kv.fits(ticket, limit) is fits
            if fits:
                running[ticket] = kv.reserve(ticket)
        elif isinstance(move, int):
            if move < len(running):
                kv.release(running.pop(list(running)[move]))
        else:
            kv.stepped()
            for ticket in list(running):
                ticket.output_tokens += ticket.sequences
                if ticket.output_tokens >= ticket.max_output_tokens * ticket.sequences:
                    kv.release(running.pop(ticket))
        peak = brute_force(list(running))
        assert peak <= limit
        assert kv.peak() == peak
        assert kv.ceiling >= peak
    for reservation in running.values():
        kv.release(reservation)
    assert (kv.peak(), kv.ceiling, len(kv)) == (0, 0, 0)


def test_who_should_have_ended_is_expected_to_go_on():
    expected = {0: 10, 10: 25}
    kv = KvPeak(1, lambda ticket, beyond: expected[beyond], grain_steps=1)
    ticket = request(100, 60, 1)
    reservation = kv.reserve(ticket)
    assert kv.peak() == 110
    for _ in range(10):
        ticket.output_tokens += 1
        kv.stepped()
    assert kv.peak() == 125
    kv.release(reservation)
    assert kv.peak() == 0


def test_half_a_block_is_lost_per_sequence():
    kv = KvPeak(16, lambda ticket, beyond: 10, grain_steps=1)
    kv.reserve(request(100, 10, 2))
    assert kv.peak() == 100 + 2 * (10 + 8)


@settings(max_examples=50, deadline=None)
@given(st.lists(requests, min_size=1, max_size=20))
def test_rounding_the_ends_errs_on_the_safe_side_and_by_little(asked: list[tuple[int, int, int]]):
    def peak(grain_steps: int) -> int:
        kv = KvPeak(1, lambda ticket, beyond: ticket.max_output_tokens, grain_steps=grain_steps)
        for one in asked:
            kv.reserve(request(*one))
        return kv.peak()

    sequences = sum(n for _, _, n in asked)
    assert peak(1) <= peak(16) <= peak(1) + 15 * sequences + 16 * sequences
