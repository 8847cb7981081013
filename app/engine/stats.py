"""What the engine reports of itself after every step, for those who watch it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """One report of one data-parallel rank; tokens are those of the step itself.

    `kv_usage_ratio` is the used part of the KV cache, 0 to 1.
    """

    rank: int
    at_seconds: float
    running: int
    waiting: int
    kv_usage_ratio: float
    prompt_tokens: int
    generation_tokens: int
    preemptions: int


def stat_logger(on_step: Callable[[EngineStep], None]) -> type[StatLoggerBase]:
    """A stat logger class for vLLM that tells `on_step`, on the event loop, of every step."""

    class Teller(StatLoggerBase):  # vLLM makes one object per rank
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._rank = engine_index

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            if scheduler_stats is None:
                return
            made = iteration_stats
            on_step(
                EngineStep(
                    rank=self._rank,
                    at_seconds=time.monotonic(),
                    running=scheduler_stats.num_running_reqs,
                    waiting=scheduler_stats.num_waiting_reqs,
                    kv_usage_ratio=scheduler_stats.kv_cache_usage,
                    prompt_tokens=0 if made is None else made.num_prompt_tokens,
                    generation_tokens=0 if made is None else made.num_generation_tokens,
                    preemptions=0 if made is None else made.num_preempted_reqs,
                )
            )

        def log_engine_initialized(self) -> None:
            """Nothing to say."""

    return Teller
