from __future__ import annotations

import asyncio
import random
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.summaries.splitter import Span, hard_cut, place_to_cut, split


class Bytes:
    """A tokenizer of one token a byte: the worst that a real one falls back to."""

    def __init__(self) -> None:
        self.characters = 0

    async def __call__(self, text: str) -> int:
        self.characters += len(text)
        return len(text.encode())


class Words(Bytes):
    """A tokenizer of one token a word or sign, and four letters of a long one."""

    async def __call__(self, text: str) -> int:
        self.characters += len(text)
        return len(re.findall(r"\w{1,4}|[^\w\s]", text))


def parts_of(text: str, budget: int, count: Bytes | None = None) -> list[Span]:
    return asyncio.run(split(text, budget, count or Bytes()))


MIXED = st.lists(
    st.sampled_from(
        [
            "word ",
            "\n\n",
            "\n# Head\n",
            ". ",
            "\u4e2d\u6587\u3002",
            "\U0001f469\u200d\U0001f467",
            "e\u0301",
            "x" * 40,
        ]
    ),
    max_size=120,
).map("".join)


@given(MIXED | st.text(max_size=300), st.integers(32, 200))
def test_parts_cover_the_text_without_a_gap_and_within_the_budget(text: str, budget: int) -> None:
    spans = parts_of(text + ".", budget)
    text += "."
    assert [span.start for span in spans] == [0, *[span.end for span in spans[:-1]]]
    assert spans[-1].end == len(text)
    for span in spans:
        assert span.tokens == len(text[span.start : span.end].encode()) <= budget


@given(st.text(st.characters(codec="utf-8"), max_size=60), st.integers(4, 6))
def test_even_the_smallest_budget_holds_one_character(text: str, budget: int) -> None:
    assert all(span.tokens <= budget for span in parts_of(text, budget))


CHARACTERS = {
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "accent": "e\u0301",
    "flag": "\U0001f1e9\U0001f1ea",
    "skin": "\U0001f44d\U0001f3fd",
    "jamo": "\u1112\u1161\u11ab",
    "line end": "\r\n",
    "thai": "\u0e01\u0e38\u0e48",
}


@pytest.mark.parametrize("name", CHARACTERS)
def test_no_cut_is_inside_of_what_people_see_as_one_character(name: str) -> None:
    character = CHARACTERS[name]
    text = character * 400
    for span in parts_of(text, 120)[:-1]:
        assert span.end % len(character) == 0
        assert not unicodedata.category(text[span.end]).startswith("M")


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("a b. c d.\n\ne f. g\nh i j", "a b. c d.\n\n"),
        ("a b. c d.\n\ne\n# Head\ng h i", "a b. c d.\n\ne\n"),
        ("a b. c d e\nf g, h i j k", "a b. c d e\n"),
        ("aa bb, cc dd. Ee ff, gg hh", "aa bb, cc dd."),
        (
            "\u4e00\u4e8c\u3002\u4e09\u56db\u4e94\u3002\u516d\u4e03\u516b\u4e5d",
            "\u4e00\u4e8c\u3002\u4e09\u56db\u4e94\u3002",
        ),
        ("one two, three four five", "one two,"),
        ("one two three four", "one two three "),
        ("\u0e01\u0e02 \u0e04\u0e07 \u0e08\u0e09\u0e0a\u0e0b\u0e0c", "\u0e01\u0e02 \u0e04\u0e07 "),
        ("One.Two.Three", "One.Two."),
    ],
    ids=["paragraph", "heading", "line", "sentence", "chinese", "clause", "word", "thai", "glued"],
)
def test_the_best_place_nearby_is_taken(text: str, head: str) -> None:
    """A heading before a paragraph, that before a line, a sentence, a clause, a word."""
    aim = len(head) + 1
    assert any(text[: place_to_cut(text, -40, aim)] == head for aim in range(aim, aim + 3))


@given(st.text(max_size=80), st.integers(0, 80), st.integers(1, 80))
def test_a_cut_always_moves_on(text: str, start: int, length: int) -> None:
    start = min(start, max(0, len(text) - 1))
    if not text:
        return
    assert start < hard_cut(text, start, start + length) <= len(text)
    assert start < place_to_cut(text, start, start + length) <= len(text)


RNG = random.Random(3)
NOISE = "".join(RNG.choices("ABCDEFabcdef0123456789+/", k=250_000))


@pytest.mark.parametrize(
    "text",
    [
        "a" * 250_000,
        NOISE,
        "\u4e2d" * 80_000,
        '{"a":1,"b":[1,2,3]},' * 12_000,
        "One.Two.Three." * 18_000,
        "A sentence of a few words.\r\n" * 9_000,
        "line\u2028" * 50_000,
        "\n" * 250_000,
        "." * 250_000,
        " " * 250_000,
        ("Plain words here. " * 400 + "\u4e2d\u6587" * 2_000) * 20,
    ],
    ids=[
        "a",
        "noise",
        "han",
        "json",
        "glued",
        "crlf",
        "u2028",
        "newlines",
        "stops",
        "blank",
        "mixed",
    ],
)
def test_a_text_of_any_kind_is_counted_a_few_times_at_most(text: str) -> None:
    """Linear time: no character is looked at more often because the text is long."""
    count = Words()
    spans = parts_of(text, 2_000, count)
    assert all(span.tokens <= 2_000 for span in spans)
    assert count.characters <= 9 * len(text)


def test_parts_are_about_even() -> None:
    """Two halves rather than a whole and a crumb, which would weigh as much in the end."""
    text = "A sentence of seven words is here. " * 900
    count = Words()
    spans = parts_of(text, 7_000, count)
    sizes = [span.tokens for span in spans]
    assert len(sizes) == 2
    assert min(sizes) > 0.7 * max(sizes)
