"""`POST /summarize` and `POST /ask` on the gateway's app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fastapi import FastAPI
from starlette.routing import Route

from app.engine.api import TextEngine
from app.summaries.handler import Handler
from app.summaries.limits import SummaryLimits
from app.summaries.record import MakeWork

APIS: tuple[Literal["summarize", "ask"], ...] = ("summarize", "ask")


def mount_summaries(
    app: FastAPI,
    *,
    engine: Callable[[], TextEngine],
    make_work: MakeWork,
    limits: SummaryLimits | None = None,
) -> None:
    """Add this room's routes to `app`; the door before them puts `caller` into the scope's state.

    `engine` is asked for each request and may raise the reason why there is none. The handlers
    are plain ASGI: they read the body and watch the connection themselves.
    """
    limits = limits or SummaryLimits()
    for api in APIS:
        handler = Handler(api, engine, make_work, limits)
        app.router.routes.append(Route(f"/{api}", handler, methods=["POST"]))
