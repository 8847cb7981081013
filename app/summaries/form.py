"""Reading `multipart/form-data`: options in its fields, documents in its files."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import FormParser, parse_options_header

from app.errors import InvalidRequest
from app.summaries.body import Body, charset_of
from app.summaries.documents import Upload
from app.summaries.fields import typed

_MOST_PARTS = 256
_LONGEST_FIELD_BYTES = 64 * 1024


@dataclass(slots=True, kw_only=True)
class Form:
    """What a form carries."""

    fields: dict[str, object] = field(default_factory=dict)
    files: list[Upload] = field(default_factory=list)


async def form_of(body: Body) -> Form:
    """The form in `body`, read off the event loop.

    Raises:
        InvalidRequest: it is cut off or malformed, or has too many parts.
    """
    return await asyncio.to_thread(_parse, body)


def _parse(body: Body) -> Form:
    form = Form()
    ended: list[bool] = []
    _, options = parse_options_header(body.content_type)
    try:
        parser = FormParser(
            "multipart/form-data",
            lambda part: _field(form, part),
            lambda part: _file(form, part),
            lambda: ended.append(True),
            boundary=options.get(b"boundary"),
            config={"MAX_MEMORY_FILE_SIZE": len(body.data) + 1},
        )
        parser.write(body.data)
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"the form cannot be read: {error}", param="body") from None
    if not ended:
        raise InvalidRequest("the form is cut off: its last boundary is missing", param="body")
    return form


def _field(form: Form, part: Any) -> None:
    name, value = _text(part.field_name), part.value or b""
    if len(value) > _LONGEST_FIELD_BYTES and name != "text":
        raise InvalidRequest(f"{name} is too long for an option", param=name)
    if name in form.fields:
        raise InvalidRequest(f"{name} is given twice in the form", param=name)
    form.fields[name] = typed(name, _text(value))
    _count(form)


def _file(form: Form, part: Any) -> None:
    if _text(part.field_name) not in ("file", "files", "files[]", "file[]"):
        raise InvalidRequest("send documents as parts with the name `file`", param="file")
    stream = part.file_object
    if not isinstance(stream, BytesIO):
        raise InvalidRequest("the form cannot be read: a file in it is too large", param="file")
    content_type = _text(part.content_type or b"")
    form.files.append(
        Upload(
            data=stream.getvalue(),
            media_type=content_type.split(";")[0].strip().lower(),
            charset=charset_of(content_type),
            file_name=_text(part.file_name or b"")[:256],
        )
    )
    _count(form)


def _count(form: Form) -> None:
    if len(form.files) + len(form.fields) > _MOST_PARTS:
        raise InvalidRequest(f"the form has more than {_MOST_PARTS} parts", param="body")


def _text(value: Any) -> str:
    return (value if isinstance(value, bytes) else b"").decode("utf-8", "replace")
