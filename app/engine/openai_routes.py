"""vLLM's own HTTP routes on our engine: mounted one by one, answered by our rules.

vLLM's routes send the status line before they ask the engine, number their errors, and end a failed
stream as if it were complete. `OpenAIRoutes` stands around them: it says whose work a request is,
holds a streamed answer's status line until the first output (`held_answer.py`), and gives every
error the house's body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Never

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from app.engine.api import Work, current_work
from app.engine.held_answer import HeldAnswer, Patience
from app.errors import UnsupportedMediaType

# Every route of vLLM that is offered: path and method. The Responses store (GET and cancel) is not:
# its ids are one for all callers. All others of vLLM's routes are left out on purpose.
OFFERED = frozenset(
    {
        ("/v1/models", "GET"),
        ("/v1/chat/completions", "POST"),
        ("/v1/completions", "POST"),
        ("/v1/responses", "POST"),
        ("/v1/messages", "POST"),
        ("/v1/messages/count_tokens", "POST"),
        ("/v1/embeddings", "POST"),
        ("/tokenize", "POST"),
        ("/detokenize", "POST"),
    }
)
# Those that reach the engine, each request one piece of work.
WORKING = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"}
)
BEAM_SEARCH = "beam search is not offered here: it would take a turn per beam and token"


class OpenAIRoutes:
    """An ASGI app: vLLM's routes with our admission, errors and endings.

    `work_of(scope)` makes the `Work` of a request that reaches the engine.
    """

    def __init__(self, app: ASGIApp, work_of: Callable[[Scope], Work], patience: Patience) -> None:
        self._app = app
        self._work_of = work_of
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        work: Work | None = None
        if scope["method"] == "POST" and (scope["path"], "POST") in OFFERED:
            refuse_other_types(scope)
        if scope["method"] == "POST" and scope["path"] in WORKING:
            work = self._work_of(scope)
            current_work.set(work)
        await HeldAnswer(scope["path"], work, send, self._patience).serve(self._app, scope, receive)


def refuse_other_types(scope: Scope) -> None:
    """vLLM answers 400 to a body that does not say it is JSON.

    Raises:
        UnsupportedMediaType: another content type, or none.
    """
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    if kind.split(b";")[0].strip().lower() != b"application/json":
        raise UnsupportedMediaType("send JSON, with `Content-Type: application/json`")


async def build(engine: Any, args: Any) -> tuple[FastAPI, Any]:
    """vLLM's routes for `engine` on an app of their own, and vLLM's state behind them.

    Only `OFFERED` routes are on it, and of those only the ones that the model can serve.
    """
    from vllm.entrypoints.generate.api_router import register_generate_api_routers
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.openai.models import api_router as models_router
    from vllm.entrypoints.pooling.factories import register_pooling_api_routers
    from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
    from vllm.entrypoints.serve.tokenize import api_router as tokenize_router
    from vllm.tasks import POOLING_TASKS

    tasks = await engine.get_supported_tasks()
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.args = args
    models_router.attach_router(app)
    tokenize_router.attach_router(app)
    if "generate" in tasks:
        register_generate_api_routers(app)
    if any(task in POOLING_TASKS for task in tasks):
        register_pooling_api_routers(app, tasks, engine.model_config)
    app.router.routes = list(offered(app.router.routes))
    init_exception_handler(app)
    await init_app_state(engine, app.state, args, tasks)
    for name in ("openai_serving_chat", "openai_serving_completion", "openai_serving_responses"):
        if (serving := getattr(app.state, name, None)) is not None:
            serving.beam_search = refuse_beam_search
    return app, app.state


def offered(routes: Iterable[Any]) -> Iterable[Any]:
    """Those of `routes` that are in `OFFERED`."""
    for route in routes:
        if any((route.path, method) in OFFERED for method in getattr(route, "methods", ())):
            yield route


def refuse_beam_search(*_args: Any, **_kwargs: Any) -> Never:
    """Stand-in for vLLM's beam search.

    Raises:
        VLLMValidationError: always; the caller gets a 400.
    """
    from vllm.exceptions import VLLMValidationError

    raise VLLMValidationError(BEAM_SEARCH, parameter="use_beam_search")
