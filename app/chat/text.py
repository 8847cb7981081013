"""Strings as they come from clients, made safe to encode.

Halves of surrogate pairs, which JSON can spell, become U+FFFD: a conversation that holds one could
never be encoded again. NUL, which no keyboard types and some tokenizers end at, is refused.
"""

from __future__ import annotations

from typing import Any

from app.errors import InvalidFrame


def clean(text: str) -> str:
    """`text` with halves of surrogate pairs replaced, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def read_text(value: Any, name: str, *, longest: int | None = None) -> str:
    """The string that the field `name` holds.

    Raises:
        InvalidFrame: another kind, too long, or with a NUL character in it.
    """
    if not isinstance(value, str):
        raise InvalidFrame(f"`{name}` must be a string", param=name)
    if longest is not None and len(value) > longest:
        raise InvalidFrame(f"`{name}` has at most {longest} characters", param=name)
    if "\x00" in value:
        raise InvalidFrame(f"`{name}` holds a NUL character", param=name)
    return clean(value)
