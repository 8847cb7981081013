"""Noticing that a model has begun to repeat itself, as small ones do until their tokens run out.

Two ways: the same few words over and over within one sentence, and whole sentences that say again
what has been said.
"""

from __future__ import annotations

from app.summaries.words import words

_LONGEST_PERIOD_CHARACTERS = 120
_LOOP_CHARACTERS = 60
_LOOP_TIMES = 3

# Four words in a row are rarely shared by two sentences of one summary; a sentence of which three
# quarters of such rows were there before adds nothing.
_ROW_WORDS = 4
_STALE_SHARE = 0.75


def loop_in(tail: str) -> bool:
    """Whether `tail` ends in at least three copies of the same characters, 60 of them or more.

    Copies without a letter or digit (rulers, table borders) are none. Looks at the last 360
    characters or so.
    """
    tail = tail[-_LONGEST_PERIOD_CHARACTERS * _LOOP_TIMES - 1 :]
    last = len(tail) - 1
    for period in range(1, min(_LONGEST_PERIOD_CHARACTERS, len(tail) // _LOOP_TIMES) + 1):
        at = last
        needed = max(_LOOP_CHARACTERS, period * _LOOP_TIMES) - period
        while at >= period and last - at < needed and tail[at] == tail[at - period]:
            at -= 1
        if last - at >= needed and any(map(str.isalnum, tail[last - period + 1 :])):
            return True
    return False


class Said:
    """What a text has said so far, a sentence or a line at a time."""

    def __init__(self) -> None:
        self._rows: set[tuple[str, ...]] = set()
        self._sentences: set[tuple[str, ...]] = set()

    def before(self, unit: str) -> bool:
        """Whether `unit` repeats what was said; if not, it counts as said from now on."""
        key = tuple(w.strip(".,;:!?*_#()[]\"'").lower() for w in words(unit))
        key = tuple(w for w in key if w)
        rows = [key[i : i + _ROW_WORDS] for i in range(len(key) - _ROW_WORDS + 1)]
        known = sum(row in self._rows for row in rows)
        if key in self._sentences or (len(rows) > 2 and known >= _STALE_SHARE * len(rows)):
            return True
        self._rows.update(rows)
        if len(key) > 1:
            self._sentences.add(key)
        return False
