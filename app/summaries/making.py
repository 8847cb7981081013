"""What all engine calls of one request share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.engine.api import Message, TextEngine
from app.errors import Draining, EngineDead, FairgateError, Internal, Loading, Refused, TimedOut
from app.summaries.draft import Draft
from app.summaries.exchange import Exchange
from app.summaries.gate import Gate
from app.summaries.jobs import Plan
from app.summaries.writer import Call, Writer, Written

# These end the whole request, whichever call they hit; any other is that call's own.
_FATAL = (EngineDead, Draining, Loading, TimedOut)

Show = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """The tools of one request, and its plan."""

    engine: TextEngine
    plan: Plan
    writer: Writer
    gate: Gate
    exchange: Exchange

    def ends_all(self, error: FairgateError) -> bool:
        """Whether `error` is one of the whole request, not of one call of it."""
        return not self.gate.is_open or isinstance(error, _FATAL)

    async def call(self, messages: list[Message], room_tokens: int) -> Call:
        """An engine call for `messages`; prompt and room fit the context together, whatever comes.

        Raises:
            Internal: the plan was wrong about the size of the prompt.
        """
        prompt = await self.engine.render(messages, model=self.plan.model)
        left = self.engine.model.context_tokens - len(prompt.token_ids)
        if left < 1:
            raise Internal("a part of the text came out longer than planned")
        return Call(prompt=prompt, max_tokens=min(room_tokens, left))

    async def write(
        self, call: Call, make_draft: Callable[[], Draft], show: Show | None = None
    ) -> Written:
        """The text of one call of several: made once more if it fails before anything was shown.

        Raises:
            FairgateError: it failed twice, was refused, or all is over.
        """
        shown = False

        async def note(text: str) -> None:
            nonlocal shown
            if show is not None:
                shown = True
                await show(text)

        try:
            return await self.writer.write(call, make_draft, note)
        except FairgateError as error:
            if shown or isinstance(error, Refused) or self.ends_all(error):
                raise
        return await self.writer.write(call, make_draft, show)
