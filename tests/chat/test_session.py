"""The session as a state machine: no socket, no engine, time is a number."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chat.limits import ChatLimits
from app.chat.options import GivenOptions
from app.chat.protocol import Say, Start
from app.chat.session import Session
from app.engine.api import End, Message, ModelInfo, Timing, Usage
from app.errors import Busy, Internal, InvalidFrame, NotFound, QueueFull, SessionNotFound
from app.tenants.model import Limits, Tenant

MODEL = ModelInfo(name="base-model", context_tokens=100, adapters=("poet",))
USAGE = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=2)
END = End(
    finish_reason="stop",
    usage=USAGE,
    timing=Timing(queue_seconds=0.1, ttft_seconds=0.2, total_seconds=0.3),
)


def a_session(tenant: Tenant | None = None, **limits: Any) -> Session:
    tenant = tenant or Tenant(id="acme")
    return Session(session_id="s", tenant=tenant, model=MODEL, limits=ChatLimits(**limits))


def say(turn: str = "a", content: str = "Hi") -> Say:
    return Say(id=turn, content=content, options=GivenOptions())


def read(frame: str | None) -> dict[str, Any]:
    assert frame is not None
    fields: dict[str, Any] = json.loads(frame)
    return fields


def told(session: Session, content: str = "Next?") -> list[str]:
    return [message.content for message in session.history.messages(content)]


def test_one_turn_at_a_time() -> None:
    session = a_session()
    session.begin(say("a"), 0.0)
    with pytest.raises(Busy):
        session.begin(say("b"), 0.0)
    session.done(END)
    session.begin(say("b"), 0.0)


def test_a_done_turn_is_history_and_a_failed_one_never_happened() -> None:
    session = a_session()
    session.begin(say("a", "One?"), 0.0)
    session.delta("Yes", 1.0)
    session.done(END)
    session.begin(say("b", "Two?"), 2.0)
    session.delta("We", 3.0)
    session.failed(Internal("broke"))
    assert told(session) == ["One?", "Yes", "Next?"]


def test_a_stopped_turn_keeps_what_was_said_if_anything_was() -> None:
    session = a_session()
    session.begin(say("a", "One?"), 10.0)
    session.started(0.5)
    session.delta("As I ", 12.0)
    session.delta("said", 13.0)
    done = read(session.stopped(USAGE, 14.0))
    assert done["finish_reason"] == "stopped"
    assert done["timing"] == {"queue_seconds": 0.5, "ttft_seconds": 2.0, "total_seconds": 4.0}
    session.begin(say("b", "Two?"), 20.0)
    done = read(session.stopped(USAGE, 23.0))
    assert done["timing"] == {"queue_seconds": 3.0, "ttft_seconds": 3.0, "total_seconds": 3.0}
    assert told(session) == ["One?", "As I said", "Next?"]


def test_an_empty_answer_is_an_answer() -> None:
    session = a_session()
    session.begin(say("a", "One?"), 0.0)
    session.done(END)
    assert told(session) == ["One?", "", "Next?"]


def test_stop_knows_the_running_and_the_last_turn() -> None:
    session = a_session()
    with pytest.raises(NotFound):
        session.stops("a")
    session.begin(say("a"), 0.0)
    assert session.stops("a")
    with pytest.raises(NotFound):
        session.stops("b")
    session.done(END)
    assert not session.stops("a")


def test_start_only_before_the_first_message() -> None:
    session = a_session()
    start = Start(system="S", history=(), model="poet", options=GivenOptions())
    assert read(session.start(start))["model"] == "poet"
    session.begin(say(), 0.0)
    with pytest.raises(InvalidFrame):
        session.start(start)


def test_a_refused_start_changes_nothing() -> None:
    session = a_session()
    bad = Start(system="S", history=(), model="nobody", options=GivenOptions(seed=1))
    with pytest.raises(NotFound):
        session.start(bad)
    assert read(session.ready())["model"] == "base-model"
    assert told(session) == ["Next?"]
    assert session.begin(say(), 0.0).options.seed is None


@pytest.mark.parametrize(
    ("asked", "limit", "got"),
    [(None, None, 1024), (None, 50, 50), (60, 50, 50), (40, 50, 40), (5000, None, 5000)],
)
def test_max_tokens(asked: int | None, limit: int | None, got: int) -> None:
    session = a_session(Tenant(id="acme", limits=Limits(output_tokens=limit)))
    frame = Say(id="a", content="", options=GivenOptions(max_tokens=asked))
    assert session.begin(frame, 0.0).options.max_tokens == got


def test_errors_count_but_do_not_end_a_turn() -> None:
    session = a_session()
    session.begin(say("a"), 0.0)
    error = read(session.error(QueueFull("full", retry_after_seconds=2.1), "b"))
    assert error == {
        "type": "error",
        "seq": 1,
        "code": "queue_full",
        "id": "b",
        "message": "full",
        "retry_after_seconds": 3,
    }
    assert session.turn is not None


def test_nothing_can_be_said_without_a_turn() -> None:
    with pytest.raises(RuntimeError):
        a_session().delta("x", 0.0)


class TestQueueReports:
    def test_at_once_then_twice_a_second_then_the_last(self) -> None:
        session = a_session()
        turn = session.begin(say(), 0.0)
        reports = []
        for tenth in range(21):
            turn.reports.changed(30 - tenth, 1.0)
            frame = session.queue_report(tenth / 10)
            if frame is not None:
                reports.append((tenth, read(frame)["position"]))
        assert reports == [(0, 30), (5, 25), (10, 20), (15, 15), (20, 10)]

    def test_far_back_every_five_seconds(self) -> None:
        session = a_session()
        turn = session.begin(say(), 0.0)
        turn.reports.changed(900, float("inf"))
        assert read(session.queue_report(0.0))["eta_seconds"] is None
        turn.reports.changed(800, 60.0)
        assert session.queue_report(4.9) is None
        assert turn.reports.due_in(4.0) == 1.0
        assert read(session.queue_report(5.0))["position"] == 800
        turn.reports.changed(40, 5.0)
        assert read(session.queue_report(5.5))["position"] == 40

    def test_an_unchanged_place_is_no_news(self) -> None:
        session = a_session()
        turn = session.begin(say(), 0.0)
        assert session.queue_report(0.0) is None
        turn.reports.changed(3, 2.0)
        assert session.queue_report(0.0) is not None
        turn.reports.changed(3, 1.0)
        assert session.queue_report(9.0) is None


MOVES = st.sampled_from(["say", "delta", "delta", "delta", "done", "stop", "fail", "bad", "start"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(MOVES, TEXTS), max_size=60), st.data())
def test_whatever_was_numbered_can_be_heard_again(
    moves: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Numbers have no gaps; of this turn and the last, what was missed is what was said."""
    session, began = a_session(), [0, 0]
    sent: list[str] = []
    for move, text in moves:
        turn = session.turn
        if move == "say" and turn is None:
            session.begin(say(text, text), 0.0)
            began.append(len(sent))
        elif move == "bad":
            sent.append(session.error(InvalidFrame(text), text))
        elif turn is None:
            continue
        elif move == "start" and turn.queue_seconds is None:
            sent.append(session.started(0.0))
        elif move == "delta":
            sent.append(session.delta(text, 1.0))
        elif move == "done":
            sent.append(session.done(END))
        elif move == "stop":
            sent.append(session.stopped(USAGE, 2.0))
        elif move == "fail":
            sent.append(session.failed(Internal(text)))
    assert [read(frame)["seq"] for frame in sent] == list(range(1, len(sent) + 1))
    after = data.draw(st.integers(began[-2], len(sent)))
    assert list(session.missed(after)) == sent[after:]
    for forgotten in range(began[-2]):
        with pytest.raises(SessionNotFound):
            session.missed(forgotten)


def test_history_begins_with_whoever_spoke_first() -> None:
    session = a_session()
    history = (
        Message(role="assistant", content="Welcome."),
        Message(role="user", content="One?"),
        Message(role="user", content="Two?"),
        Message(role="assistant", content="Three."),
    )
    session.start(Start(system=None, history=history, model=None, options=GivenOptions()))
    assert len(session.history) == 3
    session.history.forget(2)
    assert told(session) == ["Two?", "Three.", "Next?"]
