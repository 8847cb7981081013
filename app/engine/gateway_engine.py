"""The one seam of admission: vLLM's `AsyncLLM` whose `generate()` and `encode()` take a turn first.

Whatever reaches the engine, through whichever API, passes `GatewayEngine.run()`: the request is
validated by vLLM's own input processor, stripped of what only the gateway may say (priority, rank,
cache salt, KV transfer), waits for its turn, and is observed where the engine emits, not where the
client pulls.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMValidationError
from vllm.pooling_params import PoolingParams
from vllm.renderers.inputs.preprocess import extract_prompt_components
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from app.admission.dispatcher import Dispatcher, Turn
from app.admission.ticket import Ticket
from app.engine.api import Started, Work, current_work
from app.errors import (
    ContextLengthExceeded,
    EngineDead,
    FairgateError,
    Internal,
    InvalidRequest,
    TimedOut,
)

# Lower is sooner under vLLM's `priority` scheduling policy.
PRIORITY = {"interactive": 0, "batch": 1}
ENGINE_DEAD = "the engine has died; this server is about to stop: try again on another one"


class Answered(GracefulHTTPError):
    """Carries one of our errors through vLLM's serving code; the wrapper around it answers."""

    def __init__(self, error: FairgateError) -> None:
        super().__init__(error.message, HTTPStatus.SERVICE_UNAVAILABLE)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """What `run()` needs of the house.

    `unsupported` names why the device cannot serve some sampling parameters, None where it can;
    `salt_secret` keys the prefix cache of each tenant.
    """

    dispatcher: Dispatcher
    salt_secret: bytes
    unsupported: Callable[[Any], str | None]


class Run:
    """One request inside the engine, watched at its collector; ends its turn with the engine."""

    __slots__ = ("_collector", "_forward", "_gathered", "_started", "_timer", "turn")

    def __init__(self, turn: Turn, *, gather: bool) -> None:
        self.turn = turn
        self._gathered: list[Any] | None = [] if gather else None
        self._started = False
        self._collector: Any = None
        self._forward: Callable[[Any], None] = lambda _: None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, collector: Any, deadline_seconds: float | None) -> None:
        """Observe every `put()` of `collector`, what it already holds included."""
        self._collector = collector
        self._forward = collector.put
        early, collector.output = collector.output, None
        collector.ready.clear()
        collector.put = self._put
        if early is not None:
            self._put(early)
        if deadline_seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, deadline_seconds - time.monotonic()), self.end_with, TimedOut(OUT_OF_TIME)
            )

    def end_with(self, error: Exception) -> None:
        """Give the reader `error` as the next thing it gets."""
        self._forward(error)

    def close(self) -> None:
        """Stop watching; the collector is done with."""
        if self._timer is not None:
            self._timer.cancel()
        if self._collector is not None:
            # An instance attribute over the method: leaving it would keep a reference cycle.
            del self._collector.put

    def _put(self, output: Any) -> None:
        """Per engine output: count, end the turn when the engine has, pass on."""
        if isinstance(output, Exception):
            self._forward(output)
            return
        if not self._started:
            self._started = True
            self.turn.first_token(cached_tokens=output.num_cached_tokens or 0)
        completions = getattr(output, "outputs", None)
        if isinstance(completions, list):
            count = 0
            for completion in completions:
                count += len(completion.token_ids)
            if count:
                self.turn.tokens(count)
        if output.finished:
            self.turn.finish()
        if self._gathered is None:
            self._forward(output)
        else:
            self._gather(output)

    def _gather(self, output: Any) -> None:
        """A reader that wants only the whole answer is woken only for that."""
        gathered = self._gathered
        assert gathered is not None  # noqa: S101 - the caller checked; this is for the type
        if not gathered:
            gathered.append(output)
        elif gathered[0] is not output:
            gathered[0].add(output, aggregate=True)
        if output.finished:
            self._forward(gathered.pop())


