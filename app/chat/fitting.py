"""Makes a conversation fit into the model's context by forgetting its oldest turns."""

from __future__ import annotations

from dataclasses import dataclass

from app.chat.history import History
from app.engine.api import Prompt, TextEngine

ANSWER_SHARE = 4  # at least a quarter of the context is left to the answer, if it asks for as much
SLACK_SHARE = 8  # once something must go, an eighth more goes: see `fit`


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A rendered prompt, and how many of the oldest turns it leaves out."""

    prompt: Prompt
    forgotten: int


async def fit(
    engine: TextEngine, history: History, content: str, *, model: str | None, max_tokens: int
) -> Fitted:
    """Render `history` with `content` said next, without as many of the oldest turns as it takes.

    Forgetting a turn changes the prompt right after the system message, so nothing behind it is
    found in the prefix cache. Therefore a little more is forgotten than must be: the turns that
    follow then keep their prefix. What does not fit even without any history is left to the engine
    to refuse.
    """

    async def render(without: int) -> Prompt:
        return await engine.render(history.messages(content, without=without), model=model)

    context = engine.model.context_tokens
    room = context - min(max_tokens, context // ANSWER_SHARE)
    prompt = await render(0)
    if len(prompt.token_ids) <= room or not history:
        return Fitted(prompt=prompt, forgotten=0)
    goal = room - context // SLACK_SHARE
    fewest, most = 1, len(history)
    best, prompt = most, await render(most)
    if len(prompt.token_ids) > goal:
        # The system message and the new one alone are too long for any slack.
        goal = room
    while fewest < best:
        middle = (fewest + best) // 2
        shorter = await render(middle)
        if len(shorter.token_ids) <= goal:
            best, prompt = middle, shorter
        else:
            fewest = middle + 1
    return Fitted(prompt=prompt, forgotten=best)
