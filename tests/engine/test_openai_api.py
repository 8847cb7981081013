"""vLLM's routes through the gateway, on the simulated device: every answer is ours to vouch for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets

from tests.serving import Served

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CHAT = "/v1/chat/completions"


@pytest.fixture
async def client(simulated: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=simulated.url, timeout=60, trust_env=False) as http:
        yield http


def asked(simulated: Served, content: Any = "hi", **fields: Any) -> dict[str, Any]:
    """A small chat request."""
    messages = [{"role": "user", "content": content}]
    return {"model": simulated.model, "messages": messages, "max_tokens": 8} | fields


async def events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[str]:
    """The data of every event of a stream; fails unless it began with 200."""
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        return [line[6:] async for line in response.aiter_lines() if line.startswith("data: ")]


def joined(chunks: list[str]) -> str:
    """The text of a chat stream."""
    parsed = [json.loads(chunk) for chunk in chunks if chunk != "[DONE]"]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in parsed if c["choices"])


async def idle(simulated: Served, within_seconds: float = 1.0) -> None:
    """Wait until the gateway runs nothing; fails where it takes longer than that."""
    deadline = time.monotonic() + within_seconds
    while simulated.metric("fairgate_running_requests") or simulated.metric(
        "vllm:num_requests_running"
    ):
        assert time.monotonic() < deadline, "still running"
        await asyncio.sleep(0.05)


async def test_streamed_text_is_the_text_that_is_not_streamed(
    client: httpx.AsyncClient, simulated: Served
) -> None:
    whole = (await client.post(CHAT, json=asked(simulated, max_tokens=40))).json()
    chunks = await events(client, CHAT, asked(simulated, max_tokens=40, stream=True))
    assert chunks[-1] == "[DONE]"
    assert joined(chunks) == whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 40


async def test_two_answers_of_one_request_both_come_whole_and_differ(
    client: httpx.AsyncClient, simulated: Served
) -> None:
    body = asked(simulated, n=2, max_tokens=12)
    choices = (await client.post(CHAT, json=body)).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert choices[0]["message"]["content"] != choices[1]["message"]["content"]
    assert {choice["finish_reason"] for choice in choices} == {"length"}


@pytest.mark.parametrize(
    ("options", "usage_chunks"),
    [(None, 0), ({}, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)],
)
async def test_the_usage_chunk_comes_only_when_asked_for(
    client: httpx.AsyncClient, simulated: Served, options: Any, usage_chunks: int
) -> None:
    before = simulated.metric("fairgate_tokens_total", kind="completion")
    body = asked(simulated, stream=True, n=2, stream_options=options)
    chunks = [json.loads(c) for c in (await events(client, CHAT, body))[:-1]]
    assert sum(chunk["choices"] == [] for chunk in chunks) == usage_chunks
    ends = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
    assert sorted(end["index"] for end in ends) == [0, 1]
    await idle(simulated)
    assert simulated.metric("fairgate_tokens_total", kind="completion") == before + 16


async def test_log_probabilities_are_numbers_and_the_engine_lives_on(
    client: httpx.AsyncClient, simulated: Served
) -> None:
    body = {"model": simulated.model, "prompt": "x", "max_tokens": 4, "echo": True, "logprobs": 1}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200
    json.loads(response.text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert (await client.post(CHAT, json=asked(simulated))).status_code == 200


BAD: dict[str, tuple[int, str, dict[str, Any]]] = {
    "unknown model": (404, "not_found", {"model": "no-such"}),
    "n above the engine's sequences": (400, "invalid_request", {"n": 65}),
    "beam search": (400, "invalid_request", {"use_beam_search": True, "n": 2}),
    "prompt beyond the context": (
        400,
        "context_length_exceeded",
        {"messages": [{"role": "user", "content": "word " * 40000}]},
    ),
    "no messages": (400, "invalid_request", {"messages": []}),
    "messages of a wrong type": (400, "invalid_request", {"messages": "hi"}),
    "image on a text model": (
        400,
        "invalid_request",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}],
                }
            ]
        },
    ),
    "unknown part": (
        400,
        "invalid_request",
        {"messages": [{"role": "user", "content": [{"type": "odd"}]}]},
    ),
    "bias on no token": (400, "invalid_request", {"logit_bias": {"999999": 5}}),
    "stop token that is none": (400, "invalid_request", {"stop_token_ids": [10**9]}),
    "too many log probabilities": (
        400,
        "invalid_request",
        {"logprobs": True, "top_logprobs": 10**9},
    ),
    "seed beyond 64 bits": (400, "invalid_request", {"seed": 2**70}),
    "no tokens": (400, "invalid_request", {"max_tokens": 0}),
    "structured output on the simulated device": (
        400,
        "invalid_request",
        {"response_format": {"type": "json_object"}},
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("case", BAD)
async def test_what_cannot_be_served_is_refused_with_a_status_and_one_code(
    client: httpx.AsyncClient, simulated: Served, case: str, stream: bool
) -> None:
    status, code, fields = BAD[case]
    response = await client.post(CHAT, json={**asked(simulated, stream=stream), **fields})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert response.headers["x-request-id"]


RAW = {
    "broken JSON": (400, "invalid_request", b"{", "application/json"),
    "not UTF-8": (400, "invalid_request", b"\xff\xfe", "application/json"),
    "deeply nested": (400, "invalid_request", b"[" * 25000 + b"]" * 25000, "application/json"),
    "no JSON": (415, "unsupported_media_type", b"hi", "text/plain"),
    "too large": (413, "too_large", b" " * (8 * 1024 * 1024 + 1), "application/json"),
}


@pytest.mark.parametrize("case", RAW)
async def test_a_body_that_cannot_be_read_is_refused_in_the_same_shape(
    client: httpx.AsyncClient, case: str
) -> None:
    status, code, raw, kind = RAW[case]
    response = await client.post(CHAT, content=raw, headers={"content-type": kind})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("where", ["content", "stop", "user", "tool"])
async def test_half_a_surrogate_pair_upsets_nothing(
    client: httpx.AsyncClient, simulated: Served, where: str
) -> None:
    half = "\\ud83d"
    tool = {"type": "function", "function": {"name": "f", "description": "HALF"}}
    cases: dict[str, dict[str, Any]] = {
        "content": {"messages": [{"role": "user", "content": "HALF"}]},
        "stop": {"stop": ["HALF"]},
        "user": {"user": "HALF"},
        "tool": {"tools": [tool], "tool_choice": "none"},
    }
    raw = json.dumps(asked(simulated) | cases[where]).replace("HALF", half).encode()
    headers = {"content-type": "application/json"}
    response = await client.post(CHAT, content=raw, headers=headers)
    assert response.status_code in (200, 400)
    assert (await client.post(CHAT, json=asked(simulated))).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", CHAT, 405, "method_not_allowed"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/chat/completions/batch", 404, "not_found"),
        ("GET", "/v1/responses/resp_1", 404, "not_found"),
        ("POST", "/v1/responses/resp_1/cancel", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("POST", "/v1/load_lora_adapter", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/openapi.json", 404, "not_found"),
        ("GET", "/metrics", 404, "not_found"),
        ("GET", "/version", 404, "not_found"),
        ("GET", "/server_info", 404, "not_found"),
        ("POST", "/pause", 404, "not_found"),
        ("POST", "/abort_requests", 404, "not_found"),
        ("POST", "/invocations", 404, "not_found"),
        ("POST", "/pooling", 404, "not_found"),
        ("GET", "/summarize", 405, "method_not_allowed"),
    ],
)
async def test_a_route_that_the_contract_does_not_list_is_not_there(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    response = await client.request(method, path, json={} if method == "POST" else None)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_the_models_route_names_what_is_served(
    client: httpx.AsyncClient, simulated: Served
) -> None:
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert model["id"] == "smollm2-135m-instruct" == simulated.model
    assert (await client.get("/health")).status_code == 200


async def test_the_other_apis_of_vllm_answer_streamed_and_not(
    client: httpx.AsyncClient, simulated: Served
) -> None:
    model = simulated.model
    responses = {"model": model, "input": "hi", "max_output_tokens": 4}
    messages = asked(simulated, max_tokens=4)
    completion = {"model": model, "prompt": ["a", "b"], "max_tokens": 4}
    for path, body in (
        ("/v1/responses", responses),
        ("/v1/messages", messages),
        ("/v1/completions", completion),
    ):
        assert (await client.post(path, json=body)).status_code == 200, path
        assert await events(client, path, body | {"stream": True}), path
    tokens = (await client.post("/tokenize", json={"model": model, "prompt": "hello"})).json()
    text = await client.post("/detokenize", json={"model": model, "tokens": tokens["tokens"]})
    assert text.json()["prompt"] == "hello"


async def test_errors_of_the_anthropic_api_have_its_shape_and_our_code(
    client: httpx.AsyncClient, simulated: Served
) -> None:
    response = await client.post("/v1/messages", json=asked(simulated, model="no-such"))
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["code"]) == (
        404,
        "error",
        "not_found",
    )


async def test_priority_rank_and_transfer_of_the_client_are_dropped(
    client: httpx.AsyncClient, simulated: Served
) -> None:
    body = asked(simulated, priority=-99, kv_transfer_params={"do_remote_decode": True})
    headers = {"x-data-parallel-rank": "7", "x-vllm-priority": "-5"}
    response = await client.post(CHAT, json=body, headers=headers)
    assert response.status_code == 200
    assert response.json()["kv_transfer_params"] is None


async def test_the_requests_id_is_in_the_answer_and_duplicates_do_no_harm(
    client: httpx.AsyncClient, simulated: Served
) -> None:
    headers = {"x-request-id": "same-id"}
    answers = await asyncio.gather(
        *(
            client.post(CHAT, json=asked(simulated, f"{i}", max_tokens=30), headers=headers)
            for i in range(8)
        )
    )
    assert {a.status_code for a in answers} == {200}
    assert {a.headers["x-request-id"] for a in answers} == {"same-id"}
    assert len({a.json()["choices"][0]["message"]["content"] for a in answers}) == 8


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
async def test_a_client_that_leaves_stops_its_work_within_a_second(
    client: httpx.AsyncClient, simulated: Served, stream: bool
) -> None:
    before = simulated.metric("fairgate_requests_total", outcome="aborted")
    body = asked(simulated, max_tokens=20000, ignore_eos=True, stream=stream, n=2)
    with contextlib.suppress(httpx.ReadTimeout):
        async with client.stream("POST", CHAT, json=body, timeout=0.5) as response:
            async for _ in response.aiter_lines():
                break
    await idle(simulated)
    assert simulated.metric("fairgate_requests_total", outcome="aborted") == before + 1


def reset(port: int, path: str, body: bytes, after_seconds: float) -> None:
    """Send a request and reset the connection (RST, not FIN) after a while."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(after_seconds)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def reset_socket(simulated: Served, after_seconds: float) -> None:
    """The same for a chat: half of them one message, half a session's."""
    url = simulated.url.replace("http", "ws") + "/chat"
    frame = {"type": "message", "id": "1", "content": "hi", "options": {"max_tokens": 500}}
    socket = await websockets.connect(url, proxy=None)
    with contextlib.suppress(websockets.ConnectionClosed):
        await socket.send("hi" if after_seconds < 0.15 else json.dumps(frame))
    await asyncio.sleep(after_seconds)
    socket.transport.abort()


