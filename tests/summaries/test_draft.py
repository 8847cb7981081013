from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.summaries.draft import Draft
from app.summaries.repetition import loop_in
from app.summaries.words import count_words


def written(text: str, *, complete: bool = True, size: int = 3, **limits: object) -> Draft:
    """A draft that got `text` in pieces until it had enough; what it showed is its text."""
    draft = Draft(**limits)  # type: ignore[arg-type]
    shown = ""
    for start in range(0, len(text), size):
        shown += draft.add(text[start : start + size])
        if draft.enough:
            break
    else:
        shown += draft.finish(complete=complete)
    assert shown == draft.text
    return draft


PROSE = "The hall will close in May. Traders move to a car park. Residents object loudly."


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_plain_text_passes_unchanged(size: int) -> None:
    draft = written(PROSE, size=size)
    assert draft.text == PROSE
    assert draft.stopped is None
    assert not draft.truncated


@given(
    st.text(alphabet=st.sampled_from("ab cd.E!\n\u3002\u4e00-*1 <>:#"), max_size=300),
    st.sampled_from(["paragraph", "bullets", "headline"]),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 100),
    st.booleans(),
    st.integers(1, 40),
)
def test_no_limit_is_ever_passed_and_nothing_shown_is_taken_back(
    text: str,
    style: str,
    max_words: int | None,
    max_characters: int | None,
    complete: bool,
    size: int,
) -> None:
    draft = written(
        text,
        complete=complete,
        size=size,
        style=style,
        max_words=max_words,
        max_characters=max_characters,
    )
    if max_characters is not None:
        assert len(draft.text) <= max_characters
    if max_words is not None and style != "bullets":  # their marks are ours
        assert count_words(draft.text.removesuffix("\u2026")) <= max_words
    assert draft.text == draft.text.strip()


def test_a_repeated_sentence_is_left_out_and_two_of_them_end_the_text() -> None:
    draft = written("The canal was dug in 1811. " * 20)
    assert draft.text == "The canal was dug in 1811."
    assert draft.stopped == "repetition"
    assert not draft.truncated
    once = written("The canal was dug in 1811. The canal was dug in 1811. It carried coal.")
    assert once.text == "The canal was dug in 1811. It carried coal."
    assert once.stopped is None


def test_a_sentence_that_says_nearly_the_same_is_left_out() -> None:
    first = "It covers the rules of the license, the limits of the license and its terms. "
    again = (
        "The page also covers the rules of the license, the limits of the license and its terms."
    )
    assert written(first + again).text == first.strip()


def test_a_loop_within_a_sentence_ends_the_text_before_that_sentence() -> None:
    draft = written(
        "Members rose. The report on the club's quarterly" + " report on the club's" * 40
    )
    assert draft.text == "Members rose."
    assert draft.stopped == "repetition"
    assert written("the report on " * 100).text == ""


@given(st.text(min_size=60, max_size=400), st.integers(1, 100))
def test_a_loop_is_noticed_whatever_its_period(noise: str, period: int) -> None:
    unit = "".join(random.Random(period).choices("abcdefgh ", k=period)) + "x"
    assert loop_in(noise + unit * (60 // len(unit) + 4))


@pytest.mark.parametrize("text", ["-" * 500, "|---" * 100, PROSE, "no no no", "1,000,000,000"])
def test_what_only_looks_regular_is_no_loop(text: str) -> None:
    assert not loop_in(text)


def test_blank_code_fences_do_not_go_on_for_ever() -> None:
    draft = written("```\n\n" * 50)
    assert draft.text == ""
    assert draft.stopped == "repetition"


@pytest.mark.parametrize(
    "label",
    [
        "Summary: ",
        "**Summary:** ",
        "Here is a summary of the document:\n\n",
        "Sure! Here is the summary in one paragraph:\n",
        "<think>\nWhat do they want? A summary.\n</think>\n\n",
        "<think>" + "Long thoughts. " * 30 + "</think>Summary:\n",
    ],
)
def test_what_is_said_before_the_summary_is_left_out(label: str) -> None:
    assert written(label + PROSE).text == PROSE


def test_thoughts_without_an_end_are_no_summary() -> None:
    assert written("<think> one. Two. Three.", complete=False).text == ""


def test_words_beyond_the_limit_are_cut_at_the_end_of_a_sentence() -> None:
    draft = written(PROSE, max_words=13)
    assert draft.text == "The hall will close in May. Traders move to a car park."
    assert (draft.stopped, draft.truncated) == ("length", True)
    assert written(PROSE, max_words=3).text == "The hall will\u2026"


def test_a_text_that_was_cut_off_ends_with_its_last_whole_sentence() -> None:
    draft = written("The hall will close in May. Traders mo", complete=False)
    assert (draft.text, draft.stopped, draft.truncated) == (
        "The hall will close in May.",
        "length",
        True,
    )
    assert written("The hall wi", complete=False).text == "The hall wi\u2026"


def test_nothing_longer_than_the_source_is_shown() -> None:
    draft = written(PROSE, max_characters=30)
    assert draft.text == "The hall will close in May."
    assert draft.truncated
    assert written(PROSE, max_characters=10).text == ""


def test_bullets_get_the_marks_that_the_model_forgot() -> None:
    marked = (
        "- The hall will close in May.\n- Traders move to a car park.\n- Residents object loudly."
    )
    assert written(PROSE, style="bullets").text == marked
    assert written(marked, style="bullets").text == marked
    numbered = "1. The hall closes in May.\n2) Traders move out."
    assert (
        written(numbered, style="bullets").text == "- The hall closes in May.\n- Traders move out."
    )


def test_bullets_are_few_and_paragraphs_are_one() -> None:
    rivers = ["Rhine", "Elbe", "Loire", "Po", "Tagus", "Thames", "Oder", "Ebro", "Spree"]
    lines = "".join(f"The {river} flows.\n\n" for river in rivers)
    draft = written(lines, style="bullets")
    assert draft.text.count("\n- ") == 6
    assert draft.truncated
    paragraph = written(lines).text
    assert paragraph == " ".join(f"The {river} flows." for river in rivers)
    assert (
        written("\u4e00\u4e8c\u3002\n\u4e09\u56db\u3002").text
        == "\u4e00\u4e8c\u3002\u4e09\u56db\u3002"
    )


def test_tags_that_the_model_copied_are_left_out() -> None:
    assert written(f"<document>\n{PROSE}\n</document>").text == PROSE


def test_a_headline_is_one_line_without_ornaments() -> None:
    draft = written('**"Market hall closes"**\n\nIt was built in 1894.', style="headline")
    assert draft.text == "Market hall closes"
    assert draft.ended


def test_a_script_without_stops_still_flows() -> None:
    """Thai ends no sentence with a mark: a long line goes out in parts."""
    draft = Draft()
    rng = random.Random(1)
    words = ("".join(rng.choices("\u0e01\u0e02\u0e04\u0e07\u0e08\u0e09", k=9)) for _ in range(120))
    assert sum(bool(draft.add(word + " ")) for word in words) >= 2
