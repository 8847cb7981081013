"""From an upload to its text, whatever kind of document it is."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import PurePath

from app.errors import FairgateError, Internal, InvalidRequest, TooLarge, UnsupportedMediaType
from app.summaries.charsets import decode
from app.summaries.limits import SummaryLimits
from app.summaries.readable import readable

_DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_KINDS = {
    "text/plain": "text",
    "text/markdown": "text",
    "text/x-markdown": "text",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/pdf": "pdf",
    _DOCX: "docx",
}
_SUFFIXES = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".markdown": "text",
    ".html": "html",
    ".htm": "html",
    ".pdf": "pdf",
    ".docx": "docx",
}
# Types that say nothing, with which browsers and curl send files they do not know.
_ANY = ("", "application/octet-stream", "binary/octet-stream")

_SIGNATURES = {"pdf": b"%PDF-", "docx": b"PK\x03\x04"}
_LIBRARIES = {"pdf": "pypdf", "docx": "docx", "html": "inscriptis"}

READ_TYPES = ("application/json", "multipart/form-data", *_KINDS)

# All that a process for one document needs to know of its surroundings.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "HOME", "SYSTEMROOT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One document as it came; `media_type` is lower case, both names may be empty."""

    data: bytes
    media_type: str = ""
    charset: str | None = None
    file_name: str = ""


class Reader:
    """Reads uploads; the intricate ones in processes of their own, a few at a time."""

    def __init__(self, limits: SummaryLimits) -> None:
        self._seconds = limits.extract_seconds
        self._places = asyncio.Semaphore(limits.extractors)

    async def text_of(self, upload: Upload) -> str:
        """The readable text of a document.

        Raises:
            UnsupportedMediaType: it is of a kind, or in a charset, that is not read here.
            InvalidRequest: it is damaged, encrypted, empty, or not what it is declared to be.
            TooLarge: it takes too long to read.
        """
        kind = _kind_of(upload)
        if kind == "text":
            text = await asyncio.to_thread(decode, upload.data, upload.charset)
            return readable(text, param="body")
        library, signature = _LIBRARIES[kind], _SIGNATURES.get(kind, b"")
        if find_spec(library) is None:
            raise UnsupportedMediaType(
                f"this server reads no {kind.upper()}: it was installed without the extra "
                "`documents`; send the text itself",
                param="content-type",
            )
        if not upload.data.lstrip(b"\xef\xbb\xbf\r\n\t ").startswith(signature):
            raise InvalidRequest(
                f"this is not a readable {kind.upper()} file: it is damaged, encrypted or of "
                "another type",
                param="body",
            )
        async with self._places:
            return readable(await self._extracted(kind, upload), param="body")

    async def _extracted(self, kind: str, upload: Upload) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.summaries.extract"),
            *(kind, str(max(1, round(self._seconds))), upload.charset or ""),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )
        try:
            async with asyncio.timeout(self._seconds):
                output, _ = await process.communicate(upload.data)
        except TimeoutError:
            raise TooLarge(
                f"the {kind.upper()} file takes too long to read: send its text, or parts of it",
                param="body",
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return _answer(kind, process.returncode, output)


def _answer(kind: str, code: int | None, output: bytes) -> str:
    """What the process said; one that was ended by its limits said nothing."""
    if code is not None and code < 0:
        raise TooLarge(f"the {kind.upper()} file takes too much to read", param="body")
    if code:
        raise Internal("the process that reads documents failed")
    answer = json.loads(output)
    if "problem" in answer:
        raise InvalidRequest(answer["problem"], param="body")
    text: str = answer["text"]
    return text


def _kind_of(upload: Upload) -> str:
    kind = _KINDS.get(upload.media_type)
    suffix = PurePath(upload.file_name).suffix.lower()
    if kind is None and upload.media_type in _ANY:
        kind = _SUFFIXES.get(suffix)
    if kind is None and upload.media_type in _ANY and upload.file_name:
        kind = next((k for k, mark in _SIGNATURES.items() if upload.data.startswith(mark)), None)
    if kind is None:
        raise unsupported(upload.media_type)
    return kind


def unsupported(media_type: str) -> FairgateError:
    """The refusal of a type, with those that are read."""
    sent = f"content-type {media_type!r} is" if media_type else "a body without content-type is"
    return UnsupportedMediaType(
        f"{sent} not read here: send {', '.join(READ_TYPES[:-1])} or {READ_TYPES[-1]}",
        param="content-type",
    )
