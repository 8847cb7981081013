"""Words of the tenants file as values of one type each, or `Wrong` with what to write instead.

Types are decided by the field, not by YAML: `id: no` is text to nobody but a person, so that a
plain word that YAML takes for something else has to be quoted where text is wanted.
"""

from __future__ import annotations

import math
import re

from app.tenants.document import Fields, Items, Node, Word, is_empty

WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
# YAML's infinity and NaN are here to be refused as what they are.
REAL = re.compile(
    r"[-+]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]+)?|[-+]?\.(inf|nan)", re.IGNORECASE
)
FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

LARGEST = 10**12
"""Of any number; far beyond every use, and well within what Redis and floats count exactly."""

SHOWN_CHARACTERS = 24
"""Of a wrong word; a key that strayed into another field is longer and must not reach the log."""


class Wrong(ValueError):
    """A value that its field cannot take; `line` is where it stands."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


def text(node: Node) -> str:
    """A word that is text without doubt."""
    if not isinstance(node, Word) or is_empty(node):
        raise Wrong(node.line, f"must be text, not {described(node)}")
    if not node.quoted and (REAL.fullmatch(node.text) or node.text.lower() in FLAGS):
        raise Wrong(node.line, f'is no text unless it is quoted: write "{short(node.text)}"')
    return node.text


def whole(node: Node, least: int) -> int:
    """A whole number of at least `least`."""
    digits = _plain(node)
    if digits is None or not WHOLE.fullmatch(digits):
        raise Wrong(node.line, f"must be a whole number, not {described(node)}")
    digits = digits.replace("_", "")
    if len(digits) > len(str(LARGEST)) + 1 or int(digits) > LARGEST:
        raise Wrong(node.line, f"must be at most {LARGEST}")
    if int(digits) < least:
        raise Wrong(node.line, f"must be at least {least}")
    return int(digits)


def number(node: Node, *, above_zero: bool = False) -> float:
    """A number from 0, or above it, to `LARGEST`."""
    digits = _plain(node)
    if digits is None or not REAL.fullmatch(digits):
        raise Wrong(node.line, f"must be a number, not {described(node)}")
    value = float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(value):
        raise Wrong(node.line, f"must be a number, not {described(node)}")
    if value < 0 or (above_zero and value == 0):
        raise Wrong(node.line, "must be more than 0" if above_zero else "must not be negative")
    if value > LARGEST:
        raise Wrong(node.line, f"must be at most {LARGEST}")
    return value


def flag(node: Node) -> bool:
    """True or false."""
    word = _plain(node)
    if word is None or word.lower() not in FLAGS:
        raise Wrong(node.line, f"must be true or false, not {described(node)}")
    return FLAGS[word.lower()]


def items(node: Node) -> tuple[Node, ...]:
    """What a list holds."""
    if not isinstance(node, Items):
        raise Wrong(node.line, f"must be a list, not {described(node)}")
    return node.items


def fields(node: Node) -> Fields:
    """A mapping."""
    if not isinstance(node, Fields):
        raise Wrong(node.line, f"must be fields (name: value), not {described(node)}")
    return node


def _plain(node: Node) -> str | None:
    return node.text if isinstance(node, Word) and not node.quoted else None


def described(node: Node) -> str:
    """What was written instead, short enough for one line."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Fields):
        return "fields"
    if is_empty(node):
        return "nothing"
    return f"the text {short(node.text)!r}" if node.quoted else repr(short(node.text))


def short(text: str) -> str:
    """`text`, or the little of it that is safe to show."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS // 3] + "..."
