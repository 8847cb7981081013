"""The device's parts driven by hand, with vLLM's own classes and no engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.launch import prepare_environment
from app.engine.simulation import law_of
from app.engine.step_time import StepLoad
from tests.engine.simulated_engine import DEVICE, tiny_model

pytestmark = [
    pytest.mark.filterwarnings("default"),  # vLLM and what it imports warn of many things
    pytest.mark.timeout(300),  # importing it takes its time on a busy machine
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    prepare_environment()
    from vllm.engine.arg_utils import AsyncEngineArgs

    return AsyncEngineArgs(
        model=str(tiny_model(tmp_path_factory.mktemp("tiny"))),
        load_format="dummy",
        enforce_eager=True,
        gpu_memory_utilization=0.3,
        distributed_executor_backend=DEVICE,
        additional_config={"simulate": "base=5,token=1,kv=0.01"},
        max_model_len=4096,
        block_size=16,
    ).create_engine_config()


@pytest.fixture
def device(config: Any) -> Iterator[Any]:
    from app.engine.simulated_device import SimulatedDevice

    device = SimulatedDevice(config)
    yield device
    device.shutdown()


def step(
    new: dict[str, list[int]] | None = None,
    cached: dict[str, tuple[int, int]] | None = None,
    finished: set[str] | None = None,
    **changes: Any,
) -> Any:
    """One step as vLLM's scheduler puts it: whole prompts, and a token for each that goes on."""
    from vllm import SamplingParams
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

    going_on = cached or {}
    new_requests = [
        NewRequestData(
            req_id=request_id,
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=SamplingParams(max_tokens=100),
            pooling_params=None,
            block_ids=([],),
            num_computed_tokens=0,
            lora_request=None,
        )
        for request_id, prompt in (new or {}).items()
    ]
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = new_requests
    output.scheduled_cached_reqs = CachedRequestData.make_empty()
    output.scheduled_cached_reqs.req_ids = list(going_on)
    output.scheduled_cached_reqs.num_computed_tokens = [at for at, _ in going_on.values()]
    output.scheduled_cached_reqs.num_output_tokens = [made for _, made in going_on.values()]
    output.num_scheduled_tokens = dict.fromkeys(going_on, 1)
    output.num_scheduled_tokens |= {r.req_id: len(r.prompt_token_ids or ()) for r in new_requests}
    output.finished_req_ids = finished or set()
    for name, value in changes.items():
        setattr(output, name, value)
    output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
    return output


def run(device: Any, scheduled: Any) -> dict[str, list[int]]:
    """The tokens of a step, waited for as vLLM's synchronous loop does."""
    assert device.execute_model(scheduled, non_block=True).result() is None
    output = device.sample_tokens(None)
    return dict(zip(output.req_ids, output.sampled_token_ids, strict=True))


def test_the_last_known_token_brings_the_next_one(device: Any) -> None:
    first = run(device, step(new={"a": [5] * 30}))
    second = run(device, step(cached={"a": (30, 1)}))
    assert len(first["a"]) == len(second["a"]) == 1
    assert first != second


def test_a_chunk_in_the_middle_of_a_prompt_brings_no_token(device: Any) -> None:
    chunk = step(new={"a": [5] * 30})
    chunk.num_scheduled_tokens["a"] = chunk.total_num_scheduled_tokens = 20
    assert run(device, chunk) == {"a": []}
    rest = step(cached={"a": (20, 0)}, num_scheduled_tokens={"a": 10})
    assert len(run(device, rest)["a"]) == 1


@pytest.mark.parametrize("runner", [1, 2])
def test_a_resumed_request_goes_on_with_the_token_it_had_reached(device: Any, runner: int) -> None:
    """Model runner 1 resumes a request by its id, 2 sends it anew, with its answer so far."""
    prompt = [5] * 30
    told = [run(device, step(new={"a": prompt}))["a"][0]]
    told += [run(device, step(cached={"a": (29 + made, made)}))["a"][0] for made in range(1, 6)]
    if runner == 1:
        resumed = step(cached={"a": (0, 3)}, num_scheduled_tokens={"a": 33})
    else:
        resumed = step(new={"a": prompt}, num_scheduled_tokens={"a": 33})
        resumed.scheduled_new_reqs[0].prefill_token_ids = prompt + told[:3]
    assert run(device, resumed)["a"] == [told[3]]


def test_finished_requests_are_forgotten(config: Any) -> None:
    """A device that runs for weeks must not remember every request it ever had."""
    from vllm import SamplingParams

    from app.engine.simulated_batch import SimulatedBatch

    batch = SimulatedBatch(config.model_config, answer_tokens=None)
    scheduled = step(new={str(i): [5, 6, 7] for i in range(50)})
    for new in scheduled.scheduled_new_reqs:
        new.sampling_params = SamplingParams(max_tokens=10, logprobs=1)
    batch.step(scheduled)
    load, output = batch.step(step(finished={str(i) for i in range(50)}))
    assert load is None
    assert output.req_ids == []
    kept = [value for value in vars(batch).values() if isinstance(value, dict)]
    assert kept
    assert not any(kept)


