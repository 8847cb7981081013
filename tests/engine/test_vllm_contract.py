"""Every piece inside vLLM that the gateway stands on, one test each: a new release fails here.

Moving to another vLLM is one line in pyproject.toml and this file: a test that fails names the fact
that no longer holds and the file that relied on it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from typing import Any

import pytest


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_the_engine_class_is_the_one_that_we_extend() -> None:
    from vllm import AsyncLLMEngine
    from vllm.v1.engine.async_llm import AsyncLLM

    assert AsyncLLMEngine is AsyncLLM, "gateway_engine.py extends AsyncLLM"
    assert inspect.isasyncgenfunction(AsyncLLM.generate)
    assert inspect.isasyncgenfunction(AsyncLLM.encode)


def test_a_request_can_be_validated_before_it_is_added() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor

    wanted = {"request_id", "prompt", "params", "supported_tasks", "lora_request"}
    wanted |= {"tokenization_kwargs", "trace_headers"}
    assert wanted <= parameters(InputProcessor.process_inputs), "GatewayEngine._validated()"
    assert {"request_id", "prompt", "params", "prompt_text"} <= parameters(AsyncLLM.add_request)
    assert {"request_id", "internal"} <= parameters(AsyncLLM.abort), "GatewayEngine.run()"


def test_the_engines_request_has_the_fields_that_we_overwrite() -> None:
    from vllm.v1.engine import EngineCoreRequest

    fields = set(EngineCoreRequest.__struct_fields__)
    ours = {"priority", "data_parallel_rank", "kv_hints", "session_id", "cache_salt"}
    ours |= {"sampling_params", "prompt_token_ids", "reasoning_ended", "reasoning_parser_kwargs"}
    assert ours <= fields, "ownership.py and GatewayEngine._validated()"


def test_what_clients_may_ask_of_order_and_transfer_arrives_where_we_drop_it() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    request = ChatCompletionRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "x"}],
            "model": "m",
            "kv_transfer_params": {"a": 1},
        }
    )
    params = request.to_sampling_params(1, {})
    assert (params.extra_args or {}).get("kv_transfer_params") == {"a": 1}, "ownership.py"


async def test_the_collector_takes_a_put_of_our_own() -> None:
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.output_processor import RequestOutputCollector

    collector = RequestOutputCollector(RequestOutputKind.DELTA, "id")
    assert (collector.output, collector.ready.is_set(), collector.request_id) == (None, False, "id")
    seen: list[Any] = []
    collector.put = seen.append
    collector.put("output")
    assert seen == ["output"], "run.py observes there"
    del collector.put
    collector.put(ValueError("an error wins over what was there"))
    with pytest.raises(ValueError, match="wins"):
        await asyncio.wait_for(collector.get(), 1)


def test_deltas_of_one_request_add_up_to_its_whole_answer() -> None:
    from vllm.outputs import CompletionOutput, RequestOutput

    def delta(text: str, token: int, finish: str | None) -> RequestOutput:
        completion = CompletionOutput(0, text, [token], None, None, finish_reason=finish)
        return RequestOutput("id", None, [1], None, [completion], finish is not None)

    whole = delta("a", 1, None)
    whole.add(delta("b", 2, "length"), aggregate=True)
    completion = whole.outputs[0]
    assert (completion.text, list(completion.token_ids)) == ("ab", [1, 2]), "Run._gather()"
    assert (completion.finish_reason, whole.finished) == ("length", True)


def test_outputs_say_how_much_of_the_prompt_was_cached() -> None:
    from vllm.outputs import PoolingRequestOutput, RequestOutput

    assert "num_cached_tokens" in parameters(RequestOutput.__init__), "Run._put()"
    assert "num_cached_tokens" in parameters(PoolingRequestOutput.__init__)


def test_the_preflight_asks_for_admission_before_anything_is_rendered() -> None:
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing
    from vllm.v1.engine.async_llm import AsyncLLM

    assert {"n", "request_id"} <= parameters(AsyncLLM.check_admission)
    called: list[Any] = []

    class Serving:
        class engine_client:  # noqa: N801
            errored = False
            check_admission = staticmethod(called.append)

    GenerateBaseServing._preflight(Serving(), 3)  # type: ignore[arg-type,unused-ignore]
    assert called == [3]


def test_an_error_with_a_status_of_its_own_passes_the_handlers() -> None:
    from http import HTTPStatus

    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import GracefulHTTPError

    error = GracefulHTTPError("full", HTTPStatus.SERVICE_UNAVAILABLE)
    assert create_error_response(error).error.code == 503, "vllm_errors.Answered"


def test_a_dead_engine_and_a_bad_request_are_told_apart() -> None:
    from vllm.exceptions import VLLMClientError, VLLMValidationError
    from vllm.v1.engine.exceptions import EngineDeadError

    error = VLLMValidationError("m", parameter="p")
    assert (isinstance(error, VLLMClientError), error.parameter) == (True, "p")
    assert not issubclass(EngineDeadError, VLLMClientError), "vllm_errors.translated()"


def test_the_routes_that_we_offer_exist_under_these_paths() -> None:
    from fastapi import FastAPI
    from vllm.entrypoints.generate.api_router import register_generate_api_routers
    from vllm.entrypoints.openai.models.api_router import attach_router
    from vllm.entrypoints.pooling.embed.api_router import router as embed
    from vllm.entrypoints.serve.tokenize import api_router

    from app.engine.openai_routes import OFFERED, offered

    app = FastAPI()
    app.state.args = None
    attach_router(app)
    register_generate_api_routers(app)
    api_router.attach_router(app)
    app.include_router(embed)
    kept = {
        (route.path, method)
        for route in offered(app.router.routes)
        for method in getattr(route, "methods", ())
    }
    assert kept == OFFERED, "openai_routes.OFFERED"


def test_beam_search_is_a_method_that_can_be_replaced() -> None:
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

    for serving in (OpenAIServingChat, OpenAIServingCompletion):
        assert callable(serving.beam_search), "openai_routes.build()"


def test_the_start_of_a_responses_stream_is_named_as_we_hold_it() -> None:
    from openai.types import responses

    from app.engine.held_answer import PRELUDE

    names = [
        responses.ResponseCreatedEvent.model_fields["type"].annotation,
        responses.ResponseInProgressEvent.model_fields["type"].annotation,
    ]
    found = [f"event: {name.__args__[0]}".encode() for name in names]  # type: ignore[union-attr]
    assert tuple(found) == PRELUDE


def test_the_statistics_of_a_step_have_what_we_read() -> None:
    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

    wanted = {"scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx"}
    assert wanted <= parameters(StatLoggerBase.record), "stats.py"
    fields = {field.name for field in dataclasses.fields(SchedulerStats)}
    assert {"num_running_reqs", "num_waiting_reqs", "kv_cache_usage"} <= fields
    step = IterationStats()
    assert (step.num_prompt_tokens, step.num_generation_tokens, step.num_preempted_reqs) == (0,) * 3


def test_the_renderer_takes_a_conversation_and_a_text() -> None:
    from vllm.renderers import ChatParams, TokenizeParams
    from vllm.renderers.base import BaseRenderer

    assert {"conversations", "chat_params", "tok_params"} <= parameters(
        BaseRenderer.render_chat_async
    ), "text.py"
    assert {"prompt", "params"} <= parameters(BaseRenderer.tokenize_prompt_async)
    assert TokenizeParams(max_total_tokens=None, add_special_tokens=False).max_total_tokens is None
    assert {"chat_template", "chat_template_content_format", "chat_template_kwargs"} <= {
        field.name for field in dataclasses.fields(ChatParams)
    }


def test_the_routes_add_a_generation_prompt_as_our_own_rendering_does() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    request = ChatCompletionRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "model": "m"}
    )
    kwargs = request.build_chat_params(None, "auto").chat_template_kwargs
    assert kwargs["add_generation_prompt"] is True, "text.text_engine()"


def test_uvicorn_announces_disconnects_to_streams() -> None:
    from uvicorn.protocols.http import h11_impl, httptools_impl

    for module in (h11_impl, httptools_impl):
        assert '"spec_version": "2.3"' in inspect.getsource(module), "held_answer.py hears of it"
