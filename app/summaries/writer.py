"""One engine call after another until there is a text: pieces in, checked sentences out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from app.engine.api import End, Options, Piece, Prompt, Queued, Started, TextEngine, Usage, Work
from app.errors import Internal
from app.summaries.draft import Draft
from app.summaries.results import Cost, FinishReason

# A model that fell into a loop, or said nothing, is asked once more, less cautiously.
_SECOND_TRY_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One engine call to make: its prompt and its room for output fit the context together."""

    prompt: Prompt
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A text and how it ended; empty where two tries gave none."""

    text: str
    finish_reason: FinishReason
    truncated: bool
    cost: Cost


class Watch(Protocol):
    """Who is told when the calls of a request wait, begin and speak."""

    async def sign_of_life(self) -> None:
        """Some call has got an event: the request is accepted."""

    def waiting(self, position: int, eta_seconds: float) -> None:
        """A call waits for its turn; 1 is next."""

    def started(self, queue_seconds: float) -> None:
        """A call has got its turn."""

    def spoke(self) -> None:
        """A call has got text."""


class Writer:
    """Makes the calls of one request, all on behalf of the same work."""

    def __init__(self, engine: TextEngine, work: Work, watch: Watch) -> None:
        self._engine = engine
        self._work = work
        self._watch = watch
        self._called = False

    async def write(
        self,
        call: Call,
        make_draft: Callable[[], Draft],
        show: Callable[[str], Awaitable[None]] | None = None,
    ) -> Written:
        """The text that `call` leads to; each part of it is also handed to `show` as it is ready.

        Raises:
            FairgateError: as the engine's `generate`.
        """
        options = Options(max_tokens=call.max_tokens)
        written = await self._once(call.prompt, options, make_draft(), show)
        if written.text or written.truncated:
            return written
        options = replace(options, temperature=_SECOND_TRY_TEMPERATURE)
        again = await self._once(call.prompt, options, make_draft(), show)
        return replace(again, cost=written.cost + again.cost)

    async def _once(
        self,
        prompt: Prompt,
        options: Options,
        draft: Draft,
        show: Callable[[str], Awaitable[None]] | None,
    ) -> Written:
        end: End | None = None
        said: list[str] = []
        work = self._work_of_a_call()
        async with aclosing(self._engine.generate(prompt, options, work)) as events:
            async for event in events:
                await self._watch.sign_of_life()
                text = ""
                match event:
                    case Queued():
                        self._watch.waiting(event.position, event.eta_seconds)
                    case Started():
                        self._watch.started(event.queue_seconds)
                    case Piece():
                        self._watch.spoke()
                        said.append(event.text)
                        text = draft.add(event.text)
                    case End():
                        end = event
                        text = draft.finish(complete=event.finish_reason == "stop")
                if text and show is not None:
                    await show(text)
                if draft.enough:
                    break
        if end is None and not draft.enough:
            raise Internal("the engine ended its answer without an end")
        usage = end.usage if end else await self._usage_so_far(prompt, said)
        return Written(
            text=draft.text,
            finish_reason=draft.stopped or "stop",
            truncated=draft.truncated,
            cost=Cost(usage=usage, requests=1),
        )

    def _work_of_a_call(self) -> Work:
        """The request's own work for the first call, copies for the rest.

        A copy is a part of what was accepted with the first. The engine writes into a work how its
        call waited and failed; of the request, that is told by the first.
        """
        if self._called:
            return replace(
                self._work,
                part=True,
                on_queued=None,
                on_end=None,
                error=None,
                queue_seconds=None,
                waited=False,
            )
        self._called = True
        return self._work

    async def _usage_so_far(self, prompt: Prompt, said: list[str]) -> Usage:
        """Of a call that was ended early, which gets no `End`; cached tokens are not known then."""
        return Usage(
            prompt_tokens=len(prompt.token_ids),
            cached_tokens=0,
            completion_tokens=await self._engine.count("".join(said)),
        )
