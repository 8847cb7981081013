"""The main job on the real engine and the real small model, with the clients that users have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import websockets
from langchain_openai import ChatOpenAI
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import SecretStr

from tests.serving import Served, serving

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def embedded() -> Iterator[Served]:
    """A ready gateway on the embedded model, as `make serve` starts it."""
    with serving() as served:
        yield served


@pytest.fixture
def openai(embedded: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=embedded.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def said(content: str) -> Any:
    return [{"role": "user", "content": content}]


def test_the_openai_client_gets_answers_streamed_and_not(openai: OpenAI, embedded: Served) -> None:
    options: Any = {"model": embedded.model, "max_tokens": 24, "temperature": 0}
    question = said("Count from one to ten in words.")
    whole = openai.chat.completions.create(messages=question, **options)
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in openai.chat.completions.create(messages=question, stream=True, **options)
        if chunk.choices
    ]
    assert whole.choices[0].message.content
    assert len(pieces) > 5
    assert "".join(pieces) == whole.choices[0].message.content


def test_the_openai_client_raises_its_own_errors(openai: OpenAI, embedded: Served) -> None:
    with pytest.raises(NotFoundError, match="no-such") as missing:
        openai.chat.completions.create(model="no-such", messages=said("hi"))
    assert missing.value.code == "not_found"
    with pytest.raises(BadRequestError) as long:
        openai.chat.completions.create(model=embedded.model, messages=said("word " * 9000))
    assert long.value.code == "context_length_exceeded"


async def test_langchain_gets_answers_streamed_and_not(embedded: Served) -> None:
    model = ChatOpenAI(
        base_url=embedded.url + "/v1",
        api_key=SecretStr("none"),
        model=embedded.model,
        max_completion_tokens=16,
        temperature=0,
    )
    whole = await model.ainvoke("Name three colours.")
    pieces = [chunk.content async for chunk in model.astream("Name three colours.")]
    assert whole.content
    assert "".join(str(piece) for piece in pieces) == whole.content


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_tool_call_passes_through_with_arguments_of_its_schema(
    openai: OpenAI, embedded: Served, choice: Any
) -> None:
    answer = openai.chat.completions.create(
        model=embedded.model,
        messages=said("What is the weather in Paris?"),
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice=choice,
        max_tokens=120,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_an_answer_keeps_to_a_json_schema_streamed_and_not(
    openai: OpenAI, embedded: Served
) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    options: Any = {"model": embedded.model, "max_tokens": 120, "temperature": 0}
    question = said("Invent a person.")
    whole = openai.chat.completions.create(messages=question, response_format=form, **options)
    stream = openai.chat.completions.create(
        messages=question, response_format=form, stream=True, **options
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    person = json.loads(whole.choices[0].message.content or "")
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)
    assert json.loads(streamed) == person


BAD_GRAMMARS: dict[str, dict[str, Any]] = {
    "unclosed group": {"structured_outputs": {"regex": "(a"}},
    "schema with a string for a property": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": "b"}}},
        }
    },
    "two roots": {"structured_outputs": {"grammar": 'root ::= "a"\nroot ::= "b"\n x'}},
    "no JSON": {"structured_outputs": {"json": ""}},
    "unknown type": {"response_format": {"type": "odd"}},
}


def test_bad_grammars_are_refused_one_after_the_other_and_the_engine_lives_on(
    embedded: Served,
) -> None:
    with httpx.Client(base_url=embedded.url, timeout=60, trust_env=False) as client:
        for name, fields in BAD_GRAMMARS.items():
            body = {"model": embedded.model, "messages": said("hi"), "max_tokens": 4} | fields
            response = client.post("/v1/chat/completions", json=body)
            assert response.status_code == 400, (name, response.text)
            assert response.json()["error"]["code"] == "invalid_request"
            assert client.get("/health").status_code == 200
        good = {"model": embedded.model, "messages": said("hi"), "max_tokens": 4}
        assert client.post("/v1/chat/completions", json=good).status_code == 200


RARE = "🫠🥹 龜 👩‍👩‍👧‍👦 नमस्ते 안녕"


@pytest.mark.parametrize("stop", [None, ["zzzzzzzzzzzz"], ["the"], ["\nHuman:"]])
def test_no_piece_of_a_stream_is_half_a_character_or_part_of_a_stop_string(
    openai: OpenAI, embedded: Served, stop: Any
) -> None:
    options: Any = {"model": embedded.model, "max_tokens": 60, "temperature": 0, "stop": stop}
    question = said(f"Repeat exactly: {RARE}")
    whole = openai.chat.completions.create(messages=question, **options).choices[0]
    stream = openai.chat.completions.create(messages=question, stream=True, **options)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.message.content
    if "\ufffd" not in (whole.message.content or ""):
        assert not any("\ufffd" in piece for piece in pieces)
    if stop:
        assert stop[0] not in "".join(pieces)


def chat_url(embedded: Served) -> str:
    return embedded.url.replace("http", "ws") + "/chat"


async def test_a_plain_chat_is_one_question_many_pieces_and_a_clean_close(
    embedded: Served,
) -> None:
    async with websockets.connect(chat_url(embedded), proxy=None) as socket:
        await socket.send("What is gravity?")
        pieces = [piece async for piece in socket]
    assert len(pieces) > 3
    assert all(isinstance(piece, str) and piece for piece in pieces)
    assert socket.close_code == 1000


async def test_a_session_keeps_the_conversation_and_can_be_stopped(embedded: Served) -> None:
    protocol = websockets.Subprotocol("fairgate.chat.v1")
    async with websockets.connect(chat_url(embedded), subprotocols=[protocol], proxy=None) as ws:

        async def turn(turn_id: str, content: str, *, stop: bool = False) -> list[Any]:
            options = {"max_tokens": 200, "temperature": 0}
            frame = {"type": "message", "id": turn_id, "content": content, "options": options}
            await ws.send(json.dumps(frame))
            frames: list[Any] = []
            while not frames or frames[-1]["type"] not in ("done", "error"):
                frames.append(json.loads(await asyncio.wait_for(ws.recv(), 60)))
                if stop and sum(f["type"] == "delta" for f in frames) == 3:
                    await ws.send(json.dumps({"type": "stop", "id": turn_id}))
                    stop = False
            return frames

        assert json.loads(await ws.recv())["type"] == "ready"
        first = await turn("1", "Tell me a long story.", stop=True)
        assert (first[-1]["type"], first[-1]["finish_reason"]) == ("done", "stopped")
        second = await turn("2", "Say one word.")
        done = second[-1]
        assert done["finish_reason"] in ("stop", "length")
        assert done["usage"]["prompt_tokens"] > first[-1]["usage"]["prompt_tokens"]
        numbers = [frame["seq"] for frame in [*first, *second] if "seq" in frame]
        assert numbers == sorted(set(numbers))
        await ws.send(json.dumps({"type": "ping"}))
        assert json.loads(await ws.recv())["type"] == "pong"


STORY = (
    "The canal was dug in 1811 to carry coal from the hills to the port. Its builders were paid in "
    "bread and beer. When the railway came in 1849 the boats lost their trade, and the town forgot "
    "the water until walkers found the path beside it. "
)


async def test_a_text_of_fifteen_hundred_words_gets_a_summary(embedded: Served) -> None:
    text = (STORY * 40)[: 1500 * 6]
    async with httpx.AsyncClient(base_url=embedded.url, timeout=120, trust_env=False) as client:
        response = await client.post("/summarize", json={"text": text, "max_words": 40})
        answer = response.json()
        assert response.status_code == 200, answer
        assert answer["summary"].strip()
        assert len(answer["summary"].split()) < 80
        assert not answer["summary"].startswith("assistant")


async def test_a_text_beyond_the_context_is_refused_with_both_lengths(embedded: Served) -> None:
    async with httpx.AsyncClient(base_url=embedded.url, timeout=120, trust_env=False) as client:
        response = await client.post("/summarize", json={"text": "word " * 20000})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "8,192" in error["message"]
    assert "20,0" in error["message"]
