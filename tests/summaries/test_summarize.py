from __future__ import annotations

import asyncio

import pytest

from app.engine.api import Queued
from app.errors import (
    ContextLengthExceeded,
    EngineDead,
    Internal,
    Loading,
    QueueFull,
    TimedOut,
    WaitTooLong,
)
from app.tenants.model import Tenant
from tests.scripted_engine import FOREVER, STARTED, ScriptedEngine
from tests.summaries.house import SUMMARY, TEXT, House, limits_with


async def test_a_text_gets_its_summary(house: House) -> None:
    answer = await house.post({"text": TEXT, "max_words": 20})
    body = answer.json
    summary = "The council closes the market hall. Traders move in June."
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert body["summary"] == summary
    assert body["strategy"] == "single"
    assert body["truncated"] is False
    assert body["verbatim"] is False
    assert body["parts"] == {"total": 1, "used": 1}
    assert body["fragments"] == [
        {"index": 0, "start": 0, "end": len(TEXT), "summary": summary, "verbatim": False}
    ]
    (call,) = house.engine.calls
    assert body["usage"] == {
        "prompt_tokens": len(call.prompt.token_ids),
        "cached_tokens": 0,
        "completion_tokens": len(SUMMARY),
        "total_tokens": len(call.prompt.token_ids) + len(SUMMARY),
        "requests": 1,
    }
    timing = body["timing"]
    assert 0 <= timing["queue_seconds"] <= timing["ttft_seconds"] <= timing["total_seconds"]
    assert int(answer.headers["x-fairgate-queue-ms"]) == round(timing["queue_seconds"] * 1000)
    assert TEXT in call.messages[-1].content
    assert call.work.api == "summarize"
    assert call.work.work_class == "interactive"
    assert house.end.outcome == "finished"


@pytest.mark.parametrize("media_type", ["text/plain", "text/markdown; charset=utf-8"])
async def test_a_document_may_be_the_body_and_the_options_the_query(
    house: House, media_type: str
) -> None:
    answer = await house.post(
        path="/summarize?max_words=4&style=bullets&language=de&focus=the+roof",
        content=TEXT.encode(),
        headers={"content-type": media_type},
    )
    assert answer.status == 200
    assert answer.json["summary"] == "- The council closes the\u2026"
    asked = house.engine.calls[0].messages[-1].content
    for words in ("at most 4 words", "bullet points", "in German", "Focus on: the roof"):
        assert words in asked


async def test_options_in_the_query_go_with_a_json_body_too(house: House) -> None:
    answer = await house.post({"text": TEXT}, path="/summarize?style=headline")
    assert answer.json["summary"] == "The council closes the market hall."
    twice = await house.post({"text": TEXT, "style": "headline"}, path="/summarize?style=bullets")
    assert (twice.status, twice.error["param"]) == (400, "style")


async def test_documents_get_results_in_order_and_a_bad_one_its_own_error(house: House) -> None:
    house.limits = limits_with(calls=1)
    house.engine = ScriptedEngine(context_tokens=500)
    house.engine.answer = lambda call: [f"About {call.messages[-1].content.split()[-2]}."]
    documents = [
        {"id": "a", "text": TEXT + " apples"},
        {"text": "   "},
        {"id": "long", "text": "word " * 600},
        {"id": "d", "text": TEXT + " dates"},
        {"id": "short", "text": "Two words"},
        "not an object",
    ]
    answer = await house.post({"documents": documents})
    results = answer.json["results"]
    assert answer.status == 200
    assert [result["id"] for result in results] == ["a", None, "long", "d", "short", None]
    assert results[0]["summary"] == "About apples."
    assert results[1]["error"]["param"] == "documents[1].text"
    assert results[2]["error"]["code"] == "context_length_exceeded"
    assert results[3]["summary"] == "About dates."
    assert results[4]["summary"] == "Two words"
    assert results[5]["error"]["code"] == "invalid_request"
    assert answer.json["usage"]["requests"] == 2
    assert {call.work.work_class for call in house.engine.calls} == {"batch"}
    assert house.end.outcome == "finished"


