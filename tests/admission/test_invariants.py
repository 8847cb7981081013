"""What holds whatever happens: random lives, every event of them checked by the book."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings

from app.admission import ledger as ledger_module
from app.admission.band import Band
from app.admission.policy import Fair, Fixed, Hindrance
from app.admission.rules import BandWeights, Rules
from app.admission.tenant_share import TenantShare
from app.admission.ticket import State, Ticket
from app.errors import Refused
from tests.admission.play import TENANTS, Move, Play, long_life, moves, play, shares

lives = settings(max_examples=40, deadline=None)
Shares = dict[str, TenantShare]
SEEDS = range(8)


def some_shares(seed: int, *, background: bool = True) -> Shares:
    rng = random.Random(seed)
    weights = (0.0, 0.5, 1.0, 1.0, 2.0, 4.0) if background else (0.5, 1.0, 1.0, 2.0, 4.0)
    return {
        name: TenantShare(
            id=name,
            weight=rng.choice(weights),
            running=rng.choice((None, None, 1, 2, 5)),
            queued=rng.choice((None, None, 3, 20)),
        )
        for name in TENANTS
    }


@lives
@given(moves, shares)
def test_counters_fifo_and_the_lemma_hold_at_every_event(moves: list[Move], shares: Shares):
    """Invariants 1, 2, 3 and 6: the checker recomputes everything after each move."""
    play(moves, shares).finish_everything()


@pytest.mark.parametrize("seed", SEEDS)
def test_they_hold_over_long_lives_and_the_bound_is_tight(seed: int):
    game = play(long_life(seed), some_shares(seed))
    game.finish_everything()
    checker = game.checked.checker
    assert checker.comparisons > 1000
    assert checker.closest > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_charges_are_the_prompts_and_outputs_less_the_refunds(seed: int):
    """Invariant 1, from the tickets alone."""
    game = play(long_life(seed), {})
    game.finish_everything()
    for account in game.scheduler.statistics().accounts:
        service = 0.0
        for ticket in game.tickets:
            if (ticket.tenant, ticket.work_class) != (account.tenant, account.work_class):
                continue
            if ticket.granted_seconds is None:
                continue
            reached = ticket.first_token_seconds is not None or ticket.outcome == "aborted"
            if reached and ticket not in game.taken_back:
                service += ticket.prompt_tokens - 0.9 * ticket.cached_tokens
            service += 2 * ticket.output_tokens
        assert account.service == pytest.approx(service)


@lives
@given(moves, shares)
def test_whoever_may_go_has_gone(moves: list[Move], shares: Shares):
    """Invariant 4: after every move, something stands in the way of the next of each band."""
    game = play([], shares)
    for move in moves:
        game.make(move)
        assert_nobody_could_go(game)


def assert_nobody_could_go(game: Play) -> None:
    scheduler = game.scheduler
    window, policy = scheduler._window, scheduler.policy
    heads = list(scheduler._ledger.heads())
    if not heads:
        assert not [t for t in game.checked.checker.tallies.values() if t.eligible]
        return
    ticket = heads[0].head()
    assert ticket is not None
    assert window.sequences > 0
    limit = policy.limit(window.capacity)
    used = sum(t.sequences for t in game.held())
    hindrance = policy.hindrance(ticket, window)
    if hindrance is Hindrance.SEQUENCES:
        assert used + ticket.sequences > limit
    elif hindrance is Hindrance.KV:
        tickets = [*game.held(), ticket]
        assert brute_force_peak(game, tickets) > 0.95 * 2000
    elif hindrance is Hindrance.PACING:
        assert not ticket.light
        assert any(t.first_token_seconds is not None for t in game.granted())
    else:
        assert hindrance is Hindrance.RESERVE
        assert ticket.background


def brute_force_peak(game: Play, tickets: list[Ticket]) -> int:
    """Run everything to its expected end, one token a step, and look at every step."""
    kv = game.scheduler._window.kv
    kv.peak()
    rows = []
    for ticket in tickets:
        made = ticket.output_tokens // ticket.sequences
        if ticket.reservation is None:
            end = kv._forecast(ticket).end - kv._clock
        else:
            end = ticket.reservation.end - kv._clock
        rows.append((ticket, made, end))
    peak = 0
    for step in range(1, max((end for _, _, end in rows), default=0) + 1):
        now = 0
        for ticket, made, end in rows:
            if end >= step:
                now += ticket.prompt_tokens + ticket.sequences * (made + step + kv._slack)
        peak = max(peak, now)
    return peak


@lives
@given(moves, shares)
def test_the_window_is_the_sum_of_what_holds_a_place(moves: list[Move], shares: Shares):
    """Invariant 5: recomputed after every move, and nothing is left when all is over."""
    game = play([], shares)
    window = game.scheduler._window
    for move in moves:
        game.make(move)
        held, granted = game.held(), game.granted()
        assert window.sequences == sum(t.sequences for t in held)
        assert len(window.kv) == window.sequences
        assert window.decoding == sum(t.first_token_seconds is not None for t in granted)
        assert window.prefill_tokens == sum(
            t.prompt_tokens for t in granted if t.first_token_seconds is None
        )
        assert window.deferred_sequences == sum(t.sequences for t in held if t.background)
        assert window.sequences <= 6
    game.finish_everything()
    assert (window.sequences, window.decoding, window.prefill_tokens) == (0, 0, 0)
    assert (window.deferred_sequences, len(window.kv), window.kv.ceiling) == (0, 0, 0)


@lives
@given(moves, shares)
def test_every_ticket_ends_once_and_nothing_leaks(moves: list[Move], shares: Shares):
    """Invariants 7 and 8; what was refused never reached the engine."""
    game = play(moves, shares)
    game.finish_everything()
    assert len(game.checked.ended) == len(set(game.checked.ended))
    for ticket in game.tickets:
        assert ticket.state is State.ENDED
        assert ticket.outcome is not None
        assert not ticket.holds
        if ticket.outcome in ("rejected", "expired"):
            assert ticket.granted_seconds is None
            assert ticket.output_tokens == 0
        if isinstance(ticket.error, Refused):
            assert 1 <= ticket.error.retry_after_seconds <= 60
    statistics = game.scheduler.statistics()
    assert (statistics.queued, statistics.running, statistics.active_sequences) == (0, 0, 0)
    assert game.scheduler._positions._listeners == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_ratio_of_weights_counts(seed: int):
    """Invariant 9: by powers of two, so that floats stay the same."""
    life, given_shares = long_life(seed), some_shares(seed)
    scaled = {n: replace(share, weight=share.weight * 8) for n, share in given_shares.items()}
    assert play(life, given_shares).log == play(life, scaled).log


@pytest.mark.parametrize("seed", SEEDS)
def test_names_do_not_count(seed: int):
    """Invariant 9: the same life under other names is the same."""
    life, given_shares = long_life(seed), some_shares(seed)
    names = dict(zip(TENANTS, ("zeta", "b", "alpha", "mid"), strict=True))
    renamed = [(m[0], names[m[1]], *m[2:]) if m[0] == "arrive" else m for m in life]
    other = {names[n]: replace(share, id=names[n]) for n, share in given_shares.items()}
    assert play(life, given_shares).log == play(renamed, other).log


@pytest.mark.parametrize("seed", SEEDS)
def test_a_silent_tenant_changes_nothing(seed: int):
    """Invariant 10."""
    life, given_shares = long_life(seed), some_shares(seed)
    more = given_shares | {"silent": TenantShare(id="silent", weight=100.0)}
    assert play(life, given_shares).log == play(life, more).log


@pytest.mark.parametrize("seed", SEEDS)
def test_forgetting_idle_accounts_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Invariant 15: who is gone for long has no lead, and its lengths are remembered elsewhere."""
    life = [*long_life(seed), *[("engine_step", 30)] * 40, *long_life(seed + 100)]
    rules = Rules(light_tokens=16)
    forgetful = play(life, some_shares(seed), rules=rules)
    own = forgetful.scheduler._lengths._own
    assert len(own) > 1
    monkeypatch.setattr(Band, "_unpark", lambda self: None)
    remembering = play(life, some_shares(seed), rules=rules)
    kept = len(list(remembering.scheduler._ledger.accounts()))
    assert len(list(forgetful.scheduler._ledger.accounts())) <= kept
    assert forgetful.log == remembering.log


