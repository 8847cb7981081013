"""`engine/api.py` on vLLM: conversations in, pieces of text out."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from vllm import SamplingParams
from vllm.renderers import ChatParams, TokenizeParams
from vllm.sampling_params import RequestOutputKind

from app.engine.api import (
    End,
    Event,
    Message,
    ModelInfo,
    Options,
    Piece,
    Prompt,
    Queued,
    Started,
    Timing,
    Usage,
    Work,
)
from app.engine.gateway_engine import GatewayEngine
from app.engine.vllm_errors import translated
from app.errors import ContextLengthExceeded, InvalidRequest, NotFound

# Invisible, and no tokenizer joins it with its neighbours into a control token.
ZERO_WIDTH_SPACE = "\u200b"
# No limit here: the length is checked against the context with our own error.
AS_IT_IS = TokenizeParams(max_total_tokens=None, add_special_tokens=False)


class VllmText:
    """Text in and out of a `GatewayEngine`; one object for all callers.

    `models` is vLLM's own registry of the base model and its adapters; `chat` says how prompts are
    rendered (template, content format, default template arguments).
    """

    def __init__(self, engine: GatewayEngine, models: Any, chat: ChatParams) -> None:
        self._engine = engine
        self._models = models
        self._chat = chat
        self._markers = control_markers(engine.get_tokenizer())
        self._has_template = self._chat.chat_template is not None or has_template(
            engine.get_tokenizer()
        )

    @property
    def model(self) -> ModelInfo:
        """The base model under its first served name, and its adapters."""
        return ModelInfo(
            name=self._models.base_model_paths[0].name,
            context_tokens=self._engine.model_config.max_model_len,
            adapters=tuple(self._models.lora_requests),
        )

    async def render(self, messages: Sequence[Message], *, model: str | None = None) -> Prompt:
        """See `TextEngine.render`; the template runs on the renderer's threads."""
        self._adapter(model)
        clean = [
            {"role": message.role, "content": self._neutral(message.content)}
            for message in messages
        ]
        renderer = self._engine.renderer
        with translated():
            if self._has_template:
                _, (rendered,) = await renderer.render_chat_async([clean], self._chat, AS_IT_IS)
                token_ids = rendered["prompt_token_ids"]
            else:
                token_ids = await self._tokenise("\n\n".join(m["content"] for m in clean), AS_IT_IS)
        if not token_ids:
            raise InvalidRequest("the prompt is empty: send some text")
        return Prompt(token_ids=token_ids, model=model)

    async def count(self, text: str) -> int:
        """Tokens of `text` alone, control-token markers counted as the text they are."""
        with translated():
            return len(await self._tokenise(self._neutral(text), AS_IT_IS))

    async def generate(
        self, prompt: Prompt, options: Options, work: Work
    ) -> AsyncGenerator[Event, None]:
        """See `TextEngine.generate`."""
        context = self._engine.model_config.max_model_len
        used = len(prompt.token_ids)
        if used >= context:
            raise ContextLengthExceeded(
                f"the prompt has {used} tokens and the model's context is {context}: "
                "shorten it so that an answer fits too",
                param="input_tokens",
            )
        params = self._sampling(options, context - used)
        board = QueueBoard(work)
        outputs = self._engine.run(
            {"type": "token", "prompt_token_ids": list(prompt.token_ids)},
            params,
            f"{work.api}-{uuid.uuid4().hex}",
            work,
            lora_request=self._adapter(prompt.model),
        )
        async with aclosing(outputs):
            async for queued in board.until_started(outputs):
                yield queued
            yield Started(queue_seconds=work.queue_seconds or 0.0)
            async with aclosing(pieces(outputs, work)) as events:
                async for event in events:
                    yield event

    def _sampling(self, options: Options, room_tokens: int) -> SamplingParams:
        defaults = self._engine.model_config.get_diff_sampling_param()
        asked = {
            "temperature": options.temperature,
            "top_p": options.top_p,
            "seed": options.seed,
            "stop": list(options.stop) or None,
        }
        values = defaults | {name: value for name, value in asked.items() if value is not None}
        values["max_tokens"] = max(1, min(options.max_tokens, room_tokens))
        with translated():
            return SamplingParams(**values, output_kind=RequestOutputKind.DELTA)

    def _adapter(self, model: str | None) -> Any:
        """The LoRA request for `model`, None for the base model."""
        if model is None or model in {path.name for path in self._models.base_model_paths}:
            return None
        if (adapter := self._models.lora_requests.get(model)) is not None:
            return adapter
        raise NotFound(f"no model {model!r} here; /v1/models lists what there is", param="model")

    def _neutral(self, text: str) -> str:
        """Text in which nothing is a control token: a marker gets an invisible character inside."""
        text = text.encode("utf-8", "replace").decode() if not text.isascii() else text
        for marker in self._markers:
            if marker in text:
                text = text.replace(marker, marker[0] + ZERO_WIDTH_SPACE + marker[1:])
        return text

    async def _tokenise(self, text: str, params: TokenizeParams) -> list[int]:
        if not text:
            return []
        prompt = await self._engine.renderer.tokenize_prompt_async({"prompt": text}, params)
        token_ids: list[int] = prompt["prompt_token_ids"]
        return token_ids


