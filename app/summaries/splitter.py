"""Cutting a long text into parts of a given number of tokens, where a reader would cut it.

A part is found by guessing its end from the tokens per character of the last one, moving that to
the best place to cut nearby, and counting. So each character is counted a few times at most, and a
megabyte without a single space takes time in proportion, as prose does.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.summaries.words import SENTENCE_END

Count = Callable[[str], Awaitable[int]]

# Places to cut, best first: before a heading or a page, between paragraphs, lines, sentences,
# clauses, words. Each matches up to the cut.
_PLACES = (
    re.compile(r"\n(?=#{1,6}[ \t]|={3,}|(?:Chapter|Section|CHAPTER|SECTION)\b)|\f"),
    re.compile(r"\n[ \t\r]*+\n\s*+"),
    re.compile("[\n\x0b\x85\u2028\u2029]+"),
    SENTENCE_END,
    re.compile("[.!?;:,\u3001\uff0c\uff1b\uff1a\u060c](?=[\\sA-Z\u0600-\uffff])"),
    re.compile("[\\s\u200b\u3000]+"),
)

# How far before the aim a better place is worth a shorter part, and how far beyond it.
_BEFORE, _BEYOND = 0.2, 0.04
# Parts are planned a little smaller than they may be, so that such places are within reach.
_FILL = 0.92
_MOST_GUESSES = 6
_EVEN_PARTS = 4

# More than tokenizers get out of a token on average, in any language.
_CHARACTERS_PER_TOKEN = 12

_SAMPLES = 8
_SAMPLE_CHARACTERS = 8_192

_JOINERS = frozenset("\u200d\ufe0e\ufe0f\u20e3")
_REGIONAL = re.compile("[\U0001f1e6-\U0001f1ff]")
_SKIN_TONES = frozenset(map(chr, range(0x1F3FB, 0x1F400)))
_LONGEST_CHARACTER = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Characters `start` up to `end` of a text, and how many tokens they are."""

    start: int
    end: int
    tokens: int


async def split(text: str, budget_tokens: int, count: Count) -> list[Span]:
    """Parts of `text` that follow one another without a gap, each within the budget.

    The last few are about even, so that no crumb is left to weigh as much as a whole part. The
    budget must hold any one character: 4 tokens are always enough.
    """
    spans: list[Span] = []
    start = 0
    characters_per_token = await density(text[: 4 * budget_tokens], count)
    while start < len(text):
        aim = max(1, int(_FILL * budget_tokens))
        if len(text) - start <= _EVEN_PARTS * budget_tokens * characters_per_token:
            rest_tokens = await count(text[start:])
            if rest_tokens <= budget_tokens:
                spans.append(Span(start=start, end=len(text), tokens=rest_tokens))
                break
            aim = math.ceil(rest_tokens / math.ceil(rest_tokens / aim))
        span = await _next(text, start, (aim, budget_tokens, characters_per_token), count)
        spans.append(span)
        start = span.end
        characters_per_token = (span.end - span.start) / max(1, span.tokens)
    return spans


async def surely_exceeds(text: str, tokens: int, count: Count) -> bool:
    """Whether the beginning of a long `text` alone is more than `tokens`."""
    head = text[: _CHARACTERS_PER_TOKEN * tokens]
    return len(head) < len(text) and await count(head) > tokens


async def density(text: str, count: Count) -> float:
    """Characters per token of `text`, looked at in a few places where it is long."""
    if len(text) > _SAMPLES * _SAMPLE_CHARACTERS:
        step = len(text) // _SAMPLES
        text = "".join(text[at : at + _SAMPLE_CHARACTERS] for at in range(0, len(text), step))
    return len(text) / max(1, await count(text))


async def _next(text: str, start: int, size: tuple[int, int, float], count: Count) -> Span:
    """The part that begins at `start`; `size` is the tokens aimed at, the most, and a guess."""
    aim, most, characters_per_token = size
    length = max(1, round(aim * characters_per_token))
    best: Span | None = None
    for _ in range(_MOST_GUESSES):
        end = place_to_cut(text, start, start + length)
        span = Span(start=start, end=end, tokens=await count(text[start:end]))
        if span.tokens <= most and (best is None or span.end > best.end):
            best = span
        full = span.tokens >= aim * (1 - 2 * _BEFORE) or end == len(text)
        if best is span and full:
            break
        growth = aim / max(1, span.tokens)
        length = max(1, round((end - start) * min(4.0, growth)))
    return best or await _halved(text, start, length, most, count)


async def _halved(text: str, start: int, length: int, most: int, count: Count) -> Span:
    """Where guesses fail, since the text changes its kind within the part."""
    while True:
        end = max(start + 1, hard_cut(text, start, start + length))
        span = Span(start=start, end=end, tokens=await count(text[start:end]))
        if span.tokens <= most or end == start + 1:
            return span
        length = (end - start) // 2


def place_to_cut(text: str, start: int, aim: int) -> int:
    """The best place to cut near `aim`, beyond `start`; the end of the text where that is near."""
    reach = aim - start
    high = aim + int(reach * _BEYOND)
    if high >= len(text):
        return len(text)
    low = max(start + 1, aim - int(reach * _BEFORE))
    for place in _PLACES:
        cut = 0
        for match in place.finditer(text, low, high):
            if not _inside_a_character(text, start, match.end()):
                cut = match.end()
        if cut > low:
            return cut
    return hard_cut(text, start, aim)


def hard_cut(text: str, start: int, aim: int) -> int:
    """`aim`, or a little before it where that is inside of what people see as one character."""
    aim = min(aim, len(text))
    for cut in range(aim, max(start, aim - _LONGEST_CHARACTER), -1):
        if not _inside_a_character(text, start, cut):
            return cut
    return aim


def _inside_a_character(text: str, start: int, at: int) -> bool:
    if not start < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if unicodedata.category(after).startswith("M") or after in _JOINERS or after in _SKIN_TONES:
        return True
    if before == "\u200d" or (before == "\r" and after == "\n"):
        return True
    if _REGIONAL.match(before) and _REGIONAL.match(after):
        first = at  # flags are pairs of these, counted from the first of a row
        while first > max(start, 0) and _REGIONAL.match(text[first - 1]):
            first -= 1
        return (at - first) % 2 == 1
    return "\u1160" <= after <= "\u11ff"  # the vowel or final of a Hangul syllable