def test_idle_accounts_are_forgotten():
    """Invariant 15: memory is that of the active tenants."""
    game = play([], {})
    for number in range(200):
        game.make(("arrive", f"t{number}", "interactive", 300, 10, 1, None))
        game.finish_everything()
    assert len(list(game.scheduler._ledger.accounts())) < 20


@pytest.mark.parametrize("seed", SEEDS)
def test_moving_the_origin_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch):
    life, given_shares = long_life(seed), some_shares(seed)
    log = play(life, given_shares).log
    monkeypatch.setattr(ledger_module, "REBASE_AT", 64.0)
    moved = play(life, given_shares)
    assert moved.log == log
    assert all(band.virtual < 4096 for band in moved.scheduler._ledger.all_bands)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_life_gives_the_same_decisions(seed: int):
    """Invariant 16."""
    life, given_shares = long_life(seed), some_shares(seed)
    assert play(life, given_shares).log == play(life, given_shares).log


@pytest.mark.parametrize("rules", [Rules(bands=BandWeights.strict()), Rules(light_tokens=0)])
@pytest.mark.parametrize("policy", [Fair(), Fixed(), Fixed(active_sequences=1)])
def test_the_rules_hold_under_every_policy(policy: Fair | Fixed, rules: Rules):
    life = [m if m[0] != "arrive" else (*m[:5], 1, *m[6:]) for m in long_life(7)]
    play(life, some_shares(7), policy=policy, rules=rules).finish_everything()
