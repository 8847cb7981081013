"""What a session keeps for those who lost their connection."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chat import frames
from app.chat.journal import Journal
from app.errors import InvalidFrame, SessionNotFound

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ENTRIES = st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("ab"), TEXTS)), max_size=80)


def fill(journal: Journal, entries: list[tuple[str, str] | None]) -> list[str]:
    prefixes = {name: frames.delta_prefix(name) for name in "ab"}
    said = []
    for seq, entry in enumerate(entries, 1):
        if entry is None:
            said.append(f'{{"seq":{seq}}}')
            journal.whole(seq, said[-1])
        else:
            turn, text = entry
            said.append(frames.delta(prefixes[turn], seq, text))
            journal.delta(seq, prefixes[turn], text)
    return said


@settings(max_examples=150, deadline=None)
@given(ENTRIES, st.integers(30, 600))
def test_every_suffix_is_replayed_exactly_or_refused(
    entries: list[tuple[str, str] | None], most_bytes: int
) -> None:
    journal = Journal(most_bytes)
    said = fill(journal, entries)
    refused = []
    for after in range(len(said) + 1):
        try:
            assert list(journal.after(after)) == said[after:]
        except SessionNotFound:
            refused.append(after)
    assert refused == list(range(len(refused))), "what is kept is the end, without holes"
    with pytest.raises(InvalidFrame):
        journal.after(len(said) + 1)


def test_it_stays_within_its_bound_and_keeps_the_newest() -> None:
    journal = Journal(10_000)
    fill(journal, [("a", "word ")] * 50_000)
    kept = list(journal.after(49_500))
    assert len(kept) == 500
    (run,) = journal._entries
    assert sys.getsizeof(run._text) + sys.getsizeof(run._ends) < 25_000  # type: ignore[union-attr]


def test_a_token_takes_a_few_bytes() -> None:
    journal = Journal(10**9)
    fill(journal, [("a", " word")] * 10_000)
    (run,) = journal._entries
    assert run.size == 90_000


def test_a_replay_is_not_disturbed_by_what_is_said_meanwhile() -> None:
    journal = Journal(60)
    said = fill(journal, [("a", "x")] * 5)
    replay = journal.after(2)
    assert next(replay) == said[2]
    prefix = frames.delta_prefix("a")
    for seq in range(6, 60):
        journal.delta(seq, prefix, "y")
    assert list(replay) == said[3:]


def test_what_is_forgotten_is_refused_and_the_rest_goes_on() -> None:
    journal = Journal(1000)
    said = fill(journal, [None, ("a", "x"), ("a", "y"), None])
    journal.forget(3)
    for after in range(3):
        with pytest.raises(SessionNotFound):
            journal.after(after)
    assert list(journal.after(3)) == said[3:]
    journal.forget(4)
    journal.whole(5, '{"seq":5}')
    assert [json.loads(frame)["seq"] for frame in journal.after(4)] == [5]
