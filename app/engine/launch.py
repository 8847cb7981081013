"""From vLLM's flags to a running engine; every failure is one readable line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from app.engine.flags import refusal

# A CPU engine refuses to start when less memory is free than this share of the machine, whatever
# its cache needs; a laptop with a browser open rarely has vLLM's default of 0.92.
CPU_MEMORY_SHARE = 0.3
# Gibibytes of KV cache on a CPU: about 90,000 tokens of the embedded model.
CPU_KV_CACHE_GIB = "2"
SIMULATED_CONTEXT_TOKENS = 32_768
SIMULATED_POSITIONS = 131_072


class StartFailed(Exception):
    """The engine cannot start; `str(error)` is one line that says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Parsed flags: what `start()` needs, and what the server reads of them."""

    args: argparse.Namespace
    simulated: bool


def prepare_environment() -> None:
    """Set vLLM's environment variables that nobody has set; call before vLLM is imported."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_KV_CACHE_GIB)
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # The Responses store keeps every caller's answers in one dictionary.
    os.environ["VLLM_ENABLE_RESPONSES_API_STORE"] = "0"


def take_simulate(argv: list[str]) -> tuple[str | None, list[str]]:
    """Split `--simulate LAW` off the flags; the rest is vLLM's."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--simulate", metavar="LAW")
    try:
        known, rest = parser.parse_known_args(argv)
    except SystemExit:
        msg = "--simulate needs a law, for example --simulate 8b-rtx-pro-6000"
        raise StartFailed(msg) from None
    return known.simulate, rest


def parse(argv: list[str], *, embedded_name: str, embedded_folder: Callable[[], Path]) -> Launch:
    """Read `argv` (after `serve`) through vLLM's own parser. Imports vLLM: seconds.

    Without a model in `argv`, the one in `embedded_folder()` is served under `embedded_name`.

    Raises:
        StartFailed: an unknown or refused flag, or values that contradict each other.
    """
    law, rest = take_simulate(argv)
    args = _parse(rest, _defaults(law))
    args.model = args.model_tag or _flag_model(rest, args)
    if args.model is None:
        _serve_embedded(args, embedded_name, embedded_folder(), simulated=law is not None)
    if (reason := refusal(vars(args))) is not None:
        raise StartFailed(reason)
    _validate(args)
    return Launch(args=args, simulated=law is not None)


def _flag_model(rest: list[str], args: argparse.Namespace) -> str | None:
    # vLLM's --model has a default of its own, so only an explicit one counts.
    explicit = any(part == "--model" or part.startswith("--model=") for part in rest)
    return args.model if explicit or args.config else None


def _defaults(law: str | None) -> dict[str, Any]:
    """Defaults of ours, each overridable by its flag."""
    from vllm.platforms import current_platform

    values: dict[str, Any] = {"scheduling_policy": "priority"}
    if current_platform.is_cpu():
        values |= {"enforce_eager": True, "gpu_memory_utilization": CPU_MEMORY_SHARE}
    if law is not None:
        from app.engine.step_time import StepTimeLaw

        try:
            StepTimeLaw.parse(law)
        except ValueError as error:
            raise StartFailed(f"--simulate: {error}") from None
        values |= {
            "distributed_executor_backend": "app.engine.simulated_device.SimulatedDevice",
            "load_format": "dummy",
            "enforce_eager": True,
            "additional_config": {"simulate": law},
            "hf_overrides": {"max_position_embeddings": SIMULATED_POSITIONS},
            "max_model_len": SIMULATED_CONTEXT_TOKENS,
        }
    return values


def _parse(rest: list[str], defaults: dict[str, Any]) -> argparse.Namespace:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> Never:
            raise StartFailed(message)

    parser = make_arg_parser(Parser(prog="fairgate serve", allow_abbrev=False))
    parser.set_defaults(**defaults)
    try:
        return parser.parse_args(rest)
    except (ValueError, argparse.ArgumentTypeError, json.JSONDecodeError) as error:
        raise StartFailed(str(error)) from None


def _serve_embedded(args: argparse.Namespace, name: str, folder: Path, *, simulated: bool) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    args.model = str(folder)
    args.served_model_name = args.served_model_name or [name]
    if not simulated and args.tool_call_parser is None:
        args.tool_call_parser = "hermes"  # the tool format that SmolLM2-Instruct was trained on
        args.enable_auto_tool_choice = True
        # Left alone, a model of this size writes arguments that follow no schema.
        args.tool_strict_level = "parameter"


def _validate(args: argparse.Namespace) -> None:
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    try:
        validate_parsed_serve_args(args)
    except (ValueError, TypeError) as error:
        raise StartFailed(str(error)) from None


def engine_args(launch: Launch) -> Any:
    """vLLM's `AsyncEngineArgs` of these flags."""
    from vllm import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import propagate_flash_late_interaction

    args = AsyncEngineArgs.from_cli_args(launch.args)
    propagate_flash_late_interaction(launch.args, args)
    return args


def start(launch: Launch, stat_loggers: list[Any]) -> Any:
    """Start the engine and its processes; blocks for as long as the model loads: call in a thread.

    Returns the `GatewayEngine`; its seam is still closed.

    Raises:
        StartFailed: model missing, not enough memory, impossible combination of flags.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.usage.usage_lib import UsageContext

    from app.engine.gateway_engine import GatewayEngine
    from app.engine.simulation import law_of

    try:
        if launch.args.tool_parser_plugin:
            ToolParserManager.import_tool_parser(launch.args.tool_parser_plugin)
        if launch.args.reasoning_parser_plugin:
            ReasoningParserManager.import_reasoning_parser(launch.args.reasoning_parser_plugin)
        args = engine_args(launch)
        config = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
        if launch.simulated:
            law_of(config)
        return GatewayEngine.from_vllm_config(
            config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=stat_loggers,
            enable_log_requests=args.enable_log_requests,
            aggregate_engine_logging=args.aggregate_engine_logging,
            disable_log_stats=args.disable_log_stats,
        )
    except Exception as error:
        raise StartFailed(f"{launch.args.model} cannot be served: {readable(error)}") from error


def readable(error: BaseException) -> str:
    """The most telling line of an error of vLLM's start."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "Engine core initialization failed" in text:
        text = f"{text} The lines of the engine process above say why."
    return text[:600]


def print_help() -> None:
    """vLLM's own help for the flags of `serve`."""
    prepare_environment()
    print(  # noqa: T201 - the command line asked for it
        "usage: fairgate serve [MODEL] [--simulate LAW] [vLLM's flags]\n\n"
        "Every engine and model flag of `vllm serve` works unchanged; vLLM's own help follows.\n",
        flush=True,
    )
    _parse(["--help", *[arg for arg in sys.argv[2:] if arg.startswith("--help=")]], {})