async def test_a_storm_of_resets_leaves_nothing_behind(
    client: httpx.AsyncClient, simulated: Served
) -> None:
    rng = random.Random(7)
    chat = asked(simulated, max_tokens=500, ignore_eos=True)
    document = {"text": "The canal was dug in 1811 to carry coal to the port. " * 20}
    kinds = [
        (CHAT, chat | {"stream": True}),
        (CHAT, chat),
        ("/summarize", document),
        ("/summarize", document | {"stream": True}),
        ("/chat", {}),
    ]
    good = [
        asyncio.ensure_future(events(client, CHAT, asked(simulated, max_tokens=400, stream=True)))
        for _ in range(4)
    ]
    limit = asyncio.Semaphore(50)

    async def one(path: str, body: dict[str, Any], delay: float) -> None:
        async with limit:
            if path == "/chat":
                await reset_socket(simulated, delay)
            else:
                raw = json.dumps(body).encode()
                await asyncio.to_thread(reset, simulated.port, path, raw, delay)

    await asyncio.gather(*(one(*kinds[i % 5], rng.uniform(0, 0.3)) for i in range(500)))
    for chunks in await asyncio.gather(*good):
        assert chunks[-1] == "[DONE]"
    await idle(simulated)
    assert simulated.metric("fairgate_queue_depth") == 0
    assert (await client.post(CHAT, json=asked(simulated), timeout=2)).status_code == 200


async def test_each_answer_goes_to_its_own_request_under_concurrency(
    simulated: Served,
) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=simulated.url, timeout=60, trust_env=False, limits=limits
    ) as many:
        alone = {
            i: (await many.post(CHAT, json=asked(simulated, f"nonce {i}"))).json()
            for i in range(20)
        }

        async def again(i: int) -> tuple[str, str]:
            expected = alone[i % 20]["choices"][0]["message"]["content"]
            body = asked(simulated, f"nonce {i % 20}", stream=i % 2 == 0)
            if i % 2 == 0:
                return expected, joined(await events(many, CHAT, body))
            answer = (await many.post(CHAT, json=body)).json()
            return expected, answer["choices"][0]["message"]["content"]

        for expected, got in await asyncio.gather(*(again(i) for i in range(200))):
            assert got == expected
