"""From bytes to characters: by byte order mark, by declaration, as UTF-8, or by a good guess."""

from __future__ import annotations

import codecs
import re

from app.errors import InvalidRequest, UnsupportedMediaType

# Python knows more names, some of which decode in quadratic time (punycode) or are no charset of
# any document (unicode_escape); these are the ones that browsers and office software write.
_CHARSETS = frozenset(
    codecs.lookup(name).name
    for name in (
        *("ascii", "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"),
        *(f"iso8859-{part}" for part in (*range(1, 12), 13, 14, 15, 16)),
        *(f"cp125{digit}" for digit in range(9)),
        *("gb18030", "gbk", "gb2312", "big5", "big5hkscs", "shift_jis", "cp932", "euc_jp"),
        *("iso2022_jp", "euc_kr", "cp949", "koi8-r", "koi8-u", "tis-620", "cp874", "mac-roman"),
    )
)

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is the start of this one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_META = re.compile(
    rb"""(?i)<(?:meta|\?xml)\b[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?([\w.:-]+)"""
)

# A guess from more would take seconds and be no better, one from less is none.
_SAMPLE_BYTES = 32_768
_FEW_BYTES = 64


def decode(data: bytes, charset: str | None, *, markup: bool = False) -> str:
    """The characters of `data`; where it is `markup`, it may declare its charset itself.

    Takes up to a second where it has to guess.

    Raises:
        UnsupportedMediaType: the declared charset is none of any document.
        InvalidRequest: the bytes are not what they are declared to be, or no text at all.
    """
    name = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    if name is None and charset is not None:
        name = _known(charset)
    if name is None and markup and (declared := _META.search(data[:2048])):
        name = _known(declared[1].decode("ascii", "replace"))
    try:
        return data.decode(name or "utf-8")
    except UnicodeDecodeError as error:
        guess = None if name else _guess(data)
        if guess is not None:
            return guess
        raise InvalidRequest(
            f"the document is not {error.encoding}: byte {error.start} cannot be decoded; send it "
            f"as UTF-8, or with its charset in the content-type",
            param="body",
        ) from None


def _known(charset: str) -> str:
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        name = ""
    if name not in _CHARSETS:
        raise UnsupportedMediaType(
            f"charset {charset!r} is not read here: send the text as UTF-8", param="content-type"
        )
    return name


def _guess(data: bytes) -> str | None:
    """By a library of the extra `documents`, if it is there and sure of a charset of documents."""
    if len(data) < _FEW_BYTES:
        return None
    try:
        from charset_normalizer import from_bytes  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    best = from_bytes(data[:_SAMPLE_BYTES]).best()
    if best is None or codecs.lookup(best.encoding).name not in _CHARSETS:
        return None
    try:
        return data.decode(best.encoding)
    except UnicodeDecodeError:
        return None
