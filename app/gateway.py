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
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.datastructures import State
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app import logs
from app.admission.statistics import Statistics
from app.chat.limits import ChatLimits
from app.chat.socket import mount_chat
from app.engine.api import Api, Outcome, TextEngine, Work
from app.errors import Draining, EngineDead, FairgateError, Loading
from app.metrics import Metrics
from app.settings import Settings, SettingsError
from app.summaries.limits import SummaryLimits
from app.summaries.routes import mount_summaries
from app.tenancy import Tenancy
from app.web.admin import mount_admin
from app.web.caller import Caller
from app.web.health import Health
from app.web.middleware import Door, DoorRules, Visits
from app.web.origins import Origins
from app.web.routes import mount_web

if TYPE_CHECKING:
    from app.engine.room import EngineRoom, RoomPlan
    from app.engine.stats import EngineStep

log = logs.get_logger(__name__)

# A dead EngineCore is noticed by its requests at once, and by this where there are none.
WATCH_SECONDS = 0.2
DEAD = "the engine has died; this server is about to stop: try again on another one"
EXPOSED_HEADERS = [
    *("x-request-id", "x-fairgate-queue-ms", "retry-after"),
    *("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
    *("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens"),
    *("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens"),
]


class Gateway:
    """Everything that lives as long as the process; `app` is what the server serves.

    `failed` is why it cannot go on, in one line, or None.
    """

    def __init__(
        self, settings: Settings, argv: Sequence[str], *, health: Health, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._argv = list(argv)
        self._health = health
        self._metrics = metrics
        self._tenancy = Tenancy(settings, metrics)
        self._room: EngineRoom | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._visits = Visits()
        self._draining = False
        self.failed: str | None = None
        self._web = FastAPI(
            openapi_url=None, docs_url=None, redoc_url=None, lifespan=self._lifespan
        )
        self._mount()
        self.app = App(self, self._outer(()))

    def make_work(self, caller: Caller, api: Api, *, streamed: bool, batch: bool = False) -> Work:
        """The `Work` of one request of `caller`; its end is counted when the route ends it."""
        limits = caller.tenant.limits
        run_seconds = limits.request_seconds
        return Work(
            tenant=caller.tenant.id,
            api=api,
            request_id=caller.request_id,
            arrived_seconds=caller.arrived_seconds,
            work_class="batch" if batch or caller.work_class == "batch" else "interactive",
            max_wait_seconds=caller.max_wait_seconds,
            deadline_seconds=None if run_seconds is None else caller.arrived_seconds + run_seconds,
            output_tokens_limit=limits.output_tokens,
            models=caller.tenant.models,
            streamed=streamed,
            on_end=self._count,
        )

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new work, let what runs end for `grace_seconds`, then tell the rest why."""
        self._draining = True
        if self._room is not None:
            self._room.dispatcher.drain()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._end_chats(grace_seconds))
            group.create_task(self._end_visits(grace_seconds))

    async def stop(self) -> None:
        """End the engine and every task; safe to call twice, and before the start is over."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        room, self._room = self._room, None
        if room is not None:
            await room.shutdown()

    async def _end_chats(self, grace_seconds: float) -> None:
        if self.failed is None:
            await self._chat.drain(grace_seconds)
        else:
            await self._chat.end(EngineDead(DEAD), grace_seconds)

    async def _end_visits(self, grace_seconds: float) -> None:
        try:
            async with asyncio.timeout(grace_seconds):
                await self._visits.over()
        except TimeoutError:
            if self._room is not None:
                self._room.end_all(Draining("the server stops and this answer took too long"))

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        async with self._chat.running():
            self._tasks.append(asyncio.create_task(self._start()))
            yield
            await self.stop()

    async def _start(self) -> None:
        """From nothing to ready; a failure is one line in `failed`, and the server's to act on."""
        from app.engine.launch import StartFailed

        try:
            await self._start_engine()
        except (StartFailed, SettingsError) as error:
            self.failed = str(error)
        except Exception as error:
            log.exception("gateway.start_failed")
            self.failed = f"{type(error).__name__}: {error}"

    async def _start_engine(self) -> None:
        from app.engine import room

        started_seconds = time.monotonic()
        gc.disable()  # imports make millions of objects and no garbage: collecting costs seconds
        plan = self._plan()
        parsed = await room.parse_flags(plan)
        self._honour(parsed.args)
        self._room = await room.open_room(parsed, plan)
        self._tenancy.share_out(self._room.dispatcher)
        # Full collections over torch's heap would stop the loop for hundreds of milliseconds.
        gc.collect()
        gc.freeze()
        gc.enable()
        self._tasks.append(asyncio.create_task(self._watch(self._room)))
        self._tasks.append(asyncio.create_task(self._tenancy.watch()))
        self._metrics.set_engine_ready(True)
        self._health.ready()
        seconds = round(time.monotonic() - started_seconds, 1)
        log.info("gateway.ready", model=self._room.text.model.name, seconds=seconds)

    def _plan(self) -> RoomPlan:
        from app.engine.held_answer import Patience
        from app.engine.room import RoomPlan

        salt = self._settings.cache_salt
        return RoomPlan(
            argv=self._argv,
            cache_dir=self._settings.cache_dir,
            observer=self._metrics,
            salt_secret=salt.get_secret_value().encode() if salt else secrets.token_bytes(32),
            patience=Patience(commit_seconds=self._settings.stream_commit_seconds),
            work_of=lambda scope: self.make_work(scope["state"]["caller"], "v1", streamed=False),
            metered=self._tenancy.metered,
            on_step=self._stepped,
            on_phase=self._health.loading,
        )

    def _honour(self, args: Any) -> None:
        """vLLM's server flags that are ours to honour: the key and the browsers' origins."""
        logs.adopt("vllm")
        self._tenancy.honour(args.api_key or ())
        if self._settings.log_content:
            args.enable_log_requests = args.enable_log_outputs = True
        self.app.outer = self._outer(tuple(args.allowed_origins))

    async def _watch(self, room: EngineRoom) -> None:
        """Notice the engine's death, and keep the probes' numbers fresh."""
        while not room.dead:
            self._health.in_flight = room.in_flight
            await asyncio.sleep(WATCH_SECONDS)
        self._health.engine_died("its process ended")
        self._metrics.set_engine_ready(False)
        room.dispatcher.kill(EngineDead(DEAD))
        log.error("engine.dead")
        self.failed = "the engine died"

    def _stepped(self, step: EngineStep) -> None:
        self._health.last_output_monotonic = step.at_seconds

    def _count(self, work: Work, outcome: Outcome, code: str | None) -> None:
        self._metrics.request_ended(
            tenant=work.tenant,
            work_class=work.work_class,
            api=work.api,
            outcome=outcome,
            code=code,
            duration_seconds=time.monotonic() - work.arrived_seconds,
        )

    def _refused(self, tenant: str | None, path: str, error: FairgateError, seconds: float) -> None:
        self._metrics.request_ended(
            tenant=tenant or "",
            work_class="interactive",
            api="v1" if is_vllm_path(path) else path.removeprefix("/"),
            outcome="rejected",
            code=error.code,
            duration_seconds=seconds,
        )

    def _text_engine(self) -> TextEngine:
        return self._ready_room().text

    def _statistics(self) -> Statistics:
        return self._ready_room().dispatcher.statistics()

    def _ready_room(self) -> EngineRoom:
        if self._room is None:
            raise Loading("the model is loading", retry_after_seconds=5)
        return self._room

    def _closed(self) -> FairgateError | None:
        """Why nothing new is taken now. After SIGTERM that begins later than readiness ends."""
        if self._draining:
            return Draining("the server is shutting down", retry_after_seconds=5)
        if self._health.state == "engine_dead" or not self._health.loaded:
            return self._health.not_ready()
        return None

    def _mount(self) -> None:
        settings = self._settings
        mount_web(self._web, self._health)
        mount_admin(self._web, self._statistics)
        self._chat = mount_chat(
            self._web,
            engine=self._text_engine,
            keys=self._tenancy.keys,
            make_work=self.make_work,
            limits=ChatLimits(
                max_frame_bytes=settings.max_frame_bytes, resume_seconds=settings.resume_seconds
            ),
        )
        self._metrics.follow_websockets(lambda: self._chat.open_sockets)
        mount_summaries(
            self._web,
            engine=self._text_engine,
            make_work=self.make_work,
            limits=SummaryLimits(body_bytes=settings.max_body_bytes),
        )

    def _outer(self, origins: tuple[str, ...]) -> ASGIApp:
        """The door around everything, and CORS around the door where origins are allowed."""
        allowed = (*self._settings.allowed_origins, *origins)
        door = Door(
            self._inner,
            DoorRules(
                keys=self._tenancy.keys,
                closed=self._closed,
                visits=self._visits,
                on_refused=self._refused,
                origins=Origins(allowed, self._settings.host),
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
        if scope["type"] == "http" and self._room is not None and is_vllm_path(scope["path"]):
            await self._room.openai(scope, receive, send)
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


def print_help() -> None:
    """What `serve --help` says: vLLM's own help, seconds after its import."""
    from app.engine.launch import print_help

    print_help()


def is_vllm_path(path: str) -> bool:
    """Whether vLLM's routes answer this path."""
    return path.startswith("/v1/") or path in ("/tokenize", "/detokenize")
