"""`POST /summarize` on the gateway's app."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response

from app.engine.api import TextEngine
from app.summaries.documents import PLAIN_TYPES
from app.summaries.handler import Handler
from app.summaries.hang_up import Receive, Send
from app.summaries.limits import SummaryLimits
from app.summaries.record import MakeWork
from app.summaries.request import MOST_WORDS

_OPTIONS: dict[str, dict[str, Any]] = {
    "style": {"type": "string", "enum": ["paragraph", "bullets", "headline"]},
    "max_words": {"type": "integer", "minimum": 1, "maximum": MOST_WORDS},
    "language": {"type": "string", "maxLength": 64},
    "focus": {"type": "string", "maxLength": 500},
    "stream": {"type": "boolean"},
    "model": {"type": "string"},
}
_DOCUMENT = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "text": {"type": "string"}},
    "required": ["text"],
}
_JSON = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "documents": {"type": "array", "items": _DOCUMENT},
        **_OPTIONS,
    },
}
_DESCRIPTION = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _JSON},
            **{media_type: {"schema": {"type": "string"}} for media_type in PLAIN_TYPES},
        },
    },
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in _OPTIONS.items()
    ],
}


def mount_summaries(
    app: FastAPI,
    *,
    engine: Callable[[], TextEngine],
    make_work: MakeWork,
    limits: SummaryLimits | None = None,
) -> None:
    """Add this room's routes to `app`; the door before them puts `caller` into the scope's state.

    `engine` is asked for each request and may raise the reason why there is none.
    """
    handler = Handler(engine, make_work, limits or SummaryLimits())

    async def summarize() -> Response:
        """Summarise one text or several; streamed as server-sent events if asked to."""
        return _Handled(handler)

    app.add_api_route(
        "/summarize",
        summarize,
        methods=["POST"],
        response_class=Response,
        openapi_extra=_DESCRIPTION,
    )


class _Handled(Response):
    """Hands the connection to the handler: it reads and answers as bytes come and go."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer."""
        await self._handler(scope, receive, send)
