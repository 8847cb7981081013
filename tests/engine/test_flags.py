"""Every flag of `vllm serve` means exactly one thing here, and engine flags arrive unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.engine import flags, launch
from app.engine.launch import Launch, StartFailed

# Importing vLLM's parser takes seconds, once.
pytestmark = pytest.mark.timeout(120)


def parsed(*argv: str) -> Launch:
    return launch.parse(
        list(argv), embedded_name="embedded", embedded_folder=lambda: Path("/embedded")
    )


@pytest.fixture(scope="module", autouse=True)
def _environment() -> None:
    launch.prepare_environment()


def server_and_engine_flags() -> tuple[set[str], set[str]]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    engine_parser = FlexibleArgumentParser()
    AsyncEngineArgs.add_cli_args(engine_parser)
    engine = {action.dest for action in engine_parser._actions}
    everything = {action.dest for action in make_arg_parser(FlexibleArgumentParser())._actions}
    return everything - engine, engine


def test_each_flag_of_vllm_stands_in_exactly_one_list() -> None:
    server, engine = server_and_engine_flags()
    lists: list[set[str]] = [
        set(flags.HONOURED),
        set(flags.PASSED),
        set(flags.WITHOUT_EFFECT),
        set(flags.REFUSED),
        engine - set(flags.REFUSED),
    ]
    for flag in sorted(server | engine):
        assert sum(flag in one for one in lists) == 1, f"--{flag} must stand in one list"
    known = set.union(*lists)
    assert known == server | engine, f"vLLM no longer has {sorted(known - server - engine)}"


REFUSED_EXAMPLES = {
    "api_server_count": ["--api-server-count", "2"],
    "headless": ["--headless"],
    "uds": ["--uds", "/tmp/socket"],
    "grpc": ["--grpc"],
    "grpc_port": ["--grpc-port", "50051"],
    "middleware": ["--middleware", "some.module"],
    "enable_offline_docs": ["--enable-offline-docs"],
    "enable_scale_out": ["--enable-scale-out"],
    "tokens_only": ["--tokens-only"],
    "enable_tokenizer_info_endpoint": ["--enable-tokenizer-info-endpoint"],
    "sse_keep_alive_interval": ["--sse-keep-alive-interval", "5"],
    "data_parallel_external_lb": ["--data-parallel-external-lb"],
    "data_parallel_hybrid_lb": ["--data-parallel-hybrid-lb"],
    "data_parallel_multi_port_external_lb": ["--data-parallel-multi-port-external-lb"],
}


def test_the_examples_cover_every_refused_flag() -> None:
    assert set(REFUSED_EXAMPLES) == set(flags.REFUSED)


@pytest.mark.parametrize("name", sorted(flags.REFUSED))
def test_a_refused_flag_is_named_with_what_to_do_instead(name: str) -> None:
    with pytest.raises(StartFailed) as failure:
        parsed("some/model", *REFUSED_EXAMPLES[name])
    assert f"--{name.replace('_', '-')}" in str(failure.value)
    assert flags.REFUSED[name] in str(failure.value)


def test_a_refused_flag_that_asks_for_nothing_is_accepted() -> None:
    assert parsed("some/model", "--api-server-count", "1").args.api_server_count == 1


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--kv-offloading-size", "4"], "kv_offloading_size", 4.0),
        (["--cpu-offload-gb", "2"], "cpu_offload_gb", 2.0),
        (["--tensor-parallel-size", "2"], "tensor_parallel_size", 2),
        (["--pipeline-parallel-size", "3"], "pipeline_parallel_size", 3),
        (["--data-parallel-size", "2"], "data_parallel_size", 2),
        (["--nnodes", "2", "--node-rank", "1"], "node_rank", 1),
        (["--distributed-executor-backend", "ray"], "distributed_executor_backend", "ray"),
        (["--max-num-seqs", "12"], "max_num_seqs", 12),
        (["--scheduling-policy", "fcfs"], "scheduling_policy", "fcfs"),
        (["--gpu-memory-utilization", "0.7"], "gpu_memory_utilization", 0.7),
        (["--no-enforce-eager"], "enforce_eager", False),
    ],
)
def test_an_engine_flag_reaches_the_engine_arguments_unchanged(
    argv: list[str], field: str, value: Any
) -> None:
    arguments = launch.engine_args(parsed("some/model", *argv))
    assert getattr(arguments, field) == value
    assert arguments.model == "some/model"


def test_without_a_model_the_embedded_one_is_served_under_its_own_name() -> None:
    args = parsed("--port", "8001").args
    assert (args.model, args.served_model_name) == ("/embedded", ["embedded"])


def test_a_model_in_either_place_keeps_the_embedded_one_out() -> None:
    def fail() -> Path:
        raise AssertionError("the embedded model was asked for")

    for argv in (["a/b"], ["--model", "a/b"], ["--model=a/b"]):
        assert launch.parse(argv, embedded_name="e", embedded_folder=fail).args.model == "a/b"


def test_simulate_serves_the_device_with_a_long_context() -> None:
    launched = parsed("--simulate", "base=20,token=0.1", "--max-num-seqs", "8")
    args = launched.args
    assert launched.simulated
    assert args.distributed_executor_backend.endswith("SimulatedDevice")
    assert args.additional_config == {"simulate": "base=20,token=0.1"}
    assert args.max_model_len == 32_768
    assert (
        parsed("--simulate", "8b-rtx-pro-6000", "--max-model-len", "4096").args.max_model_len
        == 4096
    )


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--max-num-sequences", "3"], "--max-num-sequences"),
        (["--max-num-seqs", "many"], "max-num-seqs"),
        (["--simulate"], "--simulate"),
        (["--simulate", "9b"], "9b"),
        (["--port", "1", "two", "models"], "models"),
    ],
)
def test_a_wrong_flag_is_one_readable_line(argv: list[str], word: str) -> None:
    with pytest.raises(StartFailed) as failure:
        parsed(*argv)
    assert word in str(failure.value)
    assert "\n" not in str(failure.value)