def text_engine(engine: GatewayEngine, state: Any) -> VllmText:
    """The text engine over vLLM's own API state, so that all APIs render alike."""
    online = state.online_renderer
    chat = ChatParams(
        chat_template=online.chat_template,
        chat_template_content_format=online.chat_template_content_format,
        chat_template_kwargs={"add_generation_prompt": True, **online.default_chat_template_kwargs},
    )
    return VllmText(engine, state.openai_serving_models, chat)


class QueueBoard:
    """Turns the seam's calls about the queue into events of the waiting generator."""

    def __init__(self, work: Work) -> None:
        self._latest: Queued | None = None
        self._changed = asyncio.Event()
        self._told = work.on_queued
        work.on_queued = self._post

    def _post(self, position: int, eta_seconds: float) -> None:
        self._latest = Queued(position=position, eta_seconds=eta_seconds)
        self._changed.set()
        if self._told is not None:
            self._told(position, eta_seconds)

    async def until_started(
        self, outputs: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Queued, None]:
        """Yield `Queued` until the first item of `outputs` is there, and swallow that one."""
        first = asyncio.ensure_future(anext(outputs))
        first.add_done_callback(lambda _: self._changed.set())
        try:
            while not first.done():
                await self._changed.wait()
                self._changed.clear()
                if self._latest is not None and not first.done():
                    latest, self._latest = self._latest, None
                    yield latest
            first.result()
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait([first])


async def pieces(outputs: AsyncGenerator[Any, None], work: Work) -> AsyncGenerator[Event, None]:
    """vLLM's outputs as `Piece`s and one `End`."""
    first_seconds: float | None = None
    completion_tokens = cached_tokens = 0
    async for output in outputs:
        (completion,) = output.outputs
        completion_tokens += len(completion.token_ids)
        if first_seconds is None and completion_tokens:
            first_seconds = time.monotonic() - work.arrived_seconds
            cached_tokens = output.num_cached_tokens or 0
        if completion.text:
            yield Piece(completion.text)
        if output.finished:
            total_seconds = time.monotonic() - work.arrived_seconds
            yield End(
                finish_reason="length" if completion.finish_reason == "length" else "stop",
                usage=Usage(
                    prompt_tokens=len(output.prompt_token_ids),
                    cached_tokens=cached_tokens,
                    completion_tokens=completion_tokens,
                ),
                timing=Timing(
                    queue_seconds=work.queue_seconds or 0.0,
                    ttft_seconds=first_seconds if first_seconds is not None else total_seconds,
                    total_seconds=total_seconds,
                ),
            )


def control_markers(tokenizer: Any) -> tuple[str, ...]:
    """The strings that this tokenizer turns into control tokens, longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    markers = {str(token) for token in added.values() if getattr(token, "special", False)}
    markers |= set(getattr(tokenizer, "all_special_tokens", ()))
    return tuple(sorted((m for m in markers if len(m) > 1), key=len, reverse=True))


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer carries a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))