async def test_an_error_of_the_engine_in_one_document_leaves_the_others_alone(
    house: House,
) -> None:
    house.engine.script(*SUMMARY)
    house.engine.script(Internal("the sampler tripped"))
    house.engine.script(*SUMMARY)
    answer = await house.post({"documents": [{"text": TEXT}] * 3})
    kinds = ["error" if "error" in result else "summary" for result in answer.json["results"]]
    assert sorted(kinds) == ["error", "summary", "summary"]
    assert house.end.outcome == "finished"


async def test_what_ends_the_engine_ends_the_whole_request(house: House) -> None:
    house.engine.script(STARTED, asyncio.Event())
    house.engine.script(EngineDead("it died"))
    answer = await house.post({"documents": [{"text": TEXT}] * 3})
    assert (answer.status, answer.error["code"]) == (503, "engine_dead")
    assert not house.engine.running


async def test_calls_of_one_request_are_bounded_and_only_the_first_is_no_part(
    house: House,
) -> None:
    house.limits = limits_with(parallel_calls=3)
    answer = await house.post({"documents": [{"text": TEXT}] * 10})
    assert len(answer.json["results"]) == 10
    assert house.engine.most_at_once <= 3
    assert [call.work.part for call in house.engine.calls] == [False, *[True] * 9]


async def test_nothing_else_starts_before_the_first_call_is_accepted(house: House) -> None:
    house.engine.script(QueueFull("your queue is full", retry_after_seconds=3))
    answer = await house.post({"documents": [{"text": TEXT}] * 5})
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")
    assert len(house.engine.calls) == 1
    assert (house.end.outcome, house.end.code) == ("rejected", "queue_full")


async def test_a_text_beyond_the_context_is_refused_with_both_lengths(house: House) -> None:
    house.limits = limits_with(calls=1)
    answer = await house.post({"text": "word " * 20_000})
    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
    assert answer.error["param"] == "text"
    assert "2,048" in answer.error["message"]
    assert "20,0" in answer.error["message"]
    assert not house.engine.calls
    assert (house.end.outcome, house.end.code) == ("rejected", "context_length_exceeded")


@pytest.mark.parametrize("extra", range(-3, 4))
async def test_prompt_and_room_never_exceed_the_context_at_its_edge(
    house: House, extra: int
) -> None:
    """Long by a few tokens more or less, a text fits whole or is refused, never cut."""
    house.limits = limits_with(calls=1)
    await house.post({"text": TEXT, "max_words": 20})
    beside = len(house.engine.calls.pop().prompt.token_ids) - len(TEXT.split())
    room = 20 * 3 + 32
    words = house.engine.model.context_tokens - beside - room + extra
    answer = await house.post({"text": "word " * words, "max_words": 20})
    assert answer.status == (200 if extra <= 0 else 400)
    for call in house.engine.calls:
        assert len(call.prompt.token_ids) + call.options.max_tokens <= 2048
        assert call.messages[-1].content.count("word ") >= words - 1


async def test_a_wish_for_many_words_is_met_as_far_as_the_context_goes(house: House) -> None:
    answer = await house.post({"text": "word " * 1200, "max_words": 1000})
    (call,) = house.engine.calls
    assert answer.status == 200
    assert len(call.prompt.token_ids) + call.options.max_tokens == 2048


@pytest.mark.parametrize("text", ["A", "One sentence only.", "word " * 40])
async def test_a_text_no_longer_than_its_summary_is_its_own(house: House, text: str) -> None:
    answer = await house.post({"text": text, "max_words": 200})
    assert answer.json["summary"] == text.strip()
    assert answer.json["verbatim"] is True
    assert answer.json["usage"]["requests"] == 0
    assert "x-fairgate-queue-ms" not in answer.headers
    assert not house.engine.calls


