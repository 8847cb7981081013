"""The second implementation of `engine/api.py`: answers are scripts, delays are events.

A script is a sequence of steps: a `str` is one piece of text (and one token), an `asyncio.Event` is
waited for, an exception is raised, `Queued(...)` is reported, `STARTED` says that waiting is over
(it comes by itself before the first piece, `FOREVER` or the end, so what stands before happens
while the request waits), `FOREVER` never ends, `End(...)` replaces the end that is made up.

    engine = ScriptedEngine()
    engine.script("Hel", "lo")                      # the next answer; scripts are used in order
    engine.answer = lambda call: ["a", "b"]         # every answer without a script of its own
    engine.calls[0].options, engine.calls[0].closed # what was asked, and how it ended
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

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
from app.errors import ContextLengthExceeded, NotFound


class Mark(Enum):
    """Steps without a value."""

    STARTED = "the wait is over"
    FOREVER = "only closing the generator gets past this"


STARTED = Mark.STARTED
FOREVER = Mark.FOREVER

Step = str | asyncio.Event | BaseException | Queued | End | Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedPrompt(Prompt):
    """A prompt that remembers the conversation it was made of."""

    messages: tuple[Message, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One `generate()`: what it was asked, and how far it came.

    `ended` is None while the generator is open; `closed` says that the consumer closed it early.
    """

    prompt: Prompt
    options: Options
    work: Work
    pieces: list[str] = field(default_factory=list)
    ended: Literal["finished", "failed", "closed"] | None = None
    started: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    first_seconds: float | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation that was rendered into the prompt."""
        return self.prompt.messages if isinstance(self.prompt, ScriptedPrompt) else ()

    @property
    def closed(self) -> bool:
        """True once the consumer has closed the generator before its end."""
        return self.ended == "closed"


def words(text: str) -> list[str]:
    """The scripted tokenizer: one token a word."""
    return text.split()


class ScriptedEngine:
    """A `TextEngine` that says what it is told to; a message costs one token beside its words."""

    def __init__(
        self,
        *,
        name: str = "scripted",
        adapters: tuple[str, ...] = (),
        context_tokens: int = 2048,
        tokenize: Callable[[str], list[str]] = words,
    ) -> None:
        self._model = ModelInfo(name=name, context_tokens=context_tokens, adapters=adapters)
        self._tokenize = tokenize
        self._vocabulary: dict[str, int] = {}
        self._scripts: deque[tuple[Step, ...]] = deque()
        self.answer: Callable[[Call], Iterable[Step]] = lambda _: ("Hello", ", ", "world", ".")
        self.render_error: BaseException | None = None
        self.calls: list[Call] = []
        self.rendered: list[tuple[Message, ...]] = []
        self.most_at_once = 0
        self._called = asyncio.Condition()

    def script(self, *steps: Step) -> None:
        """Use `steps` for the next answer that has no script yet."""
        self._scripts.append(steps)

    @property
    def model(self) -> ModelInfo:
        """The model as it was built."""
        return self._model

    @property
    def running(self) -> list[Call]:
        """Calls whose generators are open."""
        return [call for call in self.calls if call.ended is None]

    async def nth_call(self, index: int) -> Call:
        """Wait until the call with this index has begun."""
        async with self._called:
            await self._called.wait_for(lambda: len(self.calls) > index)
        return self.calls[index]

    async def render(self, messages: Sequence[Message], *, model: str | None = None) -> Prompt:
        """Tokens of all contents, and one for each message."""
        await asyncio.sleep(0)
        if self.render_error is not None:
            raise self.render_error
        if model is not None and model not in (self._model.name, *self._model.adapters):
            raise NotFound(f"the model {model!r} does not exist", param="model")
        self.rendered.append(tuple(messages))
        tokens = [token for m in messages for token in (f"<{m.role}>", *self._tokenize(m.content))]
        ids = [self._vocabulary.setdefault(token, len(self._vocabulary)) for token in tokens]
        return ScriptedPrompt(token_ids=ids, model=model, messages=tuple(messages))

    async def count(self, text: str) -> int:
        """Tokens of `text` alone."""
        await asyncio.sleep(0)
        return len(self._tokenize(text))

    async def generate(
        self, prompt: Prompt, options: Options, work: Work
    ) -> AsyncGenerator[Event, None]:
        """Play the next script, at most `max_tokens` pieces of it."""
        prompt_tokens, context = len(prompt.token_ids), self._model.context_tokens
        if prompt_tokens >= context:
            raise ContextLengthExceeded(
                f"the prompt has {prompt_tokens} tokens, the context {context}",
                param="input_tokens",
            )
        call = Call(prompt=prompt, options=options, work=work)
        async with self._called:
            self.calls.append(call)
            self._called.notify_all()
        self.most_at_once = max(self.most_at_once, len(self.running))
        try:
            async with aclosing(self._play(call)) as events:
                async for event in events:
                    yield event
            call.ended = "finished"
        except (GeneratorExit, asyncio.CancelledError):
            call.ended = "closed"
            raise
        except BaseException:
            call.ended = "failed"
            raise
        finally:
            call.over.set()

    async def _play(self, call: Call) -> AsyncGenerator[Event, None]:
        script = self._scripts.popleft() if self._scripts else tuple(self.answer(call))
        limit, cut = self._most_tokens(call), False
        for step in script:
            await asyncio.sleep(0)
            if isinstance(step, str | Mark) and not call.started:
                yield self._start(call)
            if isinstance(step, str):
                if len(call.pieces) >= limit:
                    cut = True
                    break
                call.pieces.append(step)
                call.work.completion_tokens += 1
                call.first_seconds = call.first_seconds or time.monotonic()
                yield Piece(step)
            elif isinstance(step, End):
                yield step
                return
            elif isinstance(step, Queued):
                call.work.told_position(step.position, step.eta_seconds)
                yield step
            else:
                await self._linger(step)
        if not call.started:
            yield self._start(call)
        yield self._end(call, "length" if cut else "stop")

    @staticmethod
    async def _linger(step: asyncio.Event | BaseException | Mark) -> None:
        if isinstance(step, BaseException):
            raise step
        if step is FOREVER:
            await asyncio.Event().wait()
        if isinstance(step, asyncio.Event):
            await step.wait()

    def _most_tokens(self, call: Call) -> int:
        room = self._model.context_tokens - len(call.prompt.token_ids)
        limit = call.work.output_tokens_limit
        return min(call.options.max_tokens, room, room if limit is None else limit)

    @staticmethod
    def _start(call: Call) -> Started:
        call.started = True
        call.work.queue_seconds = time.monotonic() - call.work.arrived_seconds
        return Started(queue_seconds=call.work.queue_seconds)

    @staticmethod
    def _end(call: Call, reason: Literal["stop", "length"]) -> End:
        now, arrived = time.monotonic(), call.work.arrived_seconds
        return End(
            finish_reason=reason,
            usage=Usage(
                prompt_tokens=len(call.prompt.token_ids),
                cached_tokens=0,
                completion_tokens=len(call.pieces),
            ),
            timing=Timing(
                queue_seconds=call.work.queue_seconds or 0.0,
                ttft_seconds=(call.first_seconds or now) - arrived,
                total_seconds=now - arrived,
            ),
        )
