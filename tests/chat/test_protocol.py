"""Frames of clients: any text is read or refused with one domain error, never anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chat import frames, protocol
from app.chat.options import GivenOptions
from app.chat.protocol import Ping, Resume, Say, Start, Stop, decode, read, speaks_sessions
from app.chat.text import clean
from app.engine.api import Message
from app.errors import InvalidFrame, InvalidRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
FIELDS = {
    "type": st.sampled_from(["hello", "start", "message", "stop", "resume", "ping"]) | JSON,
    "id": st.text(max_size=5) | JSON,
    "content": st.text(max_size=5) | JSON,
    "history": JSON,
    "system": JSON,
    "model": JSON,
    "session": JSON,
    "after": JSON,
    "key": JSON,
    "options": JSON
    | st.fixed_dictionaries(
        {},
        optional={
            "max_tokens": JSON,
            "temperature": JSON,
            "top_p": JSON,
            "seed": JSON,
            "stop": JSON | st.lists(st.text(max_size=3), max_size=3),
        },
    ),
}


def hear(text: str) -> Any:
    """The frame, or the class of the error."""
    try:
        fields = decode(text)
        protocol.frame_id(fields)
        return read(fields)
    except (InvalidFrame, InvalidRequest) as problem:
        problem.message.encode()
        return type(problem)


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    hear(text)
    assert speaks_sessions(text) in (True, False)


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_any_object_is_read_or_refused(fields: dict[str, Any]) -> None:
    text = json.dumps(fields)
    frame = hear(text)
    assert speaks_sessions(text) == ("type" in fields)
    if isinstance(frame, Say | Start):
        for part in json.loads(json.dumps([str(frame)])):
            assert part.encode()


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters()))
def test_cleaned_text_can_be_encoded_and_good_text_is_left_alone(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert clean(cleaned) == cleaned
    try:
        text.encode()
    except UnicodeEncodeError:
        assert "\ufffd" in cleaned or cleaned != text
    else:
        assert cleaned == text


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**40))
def test_a_delta_is_the_json_of_its_fields(text: str, seq: int) -> None:
    frame = frames.delta(frames.delta_prefix(text), seq, text)
    fields = {"type": "delta", "id": text, "seq": seq, "text": text}
    assert json.loads(frame) == fields
    assert list(json.loads(frame)) == list(fields)


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ('{"type":"ping","extra":1}', Ping()),
        ('{"type":"stop","id":"a"}', Stop("a")),
        ('{"type":"resume","session":"s","after":0}', Resume("s", 0)),
        (
            '{"type":"message","id":"a","content":"x","options":null}',
            Say(id="a", content="x", options=GivenOptions()),
        ),
        (
            '{"type":"message","id":"a","content":"x","options":{"stop":"q","seed":-1,"top_p":1}}',
            Say(id="a", content="x", options=GivenOptions(stop=("q",), seed=-1, top_p=1.0)),
        ),
        (
            '{"type":"start","history":[{"role":"system","content":"S"}]}',
            Start(system="S", history=(), model=None, options=GivenOptions()),
        ),
        (
            '{"type":"start","system":null,"history":[{"role":"user","content":'
            '[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}',
            Start(
                system=None,
                history=(Message(role="user", content="ab"),),
                model=None,
                options=GivenOptions(),
            ),
        ),
    ],
)
def test_good_frames(text: str, frame: object) -> None:
    assert hear(text) == frame


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"type":"message","id":"a","content":"x","options":{"max_tokens":true}}', InvalidFrame),
        (
            '{"type":"message","id":"a","content":"x","options":{"temperature":1e999}}',
            InvalidRequest,
        ),
        ('{"type":"message","id":"a","content":"x","options":{"stop":["a",1]}}', InvalidFrame),
        ('{"type":"message","id":"a","content":"x","options":{"seed":1.0}}', InvalidFrame),
        ('{"type":"message","id":"' + "a" * 257 + '","content":"x"}', InvalidFrame),
        ('{"type":"start","system":"S","history":[{"role":"system","content":"T"}]}', InvalidFrame),
        ('{"type":"start","history":[{"role":"tool","content":"T"}]}', InvalidFrame),
        ('{"type":"start","history":["x"]}', InvalidFrame),
        ('{"type":"resume","session":"s","after":true}', InvalidFrame),
        ('{"type":"ping","x":' + "1" * 5000 + "}", InvalidFrame),
        ('{"type":"ping","x":-Infinity}', InvalidFrame),
        ('\ufeff{"type":"ping"}', InvalidFrame),
    ],
)
def test_bad_frames(text: str, problem: type[Exception]) -> None:
    assert hear(text) is problem


def test_an_error_names_the_field() -> None:
    with pytest.raises(InvalidFrame) as caught:
        read(decode('{"type":"start","history":[{"role":"user","content":"a"},{"role":"user"}]}'))
    assert caught.value.param == "history[1].content"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"type":"nonsense"}', True),
        (' \n{"type":1}', True),
        ('{"a":' * 5000, True),
        ('{"type"', False),
        ('{"kind":"ping"}', False),
        ('["type"]', False),
        ("type", False),
    ],
)
def test_what_makes_session_mode(text: str, expected: object) -> None:
    assert speaks_sessions(text) is expected


def test_seconds_are_always_json() -> None:
    for seconds in (float("nan"), float("inf"), -1.0):
        json.loads(frames.started("a", 1, seconds), parse_constant=pytest.fail)
