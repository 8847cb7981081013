"""Made-up answers: deterministic, readable, and of the length that was asked for."""

from __future__ import annotations

import statistics
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.made_up_text import Answer, MadeUpText, words_of

WORDS = tuple(range(1000, 1256))
END = 2
CONTEXT = 4096


class FakeTokenizer:
    """A vocabulary of pieces as byte-level tokenizers spell them; an id is a piece's place."""

    def __init__(self, pieces: list[str], special: tuple[int, ...] = ()) -> None:
        self.pieces = pieces
        self.all_special_ids = list(special)

    def get_vocab(self) -> dict[str, int]:
        return {piece: place for place, piece in enumerate(self.pieces)}

    def decode(self, ids: list[int]) -> str:
        return "".join(self.pieces[i] for i in ids).replace("Ġ", " ").replace("▁", " ")


def request(prompt: list[int], request_id: str = "chat-1", **sampling: Any) -> Any:
    parameters = {
        "max_tokens": 100,
        "min_tokens": 0,
        "seed": None,
        "eos_token_id": END,
        "all_stop_token_ids": {END},
        "allowed_token_ids": None,
    }
    return SimpleNamespace(
        req_id=request_id,
        prompt_token_ids=prompt,
        prompt_len=len(prompt),
        lora_request=None,
        sampling_params=SimpleNamespace(**(parameters | sampling)),
    )


def answer(new: Any, answer_tokens: int | None = None) -> Answer:
    return MadeUpText(WORDS, answer_tokens=answer_tokens).answer(new, context_tokens=CONTEXT)


def tokens(new: Any, count: int = 40, answer_tokens: int | None = None) -> list[int]:
    given = answer(new, answer_tokens)
    return [given.token(index) for index in range(count)]


def test_the_same_request_is_told_the_same() -> None:
    assert tokens(request([5, 6, 7])) == tokens(request([5, 6, 7], request_id="chat-2"))
    assert tokens(request([5, 6, 7], seed=3)) == tokens(request([5, 6, 7], seed=3))


@pytest.mark.parametrize(
    "other",
    [
        request([5, 6, 8]),
        request([5, 6]),
        request([6, 5, 7]),
        request([5, 6, 7], seed=0),
        request([5, 6, 7], request_id="1_chat-1"),
    ],
    ids=["token", "length", "order", "seed", "choice"],
)
def test_another_request_is_told_something_else(other: Any) -> None:
    assert tokens(request([5, 6, 7])) != tokens(other)


def test_an_adapter_speaks_with_a_voice_of_its_own() -> None:
    adapted = request([5, 6, 7])
    adapted.lora_request = SimpleNamespace(lora_int_id=1)
    assert tokens(adapted) != tokens(request([5, 6, 7]))


def test_the_first_choice_of_several_is_what_a_single_one_would_be() -> None:
    assert tokens(request([5, 6, 7], request_id="0_chat-1")) == tokens(request([5, 6, 7]))


def test_with_a_seed_the_choices_differ_by_seed_alone() -> None:
    """vLLM gives choice k the seed s + k, so the same seed means the same text under any id."""
    first = tokens(request([5], request_id="0_a", seed=8))
    assert first == tokens(request([5], request_id="3_b", seed=8))


def test_a_word_comes_back_only_when_all_have_been_said() -> None:
    for prompt in range(10):
        assert sorted(tokens(request([prompt]), len(WORDS))) == list(WORDS)


def test_an_answer_with_a_limit_never_ends_by_itself() -> None:
    assert END not in tokens(request([1, 2], max_tokens=CONTEXT - 3), CONTEXT)


def lengths(answer_tokens: int | None, **sampling: Any) -> list[int]:
    """Tokens before the end token, of many requests; those that never end are left out."""
    found = []
    for prompt in range(2000):
        said = tokens(request([prompt], **sampling), 64, answer_tokens)
        if END in said:
            found.append(said.index(END))
    return found


def test_an_answer_without_a_limit_ends_by_itself() -> None:
    for limit in (None, CONTEXT - 1, CONTEXT):
        new = request([9], max_tokens=limit)
        assert END in tokens(new, CONTEXT)
        assert tokens(new, CONTEXT) == tokens(new, CONTEXT)


def test_a_law_that_says_so_ends_every_answer() -> None:
    ends = lengths(8, max_tokens=100)
    assert len(ends) == 2000
    assert min(ends) == 1
    assert statistics.fmean(ends) == pytest.approx(8, rel=0.05)
    assert set(lengths(1)) == {1}


def test_no_answer_ends_before_its_least_length() -> None:
    assert min(lengths(4, min_tokens=20)) == 20


def test_who_ignores_the_end_token_never_gets_it() -> None:
    """vLLM then leaves the end token out of the sampling parameters."""
    assert lengths(4, eos_token_id=None, all_stop_token_ids=set()) == []


def test_no_word_stops_an_answer() -> None:
    stops = {END, *WORDS[::2]}
    assert stops.isdisjoint(tokens(request([5], all_stop_token_ids=stops), 500))


def test_only_allowed_words_are_said() -> None:
    said = tokens(request([5], allowed_token_ids=[7, 8, END]), 100)
    assert set(said) <= {7, 8}


def test_other_words_for_a_place_start_with_the_one_that_is_said() -> None:
    given = answer(request([5, 6, 7]))
    others = given.others(3, 20)
    assert others[0] == given.token(3)
    assert len(set(others)) == 20
    assert len(set(given.others(3, 5000))) == 5000


def test_words_stand_on_their_own() -> None:
    pieces = ["<s>", "</s>", "Ġ", "Ġthe", "the", "Ġ12", "Ġcafé", "âĢ", "ing", "Ġa"]
    words = [f"Ġword{'abcdefghij'[i // 10]}{'abcdefghij'[i % 10]}" for i in range(100)]
    tokenizer = FakeTokenizer(pieces + words, special=(0, 1))
    said = [tokenizer.decode([token]) for token in words_of(tokenizer, 1000)]
    assert len(said) == 64
    assert all(word.startswith(" ") and word.strip().isalpha() for word in said)
    assert " caf\N{LATIN SMALL LETTER E WITH ACUTE}" not in said


def test_words_lie_within_the_models_vocabulary() -> None:
    tokenizer = FakeTokenizer([f"▁{chr(97 + i % 26)}{chr(97 + i // 26)}x" for i in range(600)])
    assert max(words_of(tokenizer, 300)) < 300


def test_without_words_any_readable_token_will_do() -> None:
    pieces = ["<s>", "a", "b", "\N{REPLACEMENT CHARACTER}", "\n", "c", "d"]
    assert words_of(FakeTokenizer(pieces, special=(0,)), 100) == (1, 2, 5, 6)


def test_without_readable_tokens_any_ordinary_one_will_do() -> None:
    assert words_of(FakeTokenizer(["<s>", "\n", "\t"], special=(0,)), 100) == (1, 2)


def test_without_a_tokenizer_any_token_will_do() -> None:
    assert words_of(None, 16) == tuple(range(16))
