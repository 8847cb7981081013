"""The composition root: the only place where the rooms meet. Start, ready, drain, stop.

`create_app()` returns at once; the engine is imported and started by a task beside the server, so
that both ports listen from the first second.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app import logs
from app.admission.clock import LoopClock
from app.admission.dispatcher import Dispatcher
from app.admission.policy import Capacity, Fixed
from app.admission.scheduler import Scheduler
from app.engine.api import Api, Outcome, TextEngine, Work
from app.errors import Draining, EngineDead, FairgateError, Loading
from app.metrics import Metrics
from app.settings import Settings, SettingsError
from app.summaries.limits import SummaryLimits
from app.summaries.routes import mount_summaries
from app.tenants.keys import key_hash
from app.tenants.model import ANONYMOUS, Tenant
from app.web.caller import Anonymous, Caller, Keys, OneTenant
from app.web.health import Health
from app.web.middleware import Door, DoorRules, Visits
from app.web.origins import Origins, is_loopback
from app.web.routes import mount_web

log = logs.get_logger(__name__)

# A dead EngineCore is noticed by its requests at once, and by this where there are none.
WATCH_SECONDS = 0.2
EXPOSED_HEADERS = ["x-request-id", "x-fairgate-queue-ms", "retry-after"]


class Gateway:
    """Everything that lives as long as the process; `app` is what the server serves."""

    def __init__(
        self, settings: Settings, argv: Sequence[str], *, health: Health, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._argv = list(argv)
        self._health = health
        self._metrics = metrics
        self._host = settings.host
        self._keys: Keys = Anonymous(ANONYMOUS)
        self._engine: Any = None
        self._text: TextEngine | None = None
        self._dispatcher: Dispatcher | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._visits = Visits()
        self._draining = False
        self.failed: str | None = None
        self._web = FastAPI(
            openapi_url=None, docs_url=None, redoc_url=None, lifespan=self._lifespan
        )
        self._openai: ASGIApp | None = None
        self.app = App(self, self._outer(()))
        self._mount()

    def make_work(self, caller: Caller, api: Api, *, streamed: bool, batch: bool = False) -> Work:
        """The `Work` of one request of `caller`; its end is counted when the route ends it."""
        limits = caller.tenant.limits
        batch = batch or caller.work_class == "batch"
        return Work(
            tenant=caller.tenant.id,
            api=api,
            request_id=caller.request_id,
            arrived_seconds=caller.arrived_seconds,
            work_class="batch" if batch else "interactive",
            max_wait_seconds=caller.max_wait_seconds,
            deadline_seconds=None
            if limits.request_seconds is None
            else caller.arrived_seconds + limits.request_seconds,
            output_tokens_limit=limits.output_tokens,
            streamed=streamed,
            on_end=self._count,
        )

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new work, let what runs end for `grace_seconds`, then tell the rest why."""
        self._draining = True
        if self._dispatcher is not None:
            self._dispatcher.drain()
        try:
            async with asyncio.timeout(grace_seconds):
                await self._visits.over()
        except TimeoutError:
            error = Draining("the server is shutting down and this answer took too long")
            if self._dispatcher is not None:
                self._dispatcher.kill(error)
                self._engine.end_all(error)

    async def stop(self) -> None:
        """End the engine and every task; safe to call twice, and before the start is over."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await asyncio.to_thread(engine.shutdown)
        self._health.stop()

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        self._tasks.append(asyncio.create_task(self._start()))
        yield
        await self.stop()

    async def _start(self) -> None:
        """From nothing to ready; a failure is one line in `failed`, and the server's to act on."""
        from app.engine.launch import StartFailed

        try:
            await self._start_engine()
        except (StartFailed, SettingsError) as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("gateway.start_failed")
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        self.failed = reason
        self._metrics.set_engine_ready(False)

    async def _start_engine(self) -> None:
        from app.engine import launch

        started = time.monotonic()
        self._health.loading("importing vLLM")
        parsed = await asyncio.to_thread(self._parse)
        self._read_flags(parsed.args)
        self._health.loading("loading the model")
        from app.engine.stats import stat_logger

        self._engine = await asyncio.to_thread(launch.start, parsed, [stat_logger(self._stepped)])
        await self._open(parsed)
        self._health.loading("warming up")
        await self._engine.warm_up()
        # Full collections over torch's heap would stop the loop for hundreds of milliseconds.
        gc.collect()
        gc.freeze()
        self._tasks.append(asyncio.create_task(self._watch()))
        self._metrics.set_engine_ready(True)
        self._health.ready()
        model = self._text.model.name if self._text is not None else parsed.args.model
        log.info("gateway.ready", model=model, seconds=round(time.monotonic() - started, 1))

    def _parse(self) -> Any:
        from app.engine import launch
        from app.engine.embedded_model import EMBEDDED_MODEL_NAME, EmbeddedModelError, prepare

        launch.prepare_environment()
        try:
            return launch.parse(
                self._argv,
                embedded_name=EMBEDDED_MODEL_NAME,
                embedded_folder=lambda: prepare(self._settings.cache_dir),
            )
        except EmbeddedModelError as error:
            raise launch.StartFailed(str(error)) from error

    def _read_flags(self, args: Any) -> None:
        """vLLM's server flags that are ours to honour: the key and the browsers' origins."""
        logs.adopt("vllm")
        if args.api_key:
            self._keys = OneTenant(Tenant(id="default"), {key_hash(key) for key in args.api_key})
        refuse_open_door(self._keys, self._host, allowed=self._settings.allow_anonymous)
        if self._settings.log_content:
            args.enable_log_requests = args.enable_log_outputs = True
        self.app.outer = self._outer(tuple(args.allowed_origins))

    async def _open(self, parsed: Any) -> None:
        """Wire admission, the text engine and vLLM's routes to the engine that just started."""
        from app.engine import openai_routes
        from app.engine.gateway_engine import Seam
        from app.engine.held_answer import Patience
        from app.engine.text import text_engine

        engine = self._engine
        self._dispatcher = Dispatcher(
            Scheduler(capacity_of(engine), policy=Fixed(), observer=self._metrics),
            clock=LoopClock(),
        )
        salt = self._settings.cache_salt
        engine.open(
            Seam(
                dispatcher=self._dispatcher,
                salt_secret=(salt.get_secret_value().encode() if salt else secrets.token_bytes(32)),
                unsupported=unsupported_by(simulated=parsed.simulated),
            )
        )
        vllm_app, state = await openai_routes.build(engine, parsed.args)
        self._text = text_engine(engine, state)
        self._openai = openai_routes.OpenAIRoutes(
            vllm_app,
            lambda scope: self.make_work(scope["state"]["caller"], "v1", streamed=False),
            Patience(commit_seconds=self._settings.stream_commit_seconds),
        )

    async def _watch(self) -> None:
        """Notice the engine's death, and keep the probes' numbers fresh."""
        while not self._engine.errored:
            if self._dispatcher is not None:
                self._health.in_flight = self._dispatcher.statistics().running
            await asyncio.sleep(WATCH_SECONDS)
        self._health.engine_died("its process ended")
        self._metrics.set_engine_ready(False)
        if self._dispatcher is not None:
            self._dispatcher.kill(EngineDead("the engine has died; try again on another server"))
        log.error("engine.dead")
        self.failed = "the engine died"

    def _stepped(self, step: Any) -> None:
        self._health.last_output_monotonic = step.at_seconds
        if self._dispatcher is not None:
            self._dispatcher.engine_stepped()

    def _count(self, work: Work, outcome: Outcome, code: str | None) -> None:
        self._metrics.request_ended(
            tenant=work.tenant,
            work_class=work.work_class,
            api=work.api,
            outcome=outcome,
            code=code,
            duration_seconds=time.monotonic() - work.arrived_seconds,
        )

    def _closed(self) -> FairgateError | None:
        """Why nothing new is taken now. After SIGTERM that begins later than readiness ends."""
        if self._draining:
            return Draining("the server is shutting down", retry_after_seconds=5)
        if self._health.state == "engine_dead" or not self._health.loaded:
            return self._health.not_ready()
        return None

    def _text_engine(self) -> TextEngine:
        if self._text is None:
            raise Loading("the model is loading", retry_after_seconds=5)
        return self._text

    def _mount(self) -> None:
        self._metrics.know_tenants([ANONYMOUS.id])
        mount_web(self._web, self._health)
        mount_summaries(
            self._web,
            engine=self._text_engine,
            make_work=self.make_work,
            limits=SummaryLimits(body_bytes=self._settings.max_body_bytes),
        )

    def _outer(self, origins: tuple[str, ...]) -> ASGIApp:
        """The door around everything, and CORS around the door where origins are allowed."""
        allowed = (*self._settings.allowed_origins, *origins)
        door = Door(
            self._inner,
            DoorRules(
                keys=self._keys,
                closed=self._closed,
                visits=self._visits,
                origins=Origins(allowed, self._host),
                max_body_bytes=self._settings.max_body_bytes,
            ),
        )
        if not allowed:
            return door
        return CORSMiddleware(
            door,
            allow_origins=allowed,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )

    async def _inner(self, scope: Scope, receive: Receive, send: Send) -> None:
        """vLLM's paths to vLLM's routes, all else to ours."""
        if scope["type"] == "http" and self._openai is not None and is_vllm_path(scope["path"]):
            await self._openai(scope, receive, send)
        else:
            await self._web(scope, receive, send)


