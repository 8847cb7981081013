from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.summaries.retrieval import ranked, terms

PASSAGES = [
    "The market hall was built in 1894 by the bridge.",
    "Engineers found rust in the iron roof of the hall in eleven places.",
    "Forty traders will move to a car park behind the station.",
    "The council will decide in the autumn whether to sell the hall.",
]


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("When was it built?", 0),
        ("What did the engineer find on the ROOF?", 1),
        ("Where do traders go?", 2),
        ("Who decides about a sale in autumn?", 3),
    ],
)
def test_the_passage_that_holds_the_answer_comes_first(question: str, best: int) -> None:
    assert ranked(PASSAGES, question)[0] == best


def test_a_rare_word_counts_more_than_frequent_ones() -> None:
    passages = ["the hall and the hall and the bridge"] * 9 + ["zinc roofs"]
    assert ranked(passages, "the hall and the zinc")[0] == 9


def test_scripts_without_spaces_are_compared_by_their_characters() -> None:
    passages = ["市議会は市場を閉鎖する。", "技術者は屋根の錆を見つけた。", "住民は署名を集めた。"]
    assert ranked(passages, "屋根はどうなっていますか")[0] == 1
    assert "屋根" in terms("屋根")


def test_passages_that_share_nothing_are_left_out() -> None:
    assert ranked(PASSAGES, "xylophone?") == []
    assert ranked([], "anything") == []


@given(st.lists(st.text(max_size=30), max_size=8), st.text(max_size=30))
def test_any_text_can_be_ranked(passages: list[str], question: str) -> None:
    order = ranked(passages, question)
    assert len(set(order)) == len(order)
    assert set(order) <= set(range(len(passages)))
