"""Making sure that a text is one: what cannot be read is refused, what disturbs is blanked out.

Nothing here changes the length of a text, so that offsets into it stay offsets into what the
client sent.
"""

from __future__ import annotations

import re

from app.errors import InvalidRequest

# Control characters but tab, line feed, line tabulation, form feed, carriage return and NEL.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
# Half a surrogate pair cannot be encoded, and so can reach neither a tokenizer nor a log.
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_BYTE_ORDER_MARK = "\ufeff"

_SIGNATURES = {
    "%PDF-": "a PDF file",
    "JVBERi0": "a PDF file in base64",
    "PK\x03\x04": "a ZIP, DOCX or similar file",
    "UEsDBB": "a ZIP, DOCX or similar file in base64",
    "\x89PNG": "a PNG image",
    "\ufffdPNG": "a PNG image",
    "iVBORw0KGgo": "a PNG image in base64",
    "\xff\xd8\xff": "a JPEG image",
    "/9j/4": "a JPEG image in base64",
    "\x1f\x8b": "a gzip file",
    "\xd0\xcf\x11\xe0": "an old Office file",
    "{\\rtf": "an RTF file",
}
_DATA_URL = re.compile(r"data:[\w.+/-]*(?:;[\w=.+-]+)*;base64,", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}", re.ASCII)

# Enough to tell; reading megabytes to find that they are noise would be the noise's victory.
_SAMPLE_CHARACTERS = 65_536


def readable(text: str, *, param: str) -> str:
    """`text` with control characters as spaces and half surrogate pairs as U+FFFD.

    Raises:
        InvalidRequest: there is nothing to read in it, or it is a file that is not text.
    """
    reason = _not_text(text)
    if reason:
        raise InvalidRequest(f"{param} holds {reason}, not text: send the text itself", param=param)
    text = _HALF_PAIR.sub("\ufffd", _CONTROL.sub(" ", text))
    if text.startswith(_BYTE_ORDER_MARK):
        text = " " + text[1:]
    if not any(c.isprintable() and not c.isspace() for c in text.strip()[:_SAMPLE_CHARACTERS]):
        raise InvalidRequest(f"{param} is empty: send the text to read", param=param)
    return text


def _not_text(text: str) -> str | None:
    head = text[:16].lstrip(_BYTE_ORDER_MARK + " \t\r\n")
    for signature, what in _SIGNATURES.items():
        if head.startswith(signature):
            return what
    if _DATA_URL.match(head + text[16:128]):
        return "a data URL in base64"
    sample = text[:_SAMPLE_CHARACTERS]
    noise = len(_CONTROL.findall(sample)) + sample.count("\ufffd") + len(_HALF_PAIR.findall(sample))
    if noise >= 8 and noise > len(sample) / 20:
        return "binary data"
    return "base64" if _looks_like_base64(sample) else None


def _looks_like_base64(sample: str) -> bool:
    """Long lines of nothing but its alphabet, with capitals, small letters and digits mixed."""
    lines = sample.split()
    joined = "".join(lines)
    if len(joined) < 256 or len(joined) < 40 * len(lines) or not _BASE64.fullmatch(joined):
        return False
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(sum(map(kind, joined)) > len(joined) / 32 for kind in kinds)
