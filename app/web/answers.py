"""The one table from error codes to HTTP statuses and WebSocket close codes, and their bodies."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from app.errors import FairgateError, Internal, Refused
from app.tenants.charge import QuotaSpent

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """How one error code looks from outside.

    `type` is the word that OpenAI's clients show; `close` the WebSocket close code (RFC 6455,
    section 7.4).
    """

    status: int
    close: int
    type: str


ANSWERS = {
    "invalid_api_key": Answer(401, 1008, "authentication_error"),
    "forbidden": Answer(403, 1008, "permission_error"),
    "invalid_request": Answer(400, 1008, "invalid_request_error"),
    "context_length_exceeded": Answer(400, 1008, "invalid_request_error"),
    "not_found": Answer(404, 1008, "not_found_error"),
    "session_not_found": Answer(404, 1008, "not_found_error"),
    "method_not_allowed": Answer(405, 1008, "invalid_request_error"),
    "unsupported_media_type": Answer(415, 1003, "invalid_request_error"),
    "too_large": Answer(413, 1009, "invalid_request_error"),
    "busy": Answer(409, 1008, "invalid_request_error"),
    "invalid_frame": Answer(400, 1008, "invalid_request_error"),
    "too_slow": Answer(408, 1008, "invalid_request_error"),
    "rate_limited": Answer(429, 1013, "rate_limit_error"),
    "too_many_connections": Answer(429, 1013, "rate_limit_error"),
    "queue_full": Answer(429, 1013, "rate_limit_error"),
    "wait_too_long": Answer(429, 1013, "rate_limit_error"),
    "overloaded": Answer(503, 1013, "overloaded_error"),
    "draining": Answer(503, 1001, "overloaded_error"),
    "loading": Answer(503, 1013, "overloaded_error"),
    "engine_dead": Answer(503, 1011, "overloaded_error"),
    "timeout": Answer(504, 1008, "timeout_error"),
    "internal": Answer(500, 1011, "server_error"),
}

# What an error of a foreign handler (the framework's, vLLM's) is called, by its status.
CODE_BY_STATUS = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
}


def answer_of(error: FairgateError) -> Answer:
    """The table's row for `error`."""
    return ANSWERS[error.code]


def code_for_status(status: int) -> str:
    """The code for a status whose error was made elsewhere."""
    return CODE_BY_STATUS.get(status, "invalid_request" if status < 500 else "internal")


def error_body(error: FairgateError) -> dict[str, dict[str, str | None]]:
    """The JSON object of an error, the same on every route."""
    return {
        "error": {
            "message": error.message,
            "type": answer_of(error).type,
            "param": error.param,
            "code": error.code,
        }
    }


def encode(body: object) -> bytes:
    """Compact UTF-8 JSON; half surrogate pairs survive as replacement characters."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def retry_after(error: FairgateError) -> int | None:
    """Whole seconds for `Retry-After`, rounded up, or None where trying again is no use."""
    if isinstance(error, Refused):
        return max(1, math.ceil(error.retry_after_seconds))
    return None


def error_headers(error: FairgateError) -> Headers:
    """The headers that belong to an error beside its body's type and length."""
    headers: Headers = []
    seconds = retry_after(error)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % seconds))
    if isinstance(error, QuotaSpent):
        headers += error.state.headers()
    if error.code == "invalid_api_key":
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def as_fairgate_error(error: BaseException) -> FairgateError:
    """`error` itself, or the `internal` that stands in for what the client must not read."""
    if isinstance(error, FairgateError):
        return error
    return Internal("internal error; the server's log has the details under this request's id")
