"""A summary while it is being written: what may be shown of it, and when enough is enough.

The model's pieces come in, whole sentences or lines go out. Each is looked at before anyone sees
it, so that what was streamed never has to be taken back: labels and thoughts before the summary,
sentences that repeat earlier ones and those beyond the limit of words are never shown.
"""

from __future__ import annotations

import re
from typing import Literal

from app.summaries.repetition import Said, loop_in
from app.summaries.request import Style
from app.summaries.words import SENTENCE_END, count_words, exceeds_words, first_words

Stopped = Literal["length", "repetition"]

# A line without any stop (Thai has none) goes out in parts of about this many characters.
_LONG_UNIT_CHARACTERS = 400

# Lines without a letter or digit (rules, code fences) are left out, and so are repeated sentences;
# a few of the first or two of the second mean that no more is to be expected.
_MOST_IDLE_UNITS = 8
_REPEATED_WEIGH = 4

_LABEL = re.compile(
    r"(?i)[\W_]*+(?:(?:sure|certainly|okay|of course)\b[^\n]{0,80}:\s*"
    r"|(?:(?:here|below|the following|this)\b[^\n:]{0,60})?"
    r"\b(?:summary|headline|answer|summarized)\b[^\n:.]{0,60}:[\s*]*)"
)
_THINKING = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_OPENING = "<think>"
_BULLET = re.compile(r"[-*\u2022\u2013+]\s+|[0-9]{1,2}[.)]\s+")
_MOST_BULLETS = 7
_TAG = re.compile(r"</?document>")  # ours, which small models copy
_NO_SPACE_AFTER = ("\u3002", "\uff01", "\uff1f")
_ORNAMENTS = ' \t#*_"\u201c\u201d'


class Draft:
    """One text in the making.

    It never grows beyond its limits; where not even one sentence fits into the words, it is cut
    within. A headline ends after the first line that has words, a paragraph is one paragraph, and
    bullets get their marks where the model forgets them. `stopped` says why no more pieces are
    wanted, `truncated` that something of what the model wrote is missing at the end.
    """

    def __init__(
        self,
        *,
        style: Style = "paragraph",
        max_words: int | None = None,
        max_characters: int | None = None,
    ) -> None:
        self.text = ""
        self.stopped: Stopped | None = None
        self.ended = False
        self.truncated = False
        self._max_words = max_words
        self._max_characters = max_characters
        self._style = style
        self._words = 0
        self._pending = ""
        self._gap = ""
        self._said = Said()
        self._idle_units = 0
        self._began = False

    @property
    def enough(self) -> bool:
        """Whether the model need not go on."""
        return self.ended or self.stopped is not None

    def add(self, piece: str) -> str:
        """Take the model's next piece; what may be shown now, often nothing."""
        self._pending += piece
        if not self._began and not self._begin():
            return ""
        shown = self._whole_units()
        if not self.enough and loop_in(self._pending):
            self.stopped = "repetition"
        return shown

    def finish(self, *, complete: bool) -> str:
        """The model has ended, or was cut off where not `complete`; the last that may be shown."""
        if not self._began:
            self._strip_label()
        shown = self._whole_units()
        if self.enough:
            return shown
        if complete:
            return shown + self._take(self._pending)
        if self.text or not self._pending.strip():
            self.stopped, self.truncated = "length", True
            return shown
        shown = self._take(self._pending.rstrip() + "\u2026")
        self.stopped, self.truncated = "length", True
        return shown

    def _whole_units(self) -> str:
        shown = ""
        while not self.enough and (end := self._unit_end()):
            unit, self._pending = self._pending[:end], self._pending[end:]
            shown += self._take(unit)
        return shown

    def _begin(self) -> bool:
        """Drop what comes before the summary, once enough is there to tell."""
        start = self._pending.lstrip()
        if start.startswith(_OPENING):
            if "</think>" not in start:
                return False
            self._pending = start = _THINKING.sub("", start, count=1)
        if len(start) < 100 and "\n" not in start:
            return False
        self._strip_label()
        return True

    def _strip_label(self) -> None:
        self._began = True
        text = self._pending.lstrip()
        if text.startswith(_OPENING):  # no end of the thoughts in sight
            text = _THINKING.sub("", text, count=1) if "</think>" in text else ""
        label = _LABEL.match(text)
        self._pending = text[label.end() :] if label else text

    def _unit_end(self) -> int:
        match = SENTENCE_END.search(self._pending)
        if match:
            return match.end()
        if len(self._pending) > _LONG_UNIT_CHARACTERS:
            return self._pending.rfind(" ") + 1
        return 0

    def _take(self, unit: str) -> str:
        unit = _TAG.sub("", unit)
        content = unit.strip()
        if not content:
            self._gap = self._gap or unit
            return ""
        if not any(map(str.isalnum, content)):
            self._idle_units += 1
        elif self._said.before(content):
            self._idle_units += _REPEATED_WEIGH
        else:
            return self._accept(unit, content)
        if self._idle_units >= _MOST_IDLE_UNITS:
            self.stopped = "repetition"
        return ""

    def _accept(self, unit: str, content: str) -> str:
        if self._max_words is not None and exceeds_words(content, self._max_words - self._words):
            if self.text:
                return self._cut()
            self._cut()
            content = first_words(content, self._max_words)
        return self._show(unit, content)

    def _cut(self) -> str:
        self.stopped, self.truncated = "length", True
        return ""

    def _show(self, unit: str, content: str) -> str:
        words = count_words(content)
        gap = self._gap + unit[: len(unit) - len(unit.lstrip())]
        listed = _BULLET.match(content)
        if self._style == "bullets":
            if self.text.count("\n") + 1 >= _MOST_BULLETS:
                return self._cut()
            gap, content = "\n", "- " + content[listed.end() if listed else 0 :]
        elif "\n" in gap and not listed:
            gap = "" if self.text.endswith(_NO_SPACE_AFTER) else " "
        if self._style == "headline":
            content = content.strip(_ORNAMENTS) or content
        shown = (gap if self.text else "") + content
        if self._max_characters is not None and len(self.text + shown) > self._max_characters:
            return self._cut()
        self._gap = unit[len(unit.rstrip()) :]
        self._words += words
        self.text += shown
        self.ended = self._style == "headline"
        return shown