async def test_a_short_text_in_another_language_still_goes_to_the_model(house: House) -> None:
    house.engine.script("Guten Tag.")
    answer = await house.post({"text": "Good afternoon to you.", "language": "de"})
    assert answer.json["summary"] == "Guten Tag."


async def test_a_summary_longer_than_its_source_gives_way_to_the_source(house: House) -> None:
    text = "The hall closes. " + "It is old and the roof leaks in many places when it rains. " * 2
    house.engine.script("Invented quotes " * 40 + ".")
    answer = await house.post({"text": text, "style": "bullets", "max_words": 4})
    assert len(answer.json["summary"]) <= len(text)
    house.engine.script("A thing nobody said, and " + "more and " * 60)
    answer = await house.post({"text": text, "focus": "roofs"})
    assert answer.json["verbatim"] is True
    assert text.startswith(answer.json["summary"])


async def test_a_loop_is_asked_again_and_then_gives_way_to_the_source(house: House) -> None:
    house.engine.script(*["the club's report on "] * 400)
    house.engine.script(*SUMMARY)
    answer = await house.post({"text": TEXT})
    assert answer.json["summary"].startswith("The council closes")
    assert answer.json["usage"]["requests"] == 2
    first, second = house.engine.calls
    assert first.closed
    assert len(first.pieces) < 20
    assert (second.options.temperature or 0) > (first.options.temperature or 0)
    house.engine.script()
    house.engine.script()
    answer = await house.post({"text": TEXT})
    assert answer.json["verbatim"] is True
    assert TEXT.startswith(answer.json["summary"])


async def test_a_model_of_others_looks_like_one_that_is_not_there(house: House) -> None:
    unknown = await house.post({"text": TEXT, "model": "nope"})
    assert (unknown.status, unknown.error["code"]) == (404, "not_found")
    house.tenant = Tenant(id="acme", models=frozenset({"adapter"}))
    house.engine = ScriptedEngine(adapters=("adapter",))
    hidden = await house.post({"text": TEXT})
    assert (hidden.status, hidden.error["code"]) == (404, "not_found")
    allowed = await house.post({"text": TEXT, "model": "adapter"})
    assert allowed.json["model"] == "adapter"
    assert house.engine.calls[-1].prompt.model == "adapter"


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (QueueFull("full", retry_after_seconds=2.2), 429, "rejected"),
        (Loading("not yet"), 503, "rejected"),
        (TimedOut("too long"), 504, "failed"),
        (ContextLengthExceeded("too long"), 400, "rejected"),
        (RuntimeError("secret text"), 500, "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_status_line_has_its_own_status(
    house: House, error: Exception, status: int, outcome: str, *, stream: bool
) -> None:
    house.engine.script(error)
    answer = await house.post({"text": TEXT, "stream": stream})
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert ("retry-after" in answer.headers) is (status in (429, 503))
    assert b"secret" not in answer.content
    assert house.end.outcome == outcome


async def test_waiting_in_vain_is_counted_as_expired(house: House) -> None:
    house.engine.script(Queued(position=2, eta_seconds=9.0), WaitTooLong("too long"))
    answer = await house.post({"text": TEXT})
    assert answer.status == 429
    assert house.end.outcome == "expired"


async def test_the_deadline_of_a_tenant_ends_the_work(house: House) -> None:
    house.deadline_seconds = 0.05
    house.engine.script(FOREVER)
    answer = await house.post({"text": TEXT})
    assert (answer.status, answer.error["code"]) == (504, "timeout")
    assert not house.engine.running
    assert (house.end.outcome, house.end.code) == ("failed", "timeout")


async def test_the_log_of_a_failure_does_not_quote_it(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.engine.script(RuntimeError("the document says: canary"))
    await house.post({"text": TEXT})
    (record,) = [r for r in caplog.records if r.message == "summaries.failed"]
    assert "canary" not in str(record.__dict__)
    assert vars(record)["request_id"] == "r1"
