from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.summaries.words import (
    count_words,
    exceeds_words,
    first_sentences,
    first_words,
    sentences,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("The cat sat.", 3),
        ("\u8fd9\u662f\u6d4b\u8bd5\u3002", 4),
        ("\u30c6\u30b9\u30c8 test", 4),
        ("\uc548\ub155 \uc138\uacc4", 2),
        ("\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", 3),
    ],
    ids=["empty", "english", "chinese", "japanese and english", "korean", "thai"],
)
def test_words_are_counted_as_people_of_each_script_would(text: str, words: int) -> None:
    assert count_words(text) == words
    assert exceeds_words(text, words) is False
    assert exceeds_words(text, words - 1) is (words > 0)


@given(st.text(alphabet=st.sampled_from("ab. !?\n1\u3002\u4e00\u0e01\"')"), max_size=200))
def test_sentences_joined_are_the_text(text: str) -> None:
    assert "".join(sentences(text)) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three?", 3),
        ("It costs 3.14 euros, e.g. at Dr. Smith's. Good.", 2),
        ("\u4e00\u4e8c\u3002\u4e09\u56db\uff01", 2),
        ("1. First thing\n2. Second thing", 2),
        ('He said "No." Then he left.', 2),
    ],
    ids=["plain", "stops inside", "chinese", "numbered list", "quoted"],
)
def test_a_sentence_ends_where_a_reader_says(text: str, count: int) -> None:
    assert len(list(sentences(text))) == count


@given(
    st.text(alphabet=st.sampled_from("ab. \n\u3002\u4e00\u0e01"), max_size=200), st.integers(1, 9)
)
def test_first_sentences_never_exceed_the_words(text: str, limit: int) -> None:
    cut = first_sentences(text, limit)
    assert count_words(cut.removesuffix("\u2026")) <= limit
    assert text.strip().startswith(cut.removesuffix("\u2026"))


def test_a_first_sentence_that_is_too_long_is_cut_and_says_so() -> None:
    assert first_sentences("one, two, three four.", 2) == "one, two\u2026"
    assert first_words("one two", 2) == "one two"


@pytest.mark.parametrize("unit", ["a", ".", "\n", " ", ". ", "!\n", "\u3002", "1. "])
def test_a_megabyte_of_anything_is_split_in_linear_time(unit: str) -> None:
    """Four times the text costs about four times the time; a quadratic pattern, 16 times."""

    def seconds(characters: int) -> float:
        text = unit * (characters // len(unit))
        times = []
        for _ in range(3):
            start = time.thread_time()
            for _sentence in sentences(text):
                pass
            count_words(text)
            times.append(time.thread_time() - start)
        return min(times)

    assert seconds(80_000) < 10 * seconds(20_000)
