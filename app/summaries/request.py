"""What a client asks for, validated: the documents and what their summary should be like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from app.errors import FairgateError, InvalidRequest
from app.summaries.fields import Fields, choice, flag, line, number, refuse_slips
from app.summaries.readable import readable

Style = Literal["paragraph", "bullets", "headline"]
_STYLES = ("paragraph", "bullets", "headline")
_OPTIONS = ("text", "documents", "style", "max_words", "language", "focus", "stream", "model")

MOST_WORDS = 10_000
_LONGEST_QUESTION = 2_000
_LANGUAGE = re.compile(r"[^\W_][\w \-()',.]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What the summary should be like; None leaves it to the model.

    With a `question` no summary is wanted but an answer.
    """

    style: Style = "paragraph"
    max_words: int | None = None
    language: str | None = None
    focus: str | None = None
    question: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One document of a request: its text, or why it cannot be read."""

    id: str | None = None
    text: str = ""
    error: FairgateError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """One valid request; `many` is whether the client sent a list and expects one back."""

    sources: tuple[Source, ...]
    many: bool
    brief: Brief
    stream: bool
    model: str | None


def request_of(
    fields: Fields,
    *,
    max_documents: int,
    uploads: tuple[Source, ...] | None = None,
    asking: bool = False,
) -> SummaryRequest:
    """The request that `fields` describe; `uploads` are the documents where they came as files.

    With `asking` it needs a question.

    Raises:
        InvalidRequest: naming the field at fault. A bad document of a list is not that: it carries
            its own error.
    """
    refuse_slips(fields, (*_OPTIONS, "question") if asking else _OPTIONS)
    question = _question(fields) if asking else None
    sources: tuple[Source, ...]
    if uploads is not None:
        _refuse_both(fields)
        sources, many = uploads, len(uploads) > 1
    elif fields.get("documents") is not None:
        sources, many = _documents(fields, max_documents), True
    else:
        sources, many = (Source(text=_text(fields)),), False
    return SummaryRequest(
        sources=sources,
        many=many,
        brief=_brief(fields, question),
        stream=flag(fields, "stream"),
        model=line(fields, "model", 256),
    )


def _brief(fields: Fields, question: str | None) -> Brief:
    language = line(fields, "language", 64)
    if language is not None and not _LANGUAGE.fullmatch(language):
        raise InvalidRequest(
            "language must be the name or the code of one, such as German or de", param="language"
        )
    return Brief(
        style=cast("Style", choice(fields, "style", _STYLES)),
        max_words=number(fields, "max_words", 1, MOST_WORDS),
        language=language,
        focus=line(fields, "focus", 500),
        question=question,
    )


def _question(fields: Fields) -> str:
    question = line(fields, "question", _LONGEST_QUESTION)
    if question is None:
        raise InvalidRequest('send what you want to know as "question"', param="question")
    return question


def _refuse_both(fields: Fields) -> None:
    for name in ("text", "documents"):
        if fields.get(name) is not None:
            raise InvalidRequest(
                f"the document comes as a file or as the body itself; leave {name} out", param=name
            )


def _text(fields: Fields) -> str:
    if fields.get("text") is None:
        raise InvalidRequest(
            'send the text to read as "text", or several texts as "documents"', param="text"
        )
    return _text_of(fields, "text")


def _documents(fields: Fields, max_documents: int) -> tuple[Source, ...]:
    if fields.get("text") is not None:
        raise InvalidRequest("send text or documents, not both", param="documents")
    items = fields["documents"]
    if not isinstance(items, list) or not 1 <= len(items) <= max_documents:
        raise InvalidRequest(
            f'documents must be a list of 1 to {max_documents} objects such as {{"text": "..."}}',
            param="documents",
        )
    return tuple(_document(item, f"documents[{index}]") for index, item in enumerate(items))


def _document(item: object, where: str) -> Source:
    if not isinstance(item, Mapping):
        error = InvalidRequest(f'{where} must be an object such as {{"text": "..."}}', param=where)
        return Source(error=error)
    name = None
    try:
        name = line(item, "id", 256)
        refuse_slips(item, ("id", "text"))
        return Source(id=name, text=_text_of(item, f"{where}.text"))
    except InvalidRequest as error:
        return Source(id=name, error=error)


def _text_of(fields: Fields, param: str) -> str:
    value = fields.get("text")
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string", param=param)
    return readable(value, param=param)
