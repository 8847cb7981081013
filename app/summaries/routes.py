"""`POST /summarize` on the gateway's app."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from starlette.routing import Route

from app.engine.api import TextEngine
from app.summaries.handler import Handler
from app.summaries.limits import SummaryLimits
from app.summaries.record import MakeWork


def mount_summaries(
    app: FastAPI,
    *,
    engine: Callable[[], TextEngine],
    make_work: MakeWork,
    limits: SummaryLimits | None = None,
) -> None:
    """Add this room's routes to `app`; the door before them puts `caller` into the scope's state.

    `engine` is asked for each request and may raise the reason why there is none. The handler is
    plain ASGI: it reads the body and watches the connection itself.
    """
    handler = Handler(engine, make_work, limits or SummaryLimits())
    app.router.routes.append(Route("/summarize", handler, methods=["POST"]))