def test_the_load_of_a_step_counts_decodes_and_chunks_apart(config: Any) -> None:
    from app.engine.simulated_batch import SimulatedBatch

    batch = SimulatedBatch(config.model_config, answer_tokens=None)
    batch.step(step(new={"a": [5] * 30, "b": [6] * 40, "c": [8] * 500}))
    mixed = step(
        new={"d": [7] * 100},
        cached={"a": (30, 1), "b": (40, 1), "c": (200, 0)},
        num_scheduled_tokens={"a": 1, "b": 1, "c": 300, "d": 100},
    )
    load, _ = batch.step(mixed)
    assert load == StepLoad(
        decode_sequences=2,
        decode_context_tokens=70,
        chunk_tokens=400,
        chunk_context_tokens=200,
        chunk_pairs=300 * (200 + 150) + 100 * 50,
    )


def test_a_step_handed_over_early_is_delivered_when_its_turn_has_come(device: Any) -> None:
    """As asynchronous scheduling does: the next step is there before the first has ended."""
    outputs = []
    begun = time.perf_counter()
    for scheduled in (step(new={"a": [5] * 10}), step(cached={"a": (10, 1)})):
        assert device.execute_model(scheduled, non_block=True).result() is None
        outputs.append(device.sample_tokens(None, non_block=True))
    assert not any(future.done() for future in outputs)
    for future in outputs:
        assert len(future.result(timeout=5).sampled_token_ids[0]) == 1
    # 5 ms and 1 a token: 15 ms, then 6.1 with 10 tokens of context at 0.01 ms.
    assert time.perf_counter() - begun >= 0.0211


def test_a_step_without_tokens_is_answered_at_once_and_costs_nothing(device: Any) -> None:
    future = device.execute_model(step(finished={"gone"}), non_block=True)
    assert future.done()
    assert future.result().req_ids == []
    assert device.execute_model(step()).req_ids == []


def test_an_idle_rank_keeps_step_with_the_others(device: Any) -> None:
    """Else it would spin between the exchanges of a mixture-of-experts model."""
    run(device, step(new={"a": [5]}))
    begun = time.perf_counter()
    for _ in range(3):
        device.execute_dummy_batch()
    assert time.perf_counter() - begun >= 2 * 0.006


def test_its_thread_ends_with_the_device(config: Any) -> None:
    from app.engine.simulated_device import SimulatedDevice

    before = threading.active_count()
    device = SimulatedDevice(config)
    device.execute_model(step(new={"a": [5] * 10}), non_block=True)
    output = device.sample_tokens(None, non_block=True)
    assert threading.active_count() == before + 1
    device.shutdown()
    assert threading.active_count() == before
    assert output.done()


def test_any_adapter_is_at_home(device: Any) -> None:
    assert device.add_lora(SimpleNamespace(lora_int_id=3))
    assert device.pin_lora(3)
    assert device.list_loras() == {3}
    assert device.remove_lora(3)
    assert not device.remove_lora(3)
    assert device.list_loras() == set()


@pytest.mark.parametrize("method", ["set_step_time_scale", "sleep"])
def test_control_messages_are_answered_at_once(device: Any, method: str) -> None:
    arguments = (2.0,) if method == "set_step_time_scale" else (1,)
    assert device.collective_rpc(method, args=arguments) == [None]
    assert device.collective_rpc(method, args=arguments, non_block=True).result() == [None]


def test_an_unknown_control_message_is_an_error(device: Any) -> None:
    with pytest.raises(NotImplementedError, match="no workers"):
        device.collective_rpc("load_weights")


# What an engine's flags may ask for --------------------------------------------------------------


def flags(**changes: Any) -> Any:
    model = {
        "runner_type": "generate",
        "is_encoder_decoder": False,
        "original_max_model_len": 4096,
        "max_model_len": 4096,
    }
    given = {
        "additional_config": {"simulate": "base=1"},
        "speculative_config": None,
        "kv_transfer_config": None,
        "cache_config": SimpleNamespace(num_gpu_blocks_override=None),
        "model_config": SimpleNamespace(**(model | changes.pop("model", {}))),
    }
    return SimpleNamespace(**(given | changes))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"additional_config": {}}, "needs its step-time law"),
        ({"additional_config": None}, "needs its step-time law"),
        ({"additional_config": {"simulate": 20}}, "needs its step-time law"),
        ({"additional_config": {"simulate": "8b"}}, "unknown step-time law '8b'"),
        ({"speculative_config": object()}, "--speculative-config"),
        ({"model": {"runner_type": "pooling"}}, "generate text"),
        ({"model": {"is_encoder_decoder": True}}, "generate text"),
        ({"kv_transfer_config": SimpleNamespace(kv_connector="NixlConnector")}, "NixlConnector"),
        ({"additional_config": {"simulate": "base=1,kv_tokens=4095"}}, "--max-model-len"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_the_flag(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        law_of(flags(**given))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kv_transfer_config": SimpleNamespace(kv_connector="OffloadingConnector")},
        {"additional_config": {"simulate": "base=1,kv_tokens=4096"}},
        {
            "additional_config": {"simulate": "base=1,kv_tokens=64"},
            "model": {"original_max_model_len": -1},
        },
        {
            "additional_config": {"simulate": "base=1,kv_tokens=64"},
            "cache_config": SimpleNamespace(num_gpu_blocks_override=512),
        },
    ],
    ids=["plain", "offload", "one context", "context by itself", "blocks by hand"],
)
def test_what_can_be_simulated_is_not_refused(given: dict[str, Any]) -> None:
    assert law_of(flags(**given)).decode.step_ms == 1
