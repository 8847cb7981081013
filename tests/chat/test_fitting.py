"""Conversations are made to fit into the context, from the oldest turn on."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.chat.fitting import ANSWER_SHARE, fit
from app.chat.history import History
from app.engine.api import Message
from tests.scripted_engine import ScriptedEngine, ScriptedPrompt


def conversation(*lengths: int, system: str | None = "S") -> History:
    history = History(system)
    for number, length in enumerate(lengths):
        history.add(f"q{number}", "w " * length)
    return history


async def test_what_fits_is_left_alone() -> None:
    engine = ScriptedEngine(context_tokens=100)
    fitted = await fit(engine, conversation(5, 5), "Hi", model=None, max_tokens=20)
    assert fitted.forgotten == 0
    assert len(engine.rendered) == 1


async def test_the_system_message_and_the_new_one_stay() -> None:
    engine = ScriptedEngine(context_tokens=60)
    fitted = await fit(engine, conversation(20, 20, 20), "Hi", model=None, max_tokens=1000)
    assert isinstance(fitted.prompt, ScriptedPrompt)
    kept = fitted.prompt.messages
    assert kept[0] == Message(role="system", content="S")
    assert kept[1].content == f"q{fitted.forgotten}"
    assert kept[-1] == Message(role="user", content="Hi")
    assert len(fitted.prompt.token_ids) <= 60 - 60 // ANSWER_SHARE


async def test_after_forgetting_the_next_turns_keep_their_prefix() -> None:
    """Else each turn of a long chat would change its prompt behind the system message."""
    engine = ScriptedEngine(context_tokens=400)
    history = conversation()
    forgot = []
    for number in range(60):
        fitted = await fit(engine, history, f"q{number}", model=None, max_tokens=40)
        history.forget(fitted.forgotten)
        history.add(f"q{number}", "w " * 10)
        forgot.append(fitted.forgotten)
    steady = forgot[30:]
    assert 0 < sum(1 for turns in steady if turns) <= len(steady) / 3


async def test_a_message_too_long_by_itself_is_the_engines_to_refuse() -> None:
    engine = ScriptedEngine(context_tokens=50)
    fitted = await fit(engine, conversation(5), "w " * 80, model=None, max_tokens=10)
    assert fitted.forgotten == 1
    assert len(fitted.prompt.token_ids) > 50


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 60), st.integers(1, 100))
async def test_it_fits_if_anything_fits_and_nothing_is_forgotten_without_need(
    lengths: list[int], content: int, max_tokens: int
) -> None:
    engine, context = ScriptedEngine(context_tokens=120), 120
    history, message = conversation(*lengths), "w " * content
    room = context - min(max_tokens, context // ANSWER_SHARE)

    async def size(without: int) -> int:
        return len((await engine.render(history.messages(message, without=without))).token_ids)

    fitted = await fit(engine, history, message, model=None, max_tokens=max_tokens)
    renders = len(engine.rendered)
    assert len(fitted.prompt.token_ids) == await size(fitted.forgotten)
    assert await size(fitted.forgotten) <= room or await size(len(lengths)) > room
    assert (fitted.forgotten == 0) == (await size(0) <= room or not lengths)
    assert renders <= 8


async def test_a_huge_history_is_not_rendered_to_find_out_that_it_is_too_long() -> None:
    engine = ScriptedEngine(context_tokens=100)
    history = conversation(*[1000] * 500, 10, 10)
    fitted = await fit(engine, history, "Hi", model=None, max_tokens=10)
    assert fitted.forgotten == 500
    assert max(len(messages) for messages in engine.rendered) < 10


async def test_it_takes_few_renders_to_find_what_fits() -> None:
    engine = ScriptedEngine(context_tokens=1000)
    fitted = await fit(engine, conversation(*[20] * 400), "Hi", model=None, max_tokens=100)
    assert len(engine.rendered) <= 4
    assert 600 <= len(fitted.prompt.token_ids) <= 900
