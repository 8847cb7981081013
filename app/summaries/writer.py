"""One engine call after another until there is a text: pieces in, checked sentences out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

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


class Watch:
    """What the calls of one request have in common: who is told when they wait, begin and speak.

    `accepted` is awaited at the first sign of life of any of them.
    """

    def __init__(
        self, accepted: Callable[[], Awaitable[None]], waiting: Callable[[int, float], None]
    ) -> None:
        self._accepted = accepted
        self.waiting = waiting
        self.queue_seconds: float | None = None
        self.first_piece_seconds: float | None = None
        self._seen = False

    async def sign_of_life(self) -> None:
        """Some call has got an event."""
        if not self._seen:
            self._seen = True
            await self._accepted()


class Writer:
    """Makes the calls of one request, all on behalf of the same work."""

    def __init__(self, engine: TextEngine, work: Work, watch: Watch) -> None:
        self._engine = engine
        self._work = work
        self._watch = watch

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
        async with aclosing(self._engine.generate(prompt, options, self._work)) as events:
            async for event in events:
                await self._watch.sign_of_life()
                text = ""
                match event:
                    case Queued():
                        self._watch.waiting(event.position, event.eta_seconds)
                    case Started():
                        self._started(event)
                    case Piece():
                        self._spoke()
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

    def _started(self, event: Started) -> None:
        if self._watch.queue_seconds is None:
            self._watch.queue_seconds = event.queue_seconds

    def _spoke(self) -> None:
        if self._watch.first_piece_seconds is None:
            self._watch.first_piece_seconds = time.monotonic() - self._work.arrived_seconds

    async def _usage_so_far(self, prompt: Prompt, said: list[str]) -> Usage:
        """Of a call that was ended early, which gets no `End`; cached tokens are not known then."""
        return Usage(
            prompt_tokens=len(prompt.token_ids),
            cached_tokens=0,
            completion_tokens=await self._engine.count("".join(said)),
        )
