from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ContextLengthExceeded
from app.summaries.shape import Overheads, shape_of


@given(
    st.integers(10, 200_000),
    st.integers(1, 5_000),
    st.integers(1, 40_000),
    st.integers(1, 10**7),
    st.integers(1, 5_000),
)
def test_whatever_the_sizes_every_call_fits_and_every_level_shrinks(
    context: int, overhead: int, wanted: int, text: int, parts: int
) -> None:
    overheads = Overheads(part=overhead, merge=overhead + 12, final=overhead + 9)
    try:
        shape = shape_of(context, overheads, wanted, text)
    except ContextLengthExceeded as error:
        assert f"{context:,}" in str(error)  # noqa: PT017
        assert context < 12 * overhead + 200 or wanted < 8
        return
    assert overheads.part + shape.part_tokens + shape.part_room <= context
    assert overheads.merge + shape.merge_tokens + shape.part_room <= context
    assert overheads.final + shape.final_tokens + shape.final_room <= context
    assert shape.final_room <= wanted
    levels = [parts, *shape.merges(parts)]
    assert all(after <= (before + 1) // 2 for before, after in pairwise(levels))
    assert levels[-1] * shape.summary_tokens <= shape.final_tokens


def test_a_very_long_text_gets_larger_parts_where_the_context_allows() -> None:
    overheads = Overheads(part=60, merge=70, final=70)
    short = shape_of(32_768, overheads, 320, 40_000)
    long = shape_of(32_768, overheads, 320, 3_200_000)
    assert short.part_tokens == 3072
    assert long.part_tokens > 30_000


def test_a_context_without_room_for_two_summaries_is_refused() -> None:
    with pytest.raises(ContextLengthExceeded, match="too small"):
        shape_of(100, Overheads(part=80, merge=80, final=80), 320, 1_000)


def test_the_tokens_of_all_calls_are_known_before() -> None:
    """Three parts and one last call: their texts, instructions and rooms, nothing else."""
    shape = shape_of(2_000, Overheads(part=50, merge=60, final=55), 100, 5_000)
    assert shape.merges(3) == []
    parts = 3 * 1_000 + 3 * (50 + shape.part_room)
    assert shape.tokens([1_000] * 3) == parts + 3 * shape.summary_tokens + 55 + 100
