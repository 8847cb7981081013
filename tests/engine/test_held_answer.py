"""The status line of a stream is true: it waits for the engine, and a failure is never an end."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from app.engine.api import Work
from app.engine.held_answer import HeldAnswer, Patience
from app.errors import EngineDead, QueueFull, WaitTooLong

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
EVENT_STREAM = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
QUICK = Patience(commit_seconds=0.02, comment_seconds=0.02, stall_seconds=0.1)


def body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def work() -> Work:
    return Work(tenant="t", api="v1", request_id="r", arrived_seconds=time.monotonic())


class Client:
    """What arrives at the client."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.third = asyncio.Event()

    async def send(self, message: Any) -> None:
        self.messages.append(dict(message))
        if len(self.messages) == 3:
            self.third.set()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def text(self) -> bytes:
        return b"".join(m["body"] for m in self.messages[1:])

    @property
    def ended(self) -> bool:
        return not self.messages[-1].get("more_body", False)


async def answered(
    app: Any, job: Work | None, path: str = CHAT, patience: Patience | None = None
) -> Client:
    client = Client()
    held = HeldAnswer(path, job, client.send, patience or Patience())
    await held.serve(app, {"type": "http", "path": path}, client.receive)
    return client


async def test_the_status_of_a_stream_waits_for_the_first_output() -> None:
    client, job, go = Client(), work(), asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(dict(EVENT_STREAM))
        await go.wait()
        job.queue_seconds = 0.5
        await send(body(b"data: one\n\n"))
        await send(body(b"data: [DONE]\n\n"))
        await send(body(b"", more=False))

    held = HeldAnswer(CHAT, job, client.send, Patience())
    serving = asyncio.ensure_future(held.serve(app, {}, client.receive))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert client.messages == []
    go.set()
    await serving
    assert client.status == 200
    assert client.headers[b"x-fairgate-queue-ms"] == b"500"
    assert client.headers[b"x-accel-buffering"] == b"no"
    assert client.text == b"data: one\n\ndata: [DONE]\n\n"
    assert job.outcome == "finished"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_refused_before_the_first_output_is_a_status(path: str) -> None:
    job = work()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(dict(EVENT_STREAM))
        if path == RESPONSES:
            await send(body(b"event: response.created\ndata: {}\n\n"))
        job.error = QueueFull("full", retry_after_seconds=2.3)
        await send(body(b'data: {"error": {}}\n\n'))
        await send(body(b"data: [DONE]\n\n"))
        await send(body(b"", more=False))

    client = await answered(app, job, path)
    assert client.status == 429
    assert client.headers[b"retry-after"] == b"3"
    assert json.loads(client.text)["error"]["code"] == "queue_full"
    assert job.outcome == "rejected"


@pytest.mark.parametrize(
    ("path", "prefix"),
    [(CHAT, b"data: "), (RESPONSES, b"event: error\ndata: "), (MESSAGES, b"event: error\ndata: ")],
)
async def test_a_failure_in_mid_stream_is_one_error_event_and_no_done(
    path: str, prefix: bytes
) -> None:
    job = work()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(dict(EVENT_STREAM))
        await send(body(b"data: one\n\n"))
        job.queue_seconds, job.error = 0.0, EngineDead("dead")
        await send(body(b'data: {"error": {"message": "vllm"}}\n\n'))
        await send(body(b"data: [DONE]\n\n"))
        await send(body(b"", more=False))

    client = await answered(app, job, path)
    assert client.status == 200
    assert b"[DONE]" not in client.text
    assert client.text.startswith(b"data: one\n\n" + prefix)
    assert client.text.count(b"engine_dead") == 1
    assert client.ended
    assert job.outcome == "failed"


async def test_an_error_that_vllm_writes_itself_ends_the_stream_without_done() -> None:
    job = work()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(dict(EVENT_STREAM))
        await send(body(b"data: one\n\n"))
        await send(body(b'data: {"error": {"message": "parser", "type": "X", "code": 500}}\n\n'))
        await send(body(b"data: [DONE]\n\n"))
        await send(body(b"", more=False))

    client = await answered(app, job)
    assert b"[DONE]" not in client.text
    assert b'"code":"internal"' in client.text
    assert b"parser" in client.text


async def test_after_the_commit_time_comments_tell_the_place_in_the_queue() -> None:
    job, go = work(), asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(dict(EVENT_STREAM))
        job.told_position(3, 1.24)
        await go.wait()
        await send(body(b"data: one\n\n"))
        await send(body(b"", more=False))

    client = Client()
    held = HeldAnswer(CHAT, job, client.send, QUICK)
    serving = asyncio.ensure_future(held.serve(app, {}, client.receive))
    await client.third.wait()
    go.set()
    await serving
    assert client.status == 200
    assert client.messages[1]["body"] == b": queued position=3 eta=1.2\n\n"
    assert client.text.endswith(b"data: one\n\n")


async def test_refused_after_the_commit_is_an_error_event() -> None:
    job = work()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(dict(EVENT_STREAM))
        job.told_position(1, 9.0)
        await asyncio.sleep(0.1)
        job.error = WaitTooLong("waited", retry_after_seconds=4)
        await send(body(b'data: {"error": {}}\n\n'))

    client = await answered(app, job, patience=QUICK)
    assert client.status == 200
    assert b'"code":"wait_too_long"' in client.text
    assert job.outcome == "expired"


async def test_a_plain_error_of_vllm_keeps_its_words_and_gets_our_code() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        raw = {"error": {"message": "no", "type": "NotFoundError", "param": None, "code": 404}}
        await send(body(json.dumps(raw).encode(), more=False))

    client = await answered(app, None)
    assert client.status == 404
    assert json.loads(client.text)["error"] == {
        "message": "no",
        "type": "NotFoundError",
        "param": None,
        "code": "not_found",
    }


async def test_a_prompt_beyond_the_context_has_its_own_code() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 400, "headers": []})
        raw = {"error": {"message": "long", "type": "B", "param": "input_tokens", "code": 400}}
        await send(body(json.dumps(raw).encode(), more=False))

    client = await answered(app, work())
    assert json.loads(client.text)["error"]["code"] == "context_length_exceeded"


async def test_a_crash_before_the_answer_is_an_internal_error_without_words_of_it() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("secret")

    client = Client()
    held = HeldAnswer(CHAT, work(), client.send, Patience())
    with pytest.raises(RuntimeError):
        await held.serve(app, {}, client.receive)
    assert client.status == 500
    assert b"secret" not in client.text


async def test_a_client_that_left_counts_as_aborted_though_the_handler_ended_well() -> None:
    job, client = work(), Client()

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        client.gone.set()
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(body(b"null", more=False))

    held = HeldAnswer(CHAT, job, client.send, Patience())
    await held.serve(app, {}, client.receive)
    assert job.outcome == "aborted"


async def test_a_reader_that_does_not_read_is_cut_after_the_stall_time() -> None:
    job, cut = work(), asyncio.Event()

    class Stuck(Client):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

    client = Stuck()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        try:
            await send(dict(EVENT_STREAM))
            await send(body(b"data: one\n\n"))
        except asyncio.CancelledError:
            cut.set()
            raise

    held = HeldAnswer(CHAT, job, client.send, QUICK)
    await held.serve(app, {}, client.receive)
    assert cut.is_set()
    assert not client.ended
    assert job.outcome == "aborted"
