"""The one seam of admission: vLLM's `AsyncLLM` whose `generate()` and `encode()` take a turn first.

Whatever reaches the engine, through whichever API, passes `GatewayEngine.run()`: the request is
validated by vLLM's own input processor, stripped of what only the gateway may say (priority, rank,
cache salt, KV transfer), waits for its turn, and is observed where the engine emits, not where the
client pulls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from vllm.pooling_params import PoolingParams
from vllm.renderers.inputs.preprocess import extract_prompt_components
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from app.admission.dispatcher import Dispatcher
from app.admission.ticket import Ticket
from app.engine.api import ModelInfo, Started, Work, current_work
from app.engine.metering import Metered
from app.engine.ownership import own
from app.engine.run import Run, gave_up
from app.engine.vllm_errors import ENGINE_DEAD, carried, translated
from app.errors import EngineDead, FairgateError, Internal, InvalidRequest, NotFound

# An answer without a limit of its own counts as this long until it has ended: about the mean of
# published chat traces (211 tokens, Azure 2023 conversation trace, CC-BY-4.0).
UNLIMITED_ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """What `run()` needs of the house.

    `metered(work, tokens)` raises where the tenant's minute has no room for so many tokens.
    `unsupported` names why the device cannot serve some sampling parameters, None where it can;
    `salt_secret` keys the prefix cache of each tenant.
    """

    dispatcher: Dispatcher
    model: ModelInfo
    metered: Metered
    salt_secret: bytes
    unsupported: Callable[[Any], str | None]


class GatewayEngine(AsyncLLM):
    """vLLM's engine behind the gate; `open()` before the first request."""

    _seam: Seam | None = None

    @property
    def in_flight(self) -> int:
        """Requests inside the engine that were let in by the seam."""
        return len(self._runs)

    def open(self, seam: Seam) -> None:
        """Let requests in, each through `seam`."""
        self._seam = seam
        self._runs: set[Run] = set()

    @property
    def dead_error(self) -> Exception:
        """vLLM's error of a dead engine; told to whoever holds the response back, too."""
        if (work := current_work.get(None)) is not None:
            work.error = EngineDead(ENGINE_DEAD)
        error: Exception = super().dead_error
        return error

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """vLLM's preflight, before the prompt is rendered: refuse what would be refused later."""
        super().check_admission(n, request_id)
        work = current_work.get(None)
        if request_id is not None or work is None or self._seam is None:
            return
        with carried(work):
            self._seam.dispatcher.check(
                work.tenant,
                work.work_class,
                sequences=n,
                arrived_seconds=work.arrived_seconds,
                max_wait_seconds=work.max_wait_seconds,
            )

    async def warm_up(self) -> None:
        """Make one real token, so that ready means it; nothing to do for a pooling model."""
        if "generate" not in await self.get_supported_tasks():
            return
        params = SamplingParams(max_tokens=1, temperature=0.0)
        prompt = {"type": "token", "prompt_token_ids": [1]}
        async with aclosing(AsyncLLM.generate(self, prompt, params, "warm-up")) as outputs:
            async for _ in outputs:
                pass

    async def close(self) -> None:
        """End the engine's processes; seconds. What still waits for outputs waits in vain."""
        # Left alone, the handler would take the end of the engine for its death, and log it so.
        if (handler := self.output_handler) is not None:
            handler.cancel()
            await asyncio.wait([handler])
        await asyncio.to_thread(self.shutdown)

    def end_all(self, error: FairgateError) -> None:
        """Give every running request `error` as its end."""
        for run in tuple(self._runs):
            run.end_with(error)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """vLLM's routes come in here; `options` are those of `AsyncLLM.generate`."""
        work = current_work.get()
        with carried(work):
            async with aclosing(
                self.run(prompt, sampling_params, request_id, work, **options)
            ) as outputs:
                async for output in outputs:
                    if output.__class__ is not Started:
                        yield output

    async def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Embeddings and the like come in here; `options` are those of `AsyncLLM.encode`."""
        async with aclosing(
            self.generate(prompt, pooling_params, request_id, **options)
        ) as outputs:
            async for output in outputs:
                yield output

    async def run(
        self, prompt: Any, params: Any, request_id: str, work: Work, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Validate, wait, and yield `Started` once, then vLLM's outputs as they come.

        Raises:
            FairgateError: of any kind; nothing of vLLM's own errors passes.
        """
        seam = self._seam
        if seam is None or self.errored:
            raise EngineDead(ENGINE_DEAD)
        adapter = options.get("lora_request")
        name = seam.model.name if adapter is None else adapter.lora_name
        if not seam.model.open_to(work.models, name):
            raise NotFound(f"the model `{name}` does not exist", param="model")
        with translated():
            request, prompt_text = await self._validated(prompt, params, request_id, options)
        gather = own(request, work, seam.salt_secret)
        ticket = self._ticket(request, work, streamed=not gather)
        collector: Any = None
        finished = False
        expected_tokens = self._expected_tokens(ticket)
        async with (
            seam.metered(work, expected_tokens) as spent,
            seam.dispatcher.turn(ticket) as turn,
        ):
            work.queue_seconds = turn.queue_seconds
            run = Run(turn, work, gather=gather)
            self._runs.add(run)
            try:
                yield Started(queue_seconds=turn.queue_seconds)
                # The loop of AsyncLLM.generate(), over the collector that add_request() returns.
                with translated():
                    collector = await self.add_request(
                        request.request_id, request, request.params, prompt_text=prompt_text
                    )
                    run.watch(collector, work.deadline_seconds)
                    while not finished:
                        output = collector.get_nowait() or await collector.get()
                        finished = output.finished
                        if finished and gave_up(output):
                            # An answer that the engine gave up must not look complete.
                            raise Internal("the engine gave this request up; try again")
                        yield output
            finally:
                self._runs.discard(run)
                run.close()
                if ticket.first_token_seconds is not None:
                    spent.tokens = ticket.prompt_tokens + ticket.output_tokens
                if collector is not None:
                    collector.close()
                    if not finished and not self.errored:
                        await self.abort(collector.request_id, internal=True)

    async def _validated(
        self, prompt: Any, params: Any, request_id: str, options: dict[str, Any]
    ) -> tuple[Any, str | None]:
        """vLLM's own validation, before a turn is taken, as the engine's request."""
        if not isinstance(prompt, dict) or "type" not in prompt:
            raise InvalidRequest("prompts must be rendered before they reach the engine")
        if (reason := self._unsupported(params)) is not None:
            raise InvalidRequest(reason)
        request = self.input_processor.process_inputs(
            request_id,
            prompt,
            params,
            supported_tasks=await self.get_supported_tasks(),
            lora_request=options.get("lora_request"),
            tokenization_kwargs=options.get("tokenization_kwargs"),
            trace_headers=options.get("trace_headers"),
        )
        request.reasoning_ended = options.get("reasoning_ended")
        request.reasoning_parser_kwargs = options.get("reasoning_parser_kwargs")
        text = options.get("prompt_text")
        if text is None:
            text, _, _ = extract_prompt_components(self.model_config, prompt)
        return request, text

    def _unsupported(self, params: Any) -> str | None:
        if self._seam is None or isinstance(params, PoolingParams):
            return None
        return self._seam.unsupported(params)

    def _expected_tokens(self, ticket: Ticket) -> int:
        """What a request is taken to use until it is known; the rest of the context is no wish."""
        output = ticket.max_output_tokens
        if ticket.prompt_tokens + output >= self.model_config.max_model_len:
            output = min(output, UNLIMITED_ANSWER_TOKENS)
        return ticket.prompt_tokens + output * ticket.sequences

    def _ticket(self, request: Any, work: Work, *, streamed: bool) -> Ticket:
        params = request.sampling_params
        max_wait = work.max_wait_seconds
        return Ticket(
            tenant=work.tenant,
            work_class=work.work_class,
            request_id=work.request_id,
            prompt_tokens=len(request.prompt_token_ids or ()),
            max_output_tokens=0 if params is None else params.max_tokens,
            sequences=1 if params is None else params.n,
            streamed=streamed,
            part=work.part,
            arrived_seconds=work.arrived_seconds,
            wait_deadline_seconds=None if max_wait is None else work.arrived_seconds + max_wait,
            on_queued=work.told_position,
        )
