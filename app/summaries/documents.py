"""From the bytes of an upload to its text."""

from __future__ import annotations

import codecs

from app.errors import InvalidRequest, UnsupportedMediaType
from app.summaries.body import Body
from app.summaries.readable import readable

PLAIN_TYPES = ("text/plain", "text/markdown")
READ_TYPES = ("application/json", *PLAIN_TYPES)

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


def text_of(body: Body) -> str:
    """The readable text of a document that was sent as a body of its own.

    Raises:
        UnsupportedMediaType: its type or its charset is not read here.
        InvalidRequest: its bytes are not text.
    """
    if body.media_type not in PLAIN_TYPES:
        raise unsupported(body.media_type)
    return readable(decode(body.data, body.charset), param="body")


def unsupported(media_type: str) -> UnsupportedMediaType:
    """The refusal of a type, with those that are read."""
    sent = f"content-type {media_type!r} is" if media_type else "a body without content-type is"
    return UnsupportedMediaType(
        f"{sent} not read here: send {', '.join(READ_TYPES[:-1])} or {READ_TYPES[-1]}",
        param="content-type",
    )


def decode(data: bytes, charset: str | None) -> str:
    """The characters of `data`, by its byte order mark, its declared charset, or as UTF-8."""
    name = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    if name is None and charset is not None:
        name = _known(charset)
    try:
        return data.decode(name or "utf-8")
    except UnicodeDecodeError as error:
        hint = "" if charset else ", or name its charset in the content-type"
        raise InvalidRequest(
            f"the body is not {error.encoding}: byte {error.start} cannot be decoded; "
            f"send the text as UTF-8{hint}",
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
