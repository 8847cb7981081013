"""What the simulated device and the live limits rely on inside vLLM, piece by piece.

Each test fails with the name of what changed, when vLLM is moved to another release.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import re
from typing import Any

import pytest

from app.engine.launch import prepare_environment
from tests.engine.simulated_engine import DEVICE

pytestmark = [
    pytest.mark.filterwarnings("default"),  # vLLM and what it imports warn of many things
    pytest.mark.timeout(300),  # importing it takes its time on a busy machine
]


@pytest.fixture(scope="module", autouse=True)
def _environment() -> None:
    prepare_environment()


def fields(of: Any) -> set[str]:
    if dataclasses.is_dataclass(of):
        return {field.name for field in dataclasses.fields(of)}
    return set(of._fields)


def missing(names: set[str], of: Any) -> list[str]:
    return sorted(names - fields(of))


def source(of: Any) -> str:
    return inspect.getsource(of)


def test_an_executor_must_define_what_ours_defines() -> None:
    from vllm.v1.executor.abstract import Executor

    from app.engine.simulated_device import SimulatedDevice

    assert not SimulatedDevice.__abstractmethods__, "vLLM's Executor has new abstract methods"
    for name in ("execute_model", "sample_tokens", "collective_rpc", "determine_available_memory"):
        theirs = list(inspect.signature(getattr(Executor, name)).parameters)
        ours = list(inspect.signature(getattr(SimulatedDevice, name)).parameters)
        assert ours == theirs, f"the parameters of Executor.{name} changed"


def test_vllm_finds_the_device_by_its_name() -> None:
    from vllm.utils.import_utils import resolve_obj_by_qualname

    from app.engine.simulated_device import SimulatedDevice

    assert resolve_obj_by_qualname(DEVICE) is SimulatedDevice
    assert SimulatedDevice.supports_async_scheduling()


def test_every_message_of_the_engine_core_to_workers_is_known() -> None:
    """A message in vLLM's own start, step, sleep or shutdown that we do not answer would end it."""
    import vllm.v1.engine.core
    import vllm.v1.executor.abstract
    from vllm.v1.executor.abstract import Executor

    from app.engine import simulated_device

    # Asked for by name through the API alone: an error to the caller is the right answer.
    on_request = {"compute_weight_checksums", "save_sharded_state", "take_draft_token_ids"}
    asked: set[str] = set()
    for module in (vllm.v1.engine.core, vllm.v1.executor.abstract):
        asked |= set(re.findall(r"""collective_rpc\([^"(]*"(\w+)\"""", inspect.getsource(module)))
    assert {"initialize_from_config", "synchronize_device"} <= asked, "the scan finds nothing"
    own = {name for name in vars(simulated_device.SimulatedDevice) if hasattr(Executor, name)}
    renamed = {"get_kv_cache_spec": "get_kv_cache_specs", "get_supported_tasks": "supported_tasks"}
    unanswered = {
        name
        for name in asked - on_request - simulated_device._NOTHING_TO_DO
        if renamed.get(name, name) not in own
    }
    # Draft weights are updated on request, and never where nothing is drafted.
    assert unanswered <= {"supports_draft_weight_updates"}, f"vLLM asks workers for {unanswered}"


def test_the_core_asks_for_the_output_of_a_step_after_handing_it_over() -> None:
    from vllm.v1.engine.core import EngineCore

    step = source(EngineCore.step)
    assert "execute_model(scheduler_output, non_block=True)" in step
    assert step.index("if model_output is None") < step.index("sample_tokens(")
    batch_queue = source(EngineCore.step_with_batch_queue)
    assert "non_block=True" in batch_queue
    assert "sample_tokens(" in batch_queue


def test_a_step_says_what_the_device_reads() -> None:
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

    assert not missing(
        {
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "num_scheduled_tokens",
            "total_num_scheduled_tokens",
            "finished_req_ids",
            "kv_connector_metadata",
        },
        SchedulerOutput,
    )
    assert not missing({"req_ids", "num_computed_tokens", "num_output_tokens"}, CachedRequestData)
    assert not missing(
        {
            "req_id",
            "prompt_token_ids",
            "sampling_params",
            "num_computed_tokens",
            "lora_request",
            "prefill_token_ids",
        },
        NewRequestData,
    )
    assert isinstance(NewRequestData.prompt_len, property)


def test_the_output_of_a_step_has_room_for_what_the_device_says() -> None:
    from vllm.v1.outputs import LogprobsLists, LogprobsTensors, ModelRunnerOutput

    assert not missing(
        {
            "req_ids",
            "req_id_to_index",
            "sampled_token_ids",
            "logprobs",
            "prompt_logprobs_dict",
            "kv_connector_output",
        },
        ModelRunnerOutput,
    )
    assert fields(LogprobsLists) >= {"logprob_token_ids", "logprobs", "sampled_token_ranks"}
    assert fields(LogprobsTensors) >= {"logprob_token_ids", "logprobs", "selected_token_ranks"}