OUT_OF_TIME = "the answer took longer than this tenant's request_seconds"


class GatewayEngine(AsyncLLM):
    """vLLM's engine behind the gate; `open()` before the first request."""

    _seam: Seam | None = None

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
        with translated():
            request, prompt_text = await self._validated(prompt, params, request_id, options)
        gather = own(request, work, seam)
        ticket = self._ticket(request, work)
        collector: Any = None
        finished = False
        async with seam.dispatcher.turn(ticket) as turn:
            work.queue_seconds = turn.queue_seconds
            run = Run(turn, gather=gather)
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
                        if finished:
                            refuse_aborted(output)
                        yield output
            finally:
                self._runs.discard(run)
                run.close()
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

    def _ticket(self, request: Any, work: Work) -> Ticket:
        params = request.sampling_params
        max_wait = work.max_wait_seconds
        return Ticket(
            tenant=work.tenant,
            work_class=work.work_class,
            request_id=work.request_id,
            prompt_tokens=len(request.prompt_token_ids or ()),
            max_output_tokens=0 if params is None else params.max_tokens,
            sequences=1 if params is None else params.n,
            streamed=work.streamed,
            part=work.part,
            arrived_seconds=work.arrived_seconds,
            wait_deadline_seconds=None if max_wait is None else work.arrived_seconds + max_wait,
            on_queued=work.told_position,
        )


def own(request: Any, work: Work, seam: Seam) -> bool:
    """Overwrite what clients may not choose; returns whether the answer is wanted whole.

    A whole answer is asked of the engine in deltas too, so that its tokens count as they are made.
    """
    request.priority = PRIORITY[work.work_class]
    request.data_parallel_rank = None
    request.kv_hints = None
    request.session_id = None
    request.cache_salt = salted(seam.salt_secret, work.tenant, request.cache_salt)
    params = request.sampling_params
    if params is None:
        return False
    if params.extra_args:
        params.extra_args.pop("kv_transfer_params", None)
    if work.output_tokens_limit is not None:
        params.max_tokens = min(params.max_tokens, work.output_tokens_limit)
        params.min_tokens = min(params.min_tokens, params.max_tokens)
    if params.output_kind == RequestOutputKind.FINAL_ONLY:
        params.output_kind = RequestOutputKind.DELTA
        return True
    return False


def salted(secret: bytes, tenant: str, client_salt: str | None) -> str:
    """The prefix cache's salt: one tenant's entries are never another's, whatever it sends."""
    text = f"{len(tenant)}:{tenant}:{client_salt or ''}"
    return hmac.digest(secret, text.encode("utf-8", "surrogatepass"), "sha256").hex()


def refuse_aborted(output: Any) -> None:
    """An answer that the engine gave up must not look complete."""
    completions = getattr(output, "outputs", None)
    if isinstance(completions, list):
        for completion in completions:
            if completion.finish_reason in ("abort", "error"):
                raise Internal("the engine gave this request up; try again")


@contextmanager
def carried(work: Work) -> Iterator[None]:
    """Note our errors on `work` and carry them through vLLM's serving code."""
    try:
        yield
    except FairgateError as error:
        work.error = error
        raise Answered(error) from error


@contextmanager
def translated() -> Iterator[None]:
    """vLLM's errors as ours."""
    try:
        yield
    except (FairgateError, Answered):
        raise
    except EngineDeadError as error:
        raise EngineDead(ENGINE_DEAD) from error
    except VLLMValidationError as error:
        if error.parameter == "input_tokens" or "longer than the maximum model" in str(error):
            raise ContextLengthExceeded(str(error), param="input_tokens") from error
        raise InvalidRequest(str(error), param=error.parameter) from error
    except (VLLMClientError, ValueError, TypeError, OverflowError) as error:
        raise InvalidRequest(str(error)) from error
    except Exception as error:
        raise Internal("the engine failed on this request; try again") from error
