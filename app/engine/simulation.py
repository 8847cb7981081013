"""What a simulated device can be asked for: its law, from the engine's flags, and its requests.

Both checks run in the gateway's process, so that the refusal is a line at start or an answer 400.
"""

from typing import TYPE_CHECKING

from app.engine.step_time import StepTimeLaw

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig


def refuse_unsupported(sampling: "SamplingParams") -> str | None:
    """Why a request cannot be simulated, for an answer 400; None where it can."""
    if sampling.structured_outputs is not None:
        return (
            "the simulated device makes up its text and cannot keep to a structure: leave out "
            "response_format, structured outputs and forced tool calls, or serve a real model"
        )
    if sampling.prompt_logprob_token_ids is not None:
        return "the simulated device does not score chosen tokens of a prompt"
    return None


def law_of(config: "VllmConfig") -> StepTimeLaw:
    """The law an engine configuration asks for; ValueError says what cannot be simulated."""
    additional = config.additional_config
    text = additional.get("simulate") if isinstance(additional, dict) else None
    if not isinstance(text, str):
        raise ValueError(  # noqa: TRY004 - a setting is wrong, whatever its type
            "the simulated device needs its step-time law, a text: "
            """--additional-config '{"simulate": "8b-rtx-pro-6000"}'"""
        )
    law = StepTimeLaw.parse(text)
    if config.speculative_config is not None:
        raise ValueError("the simulated device drafts no tokens: leave out --speculative-config")
    if config.model_config.runner_type != "generate" or config.model_config.is_encoder_decoder:
        raise ValueError("the simulated device only simulates decoders that generate text")
    transfer = config.kv_transfer_config
    if transfer is not None and transfer.kv_connector != "OffloadingConnector":
        raise ValueError(
            f"the simulated device has no KV connector {transfer.kv_connector}: "
            "of these it knows --kv-offloading-size only"
        )
    _check_context(config, law)
    return law


def _check_context(config: "VllmConfig", law: StepTimeLaw) -> None:
    fits_itself = config.model_config.original_max_model_len == -1
    if fits_itself or config.cache_config.num_gpu_blocks_override is not None:
        return
    context_tokens = config.model_config.max_model_len
    if law.kv_tokens < context_tokens:
        raise ValueError(
            f"the KV cache of the simulated device (kv_tokens={law.kv_tokens}) holds less than one "
            f"context of {context_tokens} tokens: raise it or lower --max-model-len"
        )
