"""The running engine with everything that hangs on it: admission, text, and vLLM's routes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Scope

from app.admission.clock import LoopClock
from app.admission.dispatcher import Dispatcher
from app.admission.events import Observer
from app.admission.policy import Capacity, Fair
from app.admission.scheduler import Scheduler
from app.engine import launch
from app.engine.api import TextEngine, Work
from app.engine.embedded_model import EMBEDDED_MODEL_NAME, EmbeddedModelError, prepare
from app.engine.held_answer import Patience
from app.engine.metering import Metered
from app.errors import FairgateError

if TYPE_CHECKING:
    from app.engine.stats import EngineStep


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomPlan:
    """What the house gives the engine room.

    `argv` stood behind `serve`. `salt_secret` keys each tenant's part of the prefix cache.
    `work_of` makes the `Work` of a request on vLLM's routes; for `metered` see `Seam`. `on_step`
    hears of every engine step, `on_phase` of what the start is busy with; both on the event loop.
    """

    argv: list[str]
    cache_dir: Path | None
    observer: Observer
    salt_secret: bytes
    patience: Patience
    work_of: Callable[[Scope], Work]
    metered: Metered
    on_step: Callable[[EngineStep], None]
    on_phase: Callable[[str], None]


class EngineRoom:
    """A started engine; `openai` is the ASGI app of vLLM's routes."""

    def __init__(
        self, engine: Any, dispatcher: Dispatcher, text: TextEngine, openai: ASGIApp
    ) -> None:
        self._engine = engine
        self.dispatcher = dispatcher
        self.text = text
        self.openai = openai

    @property
    def dead(self) -> bool:
        """Whether the engine's process has died."""
        dead: bool = self._engine.errored
        return dead

    @property
    def in_flight(self) -> int:
        """Requests inside the engine."""
        count: int = self._engine.in_flight
        return count

    def end_all(self, error: FairgateError) -> None:
        """Give everyone who waits or runs `error`, and whoever comes after."""
        self.dispatcher.kill(error)
        self._engine.end_all(error)

    async def shutdown(self) -> None:
        """End the engine's processes; seconds."""
        await self._engine.close()


async def parse_flags(plan: RoomPlan) -> launch.Launch:
    """The command line through vLLM's parser, in a thread: it imports vLLM.

    Raises:
        StartFailed: with the one line that says why.
    """
    plan.on_phase("importing vLLM")

    def parse() -> launch.Launch:
        launch.prepare_environment()
        try:
            return launch.parse(
                plan.argv,
                embedded_name=EMBEDDED_MODEL_NAME,
                embedded_folder=lambda: prepare(plan.cache_dir),
            )
        except EmbeddedModelError as error:
            raise launch.StartFailed(str(error)) from error

    return await asyncio.to_thread(parse)


async def open_room(parsed: launch.Launch, plan: RoomPlan) -> EngineRoom:
    """Start the engine, and return when it has made a real token.

    Raises:
        StartFailed: with the one line that says why.
    """
    from app.engine import openai_routes
    from app.engine.gateway_engine import Seam
    from app.engine.stats import stat_logger
    from app.engine.text import text_engine

    plan.on_phase("loading the model")
    dispatcher: Dispatcher | None = None

    def stepped(step: EngineStep) -> None:
        plan.on_step(step)
        if dispatcher is not None:
            dispatcher.engine_stepped()

    engine = await asyncio.to_thread(launch.start, parsed, [stat_logger(stepped)])
    try:
        scheduler = Scheduler(
            capacity_of(engine), policy=Fair(), observer=plan.observer, jitter=random.random
        )
        dispatcher = Dispatcher(scheduler, clock=LoopClock())
        vllm_app, state = await openai_routes.build(engine, parsed.args)
        text = text_engine(engine, state)
        engine.open(
            Seam(
                dispatcher=dispatcher,
                model=text.model,
                metered=plan.metered,
                salt_secret=plan.salt_secret,
                unsupported=unsupported_by(simulated=parsed.simulated),
            )
        )
        openai = openai_routes.OpenAIRoutes(vllm_app, plan.work_of, plan.patience)
        plan.on_phase("warming up")
        await engine.warm_up()
    except BaseException:
        await engine.close()
        raise
    return EngineRoom(engine, dispatcher, text, openai)


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


def unsupported_by(*, simulated: bool) -> Callable[[Any], str | None]:
    """What names the reason why sampling parameters cannot be served, or None."""
    if not simulated:
        return lambda _params: None
    from app.engine.simulation import refuse_unsupported

    return refuse_unsupported
