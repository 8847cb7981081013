"""A device without a device: vLLM's engine core as it is, a step-time law instead of a model.

An executor for vLLM's `--distributed-executor-backend`. Scheduler, KV blocks, prefix cache,
preemption, offload and aborts are vLLM's own; only the forward pass is replaced. Each step takes
the time its law gives (`step_time.py`), and every sequence that is due gets one made-up token
(`made_up_text.py`). No weights are loaded and no model is built, with or without a GPU:

    --distributed-executor-backend app.engine.simulated_device.SimulatedDevice
    --load-format dummy --enforce-eager --additional-config '{"simulate": "8b-rtx-pro-6000"}'

The model gives tokenizer, context and chat template. One executor is one device whatever the
tensor- and pipeline-parallel sizes; each data-parallel rank is a device of its own, with its own
noise. Of the sampling parameters those on length, stops, seed, allowed tokens and log probabilities
count, the others change nothing. Structured output is refused by `simulation.refuse_unsupported`;
under vLLM's own server such a request ends with an error at the first word its grammar forbids.

To slow a running device down: `collective_rpc("set_step_time_scale", args=(1.4,))`.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput

from app.engine.device_timeline import DeviceTimeline
from app.engine.simulated_batch import SimulatedBatch
from app.engine.simulated_transfers import SimulatedTransfers
from app.engine.simulation import law_of
from app.engine.step_time import StepLoad
from app.engine.timed_delivery import TimedDelivery, sleep_until

_NOTHING_TO_DO = frozenset(
    {
        "discard",
        "get_kv_connector_handshake_metadata",
        "initialize_from_config",
        "profile",
        "reset_encoder_cache",
        "reset_mm_cache",
        "set_kv_cache_layout",
        "sleep",
        "synchronize_device",
        "update_max_model_len",
        "wake_up",
    }
)
"""What vLLM asks of workers that is no work where there are none."""


class SimulatedDevice(Executor):
    """The executor; the one thread of an EngineCore calls its methods."""

    supports_pp = True
    supported_tasks = ("generate",)

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """A step may be handed over before the last one has ended."""
        return True

    def _init_executor(self) -> None:
        law = law_of(self.vllm_config)
        rank = self.parallel_config.data_parallel_index
        self._law = law
        self._noise = law.noise_factors(rank)
        self._scale = 1.0
        self._block_tokens = self.cache_config.block_size or 16
        self._batch = SimulatedBatch(self.model_config, answer_tokens=law.answer_tokens)
        self._adapters: set[int] = set()
        self._timeline = DeviceTimeline()
        self._delivery: TimedDelivery[ModelRunnerOutput] = TimedDelivery()
        self._computed: tuple[float, ModelRunnerOutput] | None = None
        self._transfers = None
        if self.vllm_config.kv_transfer_config is not None:
            self._transfers = SimulatedTransfers(
                seconds_per_block=law.transfer_ms / 1000 * self._block_tokens,
                bytes_per_block=law.kv_bytes_per_token * self._block_tokens,
                workers=self.parallel_config.world_size,
            )

    # What the device is -----------------------------------------------------------------------

    def get_kv_cache_specs(self) -> list[dict[str, KVCacheSpec]]:
        """One layer that is as large as all layers of the law's model together."""
        head_size, dtype = 128, torch.bfloat16
        keys_and_values = 2
        layer = FullAttentionSpec(
            block_size=self._block_tokens,
            num_kv_heads=self._law.kv_bytes_per_token
            // (keys_and_values * head_size * dtype.itemsize),
            head_size=head_size,
            dtype=dtype,
        )
        return [{"layer.0": layer}]

    def determine_available_memory(self) -> list[int]:
        """Bytes for the law's KV tokens, and for the one block that vLLM keeps for itself."""
        blocks = math.ceil(self._law.kv_tokens / self._block_tokens) + 1
        return [blocks * self._block_tokens * self._law.kv_bytes_per_token]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Nothing is laid out: any of vLLM's layouts does."""
        return [["LBHNC", "LBNHC"]]

    def compile_or_warm_up_model(self) -> None:
        """There is no model to compile."""

    def check_health(self) -> None:
        """A device that is not there does not break."""

    def shutdown(self) -> None:
        """Deliver what is still due and end the thread that does."""
        self._delivery.close()

    # Adapters: any is at home here, and each has a voice of its own ------------------------------

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Take an adapter; its weights are not read."""
        self._adapters.add(lora_request.lora_int_id)
        return True

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter."""
        known = lora_id in self._adapters
        self._adapters.discard(lora_id)
        return known

    def pin_lora(self, lora_id: int) -> bool:
        """Nothing is ever evicted."""
        return lora_id in self._adapters

    def list_loras(self) -> set[int]:
        """Ids of the adapters taken."""
        return set(self._adapters)

    # Steps --------------------------------------------------------------------------------------

    def execute_model(
        self,
        scheduler_output: SchedulerOutput,
        non_block: bool = False,  # noqa: FBT001, FBT002 - vLLM's signature
    ) -> Any:
        """Compute a step; vLLM asks `sample_tokens` for its output, unless it had no tokens."""
        now = time.perf_counter()
        metadata, transfers = scheduler_output.kv_connector_metadata, self._transfers
        stored_at = transfers.before_step(metadata, now) if transfers is not None else None
        load, output = self._batch.step(scheduler_output)
        if load is None:
            ends_at = stored_at or now
        else:
            ends_at = self._timeline.step_ends_at(
                now=now,
                seconds=self._seconds(load),
                goes_on=bool(scheduler_output.scheduled_cached_reqs.req_ids),
                not_before=stored_at,
            )
        if transfers is not None:
            transfers.after_step(metadata, ends_at)
            output.kv_connector_output = transfers.done(ends_at)
        if load is None:
            return self._hand_over(ends_at, output, non_block=non_block)
        self._computed = (ends_at, output)
        return _ready(None) if non_block else None

    def sample_tokens(
        self,
        grammar_output: GrammarOutput | None,
        non_block: bool = False,  # noqa: FBT001, FBT002 - vLLM's signature
    ) -> Any:
        """The output of the step just computed, when its time has come; grammars are ignored."""
        if self._computed is None:
            raise RuntimeError("vLLM asks for the output of a step that it never handed over")
        (ends_at, output), self._computed = self._computed, None
        return self._hand_over(ends_at, output, non_block=non_block)

    def execute_dummy_batch(self) -> None:
        """Keep step with ranks that have work, as mixture-of-experts models must."""
        seconds = self._seconds(StepLoad(decode_sequences=1, decode_context_tokens=0))
        now = time.perf_counter()
        sleep_until(self._timeline.step_ends_at(now=now, seconds=seconds, goes_on=True))

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,  # noqa: FBT001, FBT002 - vLLM's signature
    ) -> Any:
        """What vLLM asks of workers; NotImplementedError where that would need a model."""
        if method == "set_step_time_scale":
            self.set_step_time_scale(*args, **(kwargs or {}))
        elif method not in _NOTHING_TO_DO:
            raise NotImplementedError(f"the simulated device has no workers to run {method!r}")
        return _ready([None]) if non_block else [None]

    def set_step_time_scale(self, scale: float) -> None:
        """Stretch every step from now on; 1 is the law."""
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"a step cannot take {scale} times its time")
        self._scale = scale

    def _seconds(self, load: StepLoad) -> float:
        return self._law.seconds(load) * next(self._noise) * self._scale

    def _hand_over(self, when: float, output: ModelRunnerOutput, *, non_block: bool) -> Any:
        if non_block:
            return self._delivery.at(when, output)
        sleep_until(when)
        return output


def _ready(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
