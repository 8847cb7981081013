"""How much one client may send."""

from __future__ import annotations

import pytest

from app.chat.limits import ChatLimits
from app.chat.models import model_for
from app.chat.patience import Patience
from app.engine.api import ModelInfo
from app.errors import NotFound, RateLimited
from app.tenants.model import Tenant


def count(patience: Patience, frames: int, now: float) -> int:
    passed = 0
    for _ in range(frames):
        try:
            patience.frame(now)
        except RateLimited:
            continue
        passed += 1
    return passed


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    patience = Patience(bad_frames=3, frames_per_second=10, now=0.0)
    assert count(patience, 100, 0.0) == 40
    assert count(patience, 100, 1.0) == 10
    assert count(patience, 100, 1000.0) == 40


def test_a_long_frame_counts_as_several() -> None:
    patience = Patience(bad_frames=3, frames_per_second=10, now=0.0)
    patience.frame(0.0, 39 * 16 * 1024)
    with pytest.raises(RateLimited):
        patience.frame(0.0)


def test_so_many_bad_frames_in_a_row_and_no_more() -> None:
    patience = Patience(bad_frames=3, frames_per_second=10, now=0.0)
    assert [patience.bad(), patience.bad()] == [False, False]
    patience.good()
    assert [patience.bad(), patience.bad(), patience.bad()] == [False, False, True]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_frame_bytes": 0},
        {"hello_seconds": 0},
        {"stall_seconds": float("nan")},
        {"resume_seconds": -1},
        {"connections": 0},
    ],
    ids=str,
)
def test_limits_that_no_socket_could_live_with_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must|too small"):
        ChatLimits(**wrong)  # type: ignore[arg-type]


SERVED = ModelInfo(name="llama", context_tokens=10, adapters=("poet", "clerk"))


@pytest.mark.parametrize(
    ("models", "wanted", "got"),
    [
        (None, None, "llama"),
        (None, "poet", "poet"),
        ({"base"}, None, "llama"),
        ({"llama"}, "llama", "llama"),
        ({"clerk"}, None, "clerk"),
        ({"clerk", "poet"}, "clerk", "clerk"),
    ],
)
def test_which_model_answers(models: set[str] | None, wanted: str | None, got: str) -> None:
    tenant = Tenant(id="acme", models=None if models is None else frozenset(models))
    assert model_for(tenant, SERVED, wanted) == got


@pytest.mark.parametrize(
    ("models", "wanted"),
    [(None, "gpt"), ({"poet"}, "llama"), ({"elsewhere"}, None), (set(), "poet")],
)
def test_which_model_does_not(models: set[str] | None, wanted: str | None) -> None:
    tenant = Tenant(id="acme", models=None if models is None else frozenset(models))
    with pytest.raises(NotFound):
        model_for(tenant, SERVED, wanted)