class App:
    """The ASGI application; what stands around it changes once, when the flags are parsed."""

    def __init__(self, gateway: Gateway, outer: ASGIApp) -> None:
        self.state = State({"gateway": gateway})
        self.outer = outer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request, or the lifespan."""
        await self.outer(scope, receive, send)


def create_app(settings: Settings, argv: Sequence[str], *, health: Health, metrics: Metrics) -> App:
    """The application, not yet started; its lifespan starts the engine.

    `argv` is what stood behind `serve`.
    """
    return Gateway(settings, argv, health=health, metrics=metrics).app


def is_vllm_path(path: str) -> bool:
    """Whether vLLM's routes answer this path."""
    return path.startswith("/v1/") or path in ("/tokenize", "/detokenize")


def refuse_open_door(keys: Keys, host: str, *, allowed: bool) -> None:
    """Without keys, only this machine is served unless the operator says otherwise.

    Raises:
        SettingsError: an address that others can reach, and no key.
    """
    if not keys.anonymous:
        return
    if is_loopback(host):
        log.warning("gateway.anonymous", host=host, meaning="everyone here is tenant default")
    elif allowed:
        log.warning("gateway.anonymous", host=host, meaning="everyone who can connect is served")
    else:
        raise SettingsError(
            [
                f"{host} can be reached by others and there is no key: give --api-key KEY, or say "
                "FAIRGATE_ALLOW_ANONYMOUS=true, or serve on 127.0.0.1"
            ]
        )


def capacity_of(engine: Any) -> Capacity:
    """What the running engine can hold, from its configuration."""
    config = engine.vllm_config
    cache = config.cache_config
    blocks = cache.num_gpu_blocks
    return Capacity(
        sequences=config.scheduler_config.max_num_seqs,
        kv_tokens=blocks * cache.block_size if blocks else None,
        step_tokens=config.scheduler_config.max_num_batched_tokens,
        block_tokens=cache.block_size,
    )


def unsupported_by(*, simulated: bool) -> Any:
    """What names the reason why sampling parameters cannot be served, or None."""
    if not simulated:
        return lambda _params: None
    from app.engine.simulation import refuse_unsupported

    return refuse_unsupported
