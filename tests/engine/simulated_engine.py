"""A real vLLM engine on the simulated device, and the smallest model folder it can start from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.engine.launch import prepare_environment

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

DEVICE = "app.engine.simulated_device.SimulatedDevice"
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }} {{ m['content'] }}<|end|>{% endfor %}"
    "<|start|>assistant"
)
SYLLABLES = ("ba", "ko", "ri", "tu", "me", "lo", "sa", "ni", "du", "pe")


def tiny_model(folder: Path) -> Path:
    """Write configuration, tokenizer and chat template of a model that has no weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = " ".join("".join(parts) for parts in product(SYLLABLES, repeat=3))
    trainer = trainers.BpeTrainer(
        vocab_size=1600,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f" {words}"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in (
        (
            "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|end|>",
                "bos_token": "<|start|>",
                "chat_template": TEMPLATE,
            },
        ),
        (
            "config.json",
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "max_position_embeddings": 131_072,
                "vocab_size": tokenizer.get_vocab_size(),
                "bos_token_id": 1,
                "eos_token_id": 0,
                "torch_dtype": "bfloat16",
            },
        ),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder


@contextmanager
def simulated_engine(
    model: Path,
    law: str,
    *,
    async_scheduling: bool = False,
    preempted: list[int] | None = None,
    **flags: Any,
) -> Iterator[AsyncLLM]:
    """An engine that has started; it is shut down, with its processes, at the end.

    `async_scheduling`: vLLM turns it off on a CPU, for its workers' sake; this device has none.
    `preempted` gets an entry for each engine output with preemptions: how many.
    """
    prepare_environment()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(
        model=str(model),
        load_format="dummy",
        enforce_eager=True,
        gpu_memory_utilization=0.3,
        distributed_executor_backend=DEVICE,
        additional_config={"simulate": law},
        **({"block_size": 16, "max_model_len": 4096} | flags),
    )
    config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    config.scheduler_config.async_scheduling = async_scheduling
    loggers = None if preempted is None else [_preemption_logger(preempted)]
    engine = AsyncLLM.from_vllm_config(config, stat_loggers=loggers)
    try:
        yield engine
    finally:
        engine.shutdown()


def _preemption_logger(found: list[int]) -> Any:
    from vllm.v1.metrics.loggers import StatLoggerBase

    class PreemptionLogger(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            if iteration_stats is not None and iteration_stats.num_preempted_reqs:
                found.append(iteration_stats.num_preempted_reqs)

        def log_engine_initialized(self) -> None: ...

    return PreemptionLogger