def test_output_tokens_under_way_are_counted_as_made() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    made = source(Scheduler._make_cached_request_data)
    assert "req.num_output_tokens + req.num_output_placeholders" in made


def test_sampling_parameters_say_when_an_answer_ends() -> None:
    from vllm import SamplingParams

    parameters = SamplingParams(stop_token_ids=[5], ignore_eos=True)
    parameters.update_from_generation_config({}, eos_token_id=2)
    assert parameters.eos_token_id is None, "ignore_eos no longer removes the end token"
    assert 5 in parameters.all_stop_token_ids
    parameters = SamplingParams()
    parameters.update_from_generation_config({}, eos_token_id=2)
    assert parameters.eos_token_id == 2
    for name in ("min_tokens", "max_tokens", "seed", "allowed_token_ids", "structured_outputs"):
        assert hasattr(parameters, name), f"SamplingParams has no {name}"
    for name in (
        "num_logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "prompt_logprob_token_ids",
    ):
        assert hasattr(parameters, name), f"SamplingParams has no {name}"


def test_the_choices_of_a_request_are_numbered_in_their_ids() -> None:
    from vllm.v1.engine.parallel_sampling import ParentRequest

    naming = source(ParentRequest.get_child_info)
    assert 'f"{index}_{self.request_id}"' in naming
    assert "child_sampling_params.seed = seed + index" in source(
        ParentRequest._get_child_sampling_params
    )


def test_the_kv_cache_layouts_have_the_names_we_give() -> None:
    from vllm.v1.attention.backends.utils import _layout_from_name

    from app.engine.simulated_device import SimulatedDevice

    device: Any = None
    for names in SimulatedDevice.get_supported_kv_cache_layouts(device):
        assert [_layout_from_name(name).name for name in names] == names


def test_one_layer_takes_the_bytes_of_the_law_for_each_token() -> None:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    layer = FullAttentionSpec(block_size=16, num_kv_heads=256, head_size=128, dtype=torch.bfloat16)
    assert layer.page_size_bytes == 16 * 131_072


def test_offloading_hands_out_jobs_and_learns_of_their_end() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
        OffloadingConnectorMetadata,
        OffloadingWorkerMetadata,
        TransferJob,
    )
    from vllm.v1.kv_offload.base import GPULoadStoreSpec
    from vllm.v1.outputs import KVConnectorOutput

    assert not missing({"load_jobs", "store_jobs", "jobs_to_flush"}, OffloadingConnectorMetadata)
    assert not missing({"req_id", "src_spec", "dst_spec"}, TransferJob)
    report = OffloadingWorkerMetadata()
    assert report.completed_jobs == {}
    report.transfer_stats.load.record(1024, 0.5)
    report.transfer_stats.store.record(1024, 0.5)
    assert not missing({"finished_recving", "kv_connector_worker_meta"}, KVConnectorOutput)
    assert len(GPULoadStoreSpec([1, 2], group_sizes=[2], block_indices=[0]).block_ids) == 2


def test_the_scheduler_reads_its_limits_at_every_step() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    step, start = source(Scheduler.schedule), source(Scheduler.__init__)
    for name in ("max_num_active_reqs", "max_num_scheduled_tokens"):
        assert f"self.{name}" in step, f"the scheduler no longer reads {name} at every step"
        assert f"self.{name} = " in start, f"the scheduler no longer has {name}"
    for name in ("max_num_running_reqs", "num_spec_tokens", "block_size", "running"):
        assert f"self.{name}" in start, f"the scheduler no longer has {name}"


def test_the_configuration_of_a_scheduler_says_what_it_started_with() -> None:
    from vllm.config import SchedulerConfig

    assert not missing(
        {
            "max_num_active_seqs",
            "max_num_scheduled_tokens",
            "max_num_batched_tokens",
            "enable_chunked_prefill",
            "disable_chunked_mm_input",
        },
        SchedulerConfig,
    )


def test_the_plugin_adds_a_method_that_vllm_does_not_have() -> None:
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.core_client import AsyncMPClient, DPLBAsyncMPClient

    from app.engine import live_limits

    taken = vars(EngineCore).get("set_batch_limits", live_limits.set_batch_limits)
    assert taken is live_limits.set_batch_limits, "vLLM has a set_batch_limits of its own now"
    live_limits.register()
    live_limits.register()
    assert vars(EngineCore)["set_batch_limits"] is live_limits.set_batch_limits
    for client in (AsyncMPClient, DPLBAsyncMPClient):
        assert hasattr(client, "call_utility_async"), f"{client.__name__} calls no utilities"


def test_the_plugin_is_installed_where_vllm_looks_for_it() -> None:
    entries = importlib.metadata.entry_points(group="vllm.general_plugins")
    ours = [entry for entry in entries if entry.value == "app.engine.live_limits:register"]
    assert ours, "the project is not installed: run `make install`"
