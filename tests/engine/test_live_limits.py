"""The limits that change while the engine runs: what they accept and what they keep safe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.live_limits import set_batch_limits


def core(
    *, running: int = 0, block_size: int = 16, num_spec_tokens: int = 0, **config: Any
) -> SimpleNamespace:
    """An EngineCore of 256 sequences and 2048 tokens, as far as the limits look into one."""
    given = {
        "max_num_active_seqs": None,
        "max_num_scheduled_tokens": None,
        "max_num_batched_tokens": 2048,
        "enable_chunked_prefill": True,
        "disable_chunked_mm_input": False,
    }
    scheduler = SimpleNamespace(
        scheduler_config=SimpleNamespace(**(given | config)),
        max_num_active_reqs=256,
        max_num_running_reqs=256,
        max_num_scheduled_tokens=2048,
        num_spec_tokens=num_spec_tokens,
        block_size=block_size,
        running=[object()] * running,
    )
    return SimpleNamespace(scheduler=scheduler)


def in_force(engine: SimpleNamespace) -> list[int]:
    return [engine.scheduler.max_num_active_reqs, engine.scheduler.max_num_scheduled_tokens]


def limits(engine: Any, sequences: Any, tokens: Any) -> list[int]:
    answer = set_batch_limits(engine, sequences, tokens)
    assert answer == in_force(engine)
    return answer


def test_limits_are_set_and_said() -> None:
    engine = core()
    assert limits(engine, 16, 512) == [16, 512]
    assert limits(engine, 64, 1024) == [64, 1024]


def test_no_limit_means_what_the_engine_started_with() -> None:
    engine = core()
    limits(engine, 16, 512)
    assert limits(engine, None, 512) == [256, 512]
    assert limits(engine, 16, None) == [16, 2048]


def test_no_limit_goes_beyond_what_the_engine_has_room_for() -> None:
    assert limits(core(), 1000, 100_000) == [256, 2048]


def test_no_limit_goes_beyond_the_operators_own_flags() -> None:
    engine = core(max_num_active_seqs=32, max_num_scheduled_tokens=1024)
    assert limits(engine, 100, 2000) == [32, 1024]
    assert limits(engine, None, None) == [32, 1024]


@pytest.mark.parametrize(
    ("changes", "sequences", "least"),
    [
        ({}, 64, 64 + 16),
        ({"running": 100}, 64, 100 + 16),
        ({"block_size": 128}, 64, 64 + 128),
        ({"num_spec_tokens": 3}, 64, 64 * 4 + 16),
    ],
    ids=["each a token", "those still running", "a block of prompt", "drafts too"],
)
def test_a_step_has_tokens_for_every_sequence_and_a_chunk_of_prompt(
    changes: dict[str, Any], sequences: int, least: int
) -> None:
    assert limits(core(**changes), sequences, 1) == [sequences, least]


def test_the_least_tokens_of_a_step_are_never_more_than_the_engine_takes() -> None:
    assert limits(core(max_num_batched_tokens=128), 256, 1) == [256, 128]


@pytest.mark.parametrize(
    "config", [{"enable_chunked_prefill": False}, {"disable_chunked_mm_input": True}]
)
def test_a_prompt_that_must_go_in_one_piece_keeps_its_room(config: dict[str, Any]) -> None:
    assert limits(core(**config), 16, 64) == [16, 2048]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "16", float("nan")])
def test_what_is_not_a_count_is_refused_and_changes_nothing(wrong: Any) -> None:
    engine: Any = core()
    with pytest.raises(ValueError, match="active_sequences"):
        set_batch_limits(engine, wrong, 512)
    with pytest.raises(ValueError, match="step_tokens"):
        set_batch_limits(engine, 16, wrong)
    assert in_force(engine) == [256, 2048]


def test_a_scheduler_without_these_numbers_is_refused_not_written_to() -> None:
    """Else a vLLM that renames them would look as if it obeyed."""
    engine: Any = core()
    del engine.scheduler.max_num_active_reqs
    with pytest.raises(RuntimeError, match="max_num_active_reqs"):
        set_batch_limits(engine, 16, 512)
    assert not hasattr(engine.scheduler, "max_num_active_reqs")
