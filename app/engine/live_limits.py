"""The plugin in vLLM's EngineCore process that changes the batch while the engine runs.

vLLM's scheduler reads two plain numbers at every step; `register`, an entry point of the group
`vllm.general_plugins`, gives EngineCore the method that sets them. From the gateway's process:

    await engine.engine_core.call_utility_async("set_batch_limits", 16, 2048)

It reaches every data-parallel rank (`call_utility_all_async` returns the answer of each). Lowering
preempts nothing: what runs ends as it would, and nothing enters until the running are fewer.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore

PREFILL_CHUNK_TOKENS = 16
"""Left of a step's tokens when every sequence has taken its own: prompts always get on."""


def register() -> None:
    """Give EngineCore its method; vLLM calls this in each of its processes, perhaps repeatedly."""
    from vllm.v1.engine.core import EngineCore

    EngineCore.set_batch_limits = set_batch_limits


def set_batch_limits(
    core: "EngineCore", active_sequences: int | None, step_tokens: int | None
) -> list[int]:
    """Set how many sequences run at once and how many tokens a step computes, from its next step.

    None frees a limit. Each is kept within what the engine was started with, and the tokens of a
    step at no less than its sequences need, and a chunk of a prompt beside them. Returns what is in
    force: sequences, tokens. ValueError: not a positive whole number; RuntimeError: this vLLM's
    scheduler has no such numbers. The engine survives both.
    """
    scheduler: Any = core.scheduler
    for name in ("max_num_active_reqs", "max_num_scheduled_tokens", "max_num_running_reqs"):
        if not hasattr(scheduler, name):
            raise RuntimeError(f"the scheduler {type(scheduler).__name__} has no {name}")
    most_sequences, most_tokens = _started_with(scheduler)
    sequences = min(_checked("active_sequences", active_sequences, most_sequences), most_sequences)
    tokens = _checked("step_tokens", step_tokens, most_tokens)
    tokens = min(max(tokens, _least_step_tokens(scheduler, sequences)), most_tokens)
    scheduler.max_num_active_reqs = sequences
    scheduler.max_num_scheduled_tokens = tokens
    return [sequences, tokens]


def _checked(name: str, value: object, free: int) -> int:
    if value is None:
        return free
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, or null, not {value!r}")
    return value


def _started_with(scheduler: Any) -> tuple[int, int]:
    """The operator's own limits: the flags, where set, else what the engine has room for."""
    config = scheduler.scheduler_config
    return (
        config.max_num_active_seqs or scheduler.max_num_running_reqs,
        config.max_num_scheduled_tokens or config.max_num_batched_tokens,
    )


def _least_step_tokens(scheduler: Any, sequences: int) -> int:
    """Fewer would starve sequences that run, or a prompt that must go through in one piece."""
    config = scheduler.scheduler_config
    _, most_tokens = _started_with(scheduler)
    if not config.enable_chunked_prefill or config.disable_chunked_mm_input:
        return most_tokens
    running = max(sequences, len(scheduler.running))
    # A sequence takes a token a step, and those drafted for it.
    return running * (1 + scheduler.num_spec_tokens) + max(
        PREFILL_CHUNK_TOKENS, scheduler.block_size
    )
