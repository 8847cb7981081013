"""Which passages of a text may hold the answer to a question: BM25, by words, in any script.

Written out since no library fits: one is unmaintained, another imports a compiler at start.
"""

from __future__ import annotations

import math
from collections import Counter

from app.summaries.words import words

# Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009), section 3.
_SATURATION = 1.5
_LENGTH_WEIGHT = 0.75

# Words of more letters match by these first ones: a stemmer for every language with suffixes.
_STEM_LETTERS = 6


def ranked(passages: list[str], question: str) -> list[int]:
    """Indexes of `passages`, likeliest first; none that shares no word with the question."""
    counts = [Counter(terms(passage)) for passage in passages]
    lengths = [count.total() for count in counts]
    average = sum(lengths) / max(1, len(lengths)) or 1.0
    holding = Counter(term for count in counts for term in count)
    scores = [0.0] * len(passages)
    for term in set(terms(question)):
        found = holding[term]
        weight = math.log(1 + (len(passages) - found + 0.5) / (found + 0.5))
        for index, count in enumerate(counts):
            if times := count[term]:
                length = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * lengths[index] / average
                scores[index] += weight * times * (_SATURATION + 1) / (times + _SATURATION * length)
    hits = [index for index, score in enumerate(scores) if score > 0]
    return sorted(hits, key=lambda index: -scores[index])


def terms(text: str) -> list[str]:
    """What is compared: stems, and pairs of characters in scripts without spaces."""
    found: list[str] = []
    previous = ""
    for word in words(text.casefold()):
        if len(word) == 1 and word > "\u2e80":
            if previous:
                found.append(previous + word)
            previous = word
            found.append(word)
            continue
        previous = ""
        stem = "".join(filter(str.isalnum, word))[:_STEM_LETTERS]
        if stem:
            found.append(stem)
    return found
