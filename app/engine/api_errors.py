"""Our errors in the shape of each API, and vLLM's own errors under our codes."""

from __future__ import annotations

import json
from typing import Any

from app.errors import (
    ContextLengthExceeded,
    FairgateError,
    Forbidden,
    Internal,
    InvalidApiKey,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    RateLimited,
    TimedOut,
    TooLarge,
    UnsupportedMediaType,
)
from app.web.answers import answer_of, code_for_status, encode, error_body

KINDS: dict[str, type[FairgateError]] = {
    kind.code: kind
    for kind in (
        ContextLengthExceeded,
        Forbidden,
        Internal,
        InvalidApiKey,
        InvalidRequest,
        MethodNotAllowed,
        NotFound,
        Overloaded,
        RateLimited,
        TimedOut,
        TooLarge,
        UnsupportedMediaType,
    )
}
# How an error that vLLM's routes write into a stream themselves begins.
FOREIGN_PREFIXES = (b'data: {"error"', b"event: error", b"event: response.failed")


def foreign_error(raw: bytes, status: int | None = None) -> tuple[FairgateError, str | None]:
    """What vLLM or the framework wrote as an error, as ours, and the type it gave.

    `raw` is a JSON body, or a server-sent event around one. `status` is the HTTP status; inside a
    stream, where there is none, vLLM's own number in the body stands for it.
    """
    found = _inner(raw)
    status = status or _number(found.get("code"))
    message = found.get("message")
    param = found.get("param")
    code = code_for_status(status)
    if status == 400 and param == "input_tokens":
        code = ContextLengthExceeded.code
    error = KINDS[code](message if isinstance(message, str) and message else _words(status))
    error.param = param if isinstance(param, str) else None
    kind = found.get("type")
    return error, kind if isinstance(kind, str) else None


def _inner(raw: bytes) -> dict[str, Any]:
    text = raw.decode("utf-8", "replace")
    for line in text.splitlines():
        if line.startswith("data:"):
            text = line[5:]
            break
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(body, dict):
        return {}
    inner = body.get("error", body)
    if isinstance(inner, dict):
        return inner
    detail = body.get("detail")
    return {"message": detail if isinstance(detail, str) else None}


def _number(code: object) -> int:
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def _words(status: int) -> str:
    return {
        400: "the body cannot be read: send one JSON object of ordinary depth",
        404: "no such path here; the README lists what there is",
        405: "this path does not take that method",
    }.get(status, "the request failed")


def body_for(path: str, error: FairgateError, kind: str | None = None) -> dict[str, Any]:
    """The JSON body of `error` on `path`; Anthropic's API wraps the same object once more."""
    body: dict[str, Any] = error_body(error)
    if kind is not None:
        body["error"]["type"] = kind
    if path.startswith("/v1/messages"):
        return {"type": "error", **body}
    return body


def event_for(path: str, error: FairgateError) -> bytes:
    """The last server-sent event of a stream on `path` that failed."""
    if path == "/v1/responses":
        fields = error_body(error)["error"]
        return b"event: error\ndata: " + encode({**fields, "type": "error"}) + b"\n\n"
    name = b"event: error\n" if path.startswith("/v1/messages") else b""
    return name + b"data: " + encode(body_for(path, error)) + b"\n\n"


def status_of(error: FairgateError) -> int:
    """The HTTP status of `error`."""
    return answer_of(error).status
