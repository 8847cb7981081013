"""Makes a conversation fit into the model's context by forgetting its oldest turns."""

from __future__ import annotations

from dataclasses import dataclass

from app.chat.history import History
from app.engine.api import Prompt, TextEngine

ANSWER_SHARE = 4  # at least a quarter of the context is left to the answer, if it asks for as much
SLACK_SHARE = 8  # once something must go, an eighth more goes: see `fit`
CHARACTERS_PER_TOKEN = 32  # more than text has: what is longer by this count is not even rendered
TRUSTED_GUESSES = 3


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
    context = engine.model.context_tokens
    room = context - min(max_tokens, context // ANSWER_SHARE)
    goal = room - context // SLACK_SHARE
    sizes = [size + len(content) for size in history.sizes()]
    without = _first(sizes, context * CHARACTERS_PER_TOKEN)
    prompt = await engine.render(history.messages(content, without=without), model=model)
    if not without and len(prompt.token_ids) <= room:
        goal = room
    tries = 0
    while len(prompt.token_ids) > goal and without < len(history):
        # As many characters as made `goal` tokens last time; where that misleads, half of the rest.
        guess = _first(sizes, sizes[without] * goal // len(prompt.token_ids))
        half = (without + len(history) + 1) // 2
        without = max(without + 1, guess, half if tries >= TRUSTED_GUESSES else 0)
        prompt = await engine.render(history.messages(content, without=without), model=model)
        tries += 1
    return Fitted(prompt=prompt, forgotten=without)


def _first(sizes: list[int], most: int) -> int:
    """The first index whose size is at most `most`, or the last."""
    return next((index for index, size in enumerate(sizes) if size <= most), len(sizes) - 1)
