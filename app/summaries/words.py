"""Words and sentences, counted and cut in any script, for limits that people set in words."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Han, kana: a character is about a word. Thai, Lao, Khmer, Burmese: no spaces either, and about
# four characters a word.
_WORD = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
    "|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]{1,4}"
    "|[^\\s\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff00-\uff65]+"
)

# A stop, what closes around it, then space and no small letter ("e.g. this" goes on), but not of a
# title or of a number in a list. Scripts without spaces need none. It matches once what follows is
# known. Possessive, and from the start of a run of stops only, so that megabytes of them take
# linear time.
_STOPS = ".!?\u2026\u061f\u06d4\u0964\u0965"
_CLOSING = "\"')\\]\u201d\u2019\u00bb*_"
_NUMBER = r"(?<!^\d)(?<!^\d\d)(?<!\n\d)(?<!\n\d\d)"
_TITLE = r"(?<!\bMr)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bMrs)(?<!\bProf)"
SENTENCE_END = re.compile(
    f"{_NUMBER}{_TITLE}(?<![{_STOPS}])[{_STOPS}]++[{_CLOSING}]*+(?=\\s++[^a-z])"
    "|[\u3002\uff01\uff1f\uff0e]+[\"')\\]\u201d\u2019\u300d\u300f\uff09]*"
    "|\n+"
)


def count_words(text: str) -> int:
    """About how many words a person would count; a Chinese character is one."""
    return sum(1 for _ in _WORD.finditer(text))


def words(text: str) -> list[str]:
    """The words that `count_words` counts."""
    return _WORD.findall(text)


def exceeds_words(text: str, limit: int) -> bool:
    """Whether `text` has more than `limit` words, without counting a long one to its end."""
    return next((True for n, _ in enumerate(_WORD.finditer(text)) if n >= limit), False)


def sentences(text: str) -> Iterator[str]:
    """The sentences and lines of `text`, with the space between them; joined they are `text`."""
    start = 0
    for match in SENTENCE_END.finditer(text):
        if match.end() > start:
            yield text[start : match.end()]
            start = match.end()
    if start < len(text):
        yield text[start:]


def first_sentences(text: str, max_words: int) -> str:
    """As many whole sentences from the start of `text` as fit into `max_words`.

    Where not even one fits, its first words and an ellipsis.
    """
    taken, words = [], 0
    for sentence in sentences(text):
        words += count_words(sentence)
        if words > max_words:
            break
        taken.append(sentence)
    return "".join(taken).strip() or first_words(text.strip(), max_words)


def first_words(text: str, max_words: int) -> str:
    """The first `max_words` words of `text`, with an ellipsis where that leaves something out."""
    for index, match in enumerate(_WORD.finditer(text)):
        if index == max_words:
            return text[: match.start()].rstrip(" \t\r\n,;:-\u3001\uff0c") + "\u2026"
    return text
