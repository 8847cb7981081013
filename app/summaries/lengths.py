"""How long a summary may be, in words and in tokens."""

from __future__ import annotations

from app.summaries.request import Brief
from app.summaries.words import count_words, exceeds_words

# Where the client sets no limit: the words that the model is asked for, and those at which it is
# stopped, since small models do not count.
_USUAL_WORDS = {"paragraph": 80, "bullets": 80, "headline": 12}
_MOST_WORDS = {"paragraph": 120, "bullets": 120, "headline": 16}
_ANSWER_WORDS = 200

# Words cost up to about 3 tokens each where a small vocabulary meets a language it was not made
# for. Generous is cheap: the writer ends the call as soon as the words are there.
_TOKENS_PER_WORD = 3
_TOKENS_EVER = 32

# A text of so few words is its own summary.
_SHORT_WORDS = 25


def most_words(brief: Brief) -> int:
    """The most words that the summary or answer may have."""
    return brief.max_words or (_ANSWER_WORDS if brief.question else _MOST_WORDS[brief.style])


def asked_words(brief: Brief, text: str) -> int:
    """The words to ask for: the client's, or the usual number, but no more than half the text's."""
    usual = _USUAL_WORDS[brief.style]
    if brief.max_words or exceeds_words(text, 2 * usual):
        return brief.max_words or usual
    return max(_USUAL_WORDS["headline"], count_words(text) // 2)


def room_of(brief: Brief) -> tuple[int, int]:
    """Tokens for the words that were asked for, and the least that a call is worth making with."""
    wanted = most_words(brief) * _TOKENS_PER_WORD + _TOKENS_EVER
    return wanted, min(wanted, _MOST_WORDS[brief.style] * _TOKENS_PER_WORD + _TOKENS_EVER)


def words_for(room_tokens: int) -> int:
    """The words to ask for where there is room for so many tokens."""
    return max(4, room_tokens * 2 // 5)


def is_its_own_summary(text: str, brief: Brief) -> bool:
    """Whether `text` is as short as the summary, and nothing but that is asked for."""
    if brief.style != "paragraph" or brief.language or brief.focus:
        return False
    return not exceeds_words(text, brief.max_words or _SHORT_WORDS)
