from __future__ import annotations

import base64
import gzip
import json
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest, TooLarge
from app.summaries.body import read_body
from app.summaries.fields import fields_of_query
from app.summaries.request import request_of
from tests.summaries.house import SUMMARY, TEXT, House, limits_with


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": None}, "text"),
        ({"text": ""}, "text"),
        ({"text": "  \n"}, "text"),
        ({"text": 7}, "text"),
        ({"text": ["a"]}, "text"),
        ({"text": base64.b64encode(random.Random(1).randbytes(900)).decode()}, "text"),
        ({"text": "%PDF-1.7 ..."}, "text"),
        ({"documents": []}, "documents"),
        ({"documents": {}}, "documents"),
        ({"documents": [{"text": "a"}] * 65}, "documents"),
        ({"documents": [{"text": "a"}], "text": "b"}, "documents"),
        ({"text": TEXT, "style": "poem"}, "style"),
        ({"text": TEXT, "style": 1}, "style"),
        ({"text": TEXT, "max_words": 0}, "max_words"),
        ({"text": TEXT, "max_words": -5}, "max_words"),
        ({"text": TEXT, "max_words": 10**9}, "max_words"),
        ({"text": TEXT, "max_words": 4.5}, "max_words"),
        ({"text": TEXT, "max_words": True}, "max_words"),
        ({"text": TEXT, "max_words": "forty"}, "max_words"),
        ({"text": TEXT, "language": "\n#!"}, "language"),
        ({"text": TEXT, "language": "x" * 65}, "language"),
        ({"text": TEXT, "focus": "x" * 501}, "focus"),
        ({"text": TEXT, "focus": {}}, "focus"),
        ({"text": TEXT, "stream": "perhaps"}, "stream"),
        ({"text": TEXT, "model": 3}, "model"),
        ({"text": TEXT, "max_word": 30}, "max_word"),
        ({"text": TEXT, "maxWords": 30}, "maxWords"),
        ({"text": TEXT, "max_tokens": 30}, "max_tokens"),
        ({"text": TEXT, "min_words": 90, "max_words": 10}, "min_words"),
        ({"messages": []}, "messages"),
        ({"prompt": "x"}, "prompt"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
async def test_a_bad_field_is_400_and_named(house: House, body: Any, param: str) -> None:
    answer = await house.post(body)
    assert answer.status == 400
    assert answer.error["code"] == "invalid_request"
    assert answer.error["param"] == param
    assert param.split(".", maxsplit=1)[0].lower() in answer.error["message"].lower()
    assert not house.engine.calls
    assert (house.end.outcome, house.end.code) == ("rejected", "invalid_request")


async def test_unknown_fields_that_resemble_none_of_ours_are_ignored(house: House) -> None:
    answer = await house.post({"text": TEXT, "user": "u1", "metadata": {"a": 1}, "priority": 9})
    assert answer.status == 200


JSON = "application/json"


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"", JSON, 400),
        (b"{", JSON, 400),
        (b"[1]", JSON, 400),
        (b"null", JSON, 400),
        (b'"text"', JSON, 400),
        (b"[" * 25_000, JSON, 400),
        (b'{"text":' * 5_000, JSON, 400),
        (b'{"text":"a","max_words":' + b"9" * 5000 + b"}", JSON, 400),
        (b'{"text":"\xff\xfe"}', JSON, 400),
        ('{"text":"a"}'.encode("utf-16"), JSON, 400),
        (b'{"text":"a"}', JSON + "; charset=utf-16", 400),
        (b"\xff\xfe\xfa", "text/plain", 400),
        (b"caf\xe9", "text/plain", 400),
        (b"a", "text/plain; charset=punycode", 415),
        (b"a", "text/plain; charset=nonsense", 415),
        (b"a" * 5, "text/plain; charset=utf-16", 400),
        (b"", "text/plain", 400),
        (b"%PDF-1.7\n", "text/plain", 400),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "text/plain; charset=latin-1", 400),
        (b"PK\x03\x04", "application/zip", 415),
        (b"text=a", "application/x-www-form-urlencoded", 415),
        (b'{"text":"a"}', "", 415),
        (b'{"text":"a"}', "json", 415),
        (b"a", "image/png", 415),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_an_unreadable_body_is_an_error_of_the_client(
    house: House, content: bytes, content_type: str, status: int
) -> None:
    headers = {"content-type": content_type.encode()} if content_type else {}
    answer = await house.post(content=content, headers=headers)
    assert answer.status == status
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert not house.engine.calls
    assert house.end.outcome in ("rejected", "failed")


async def test_a_compressed_body_is_415_and_says_what_to_do(house: House) -> None:
    answer = await house.post(
        content=gzip.compress(b'{"text":"a"}'),
        headers={"content-type": JSON, "content-encoding": "gzip"},
    )
    assert answer.status == 415
    assert "uncompressed" in answer.error["message"]


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (TEXT.encode("utf-8-sig"), "text/plain"),
        (TEXT.encode("utf-16"), "text/plain"),
        (TEXT.encode("utf-32"), "text/plain"),
        (("caf\xe9 " + TEXT).encode("latin-1"), "text/plain; charset=ISO-8859-1"),
        (("\u65e5\u672c " + TEXT).encode("shift_jis"), 'Text/Plain; charset="Shift_JIS"'),
        (("\ufeff" + json.dumps({"text": TEXT})).encode(), JSON),
        (json.dumps({"text": TEXT + " \x00\x01\u2028"}).encode(), "application/ld+json"),
        (b'{"text":"' + TEXT.encode() + b' a\\ud83db \\ud83d\\ude00"}', JSON),
    ],
    ids=["bom", "utf-16", "utf-32", "latin-1", "shift_jis", "json bom", "controls", "half pair"],
)
async def test_a_text_in_any_honest_encoding_is_read(
    house: House, content: bytes, content_type: str
) -> None:
    answer = await house.post(content=content, headers={"content-type": content_type})
    assert answer.status == 200
    asked = house.engine.calls[0].messages[-1].content
    assert TEXT in asked
    asked.encode()
    for half, odd in ((b"caf\xe9", "caf\xe9"), ("\u65e5".encode("shift_jis"), "\u65e5")):
        assert (odd in asked) is (half in content and "charset" in content_type)


class TestSizes:
    async def test_a_body_beyond_the_limit_is_413_announced_or_not(self, house: House) -> None:
        house.limits = limits_with(body_bytes=1000)
        for size in (1001, 3000, 2_000_000):
            raw = json.dumps({"text": "w " * (size // 2)}).encode()
            headers = {"content-type": JSON}
            answer = await house.post(content=raw, headers=headers)
            assert (answer.status, answer.error["code"]) == (413, "too_large")

            async def chunks(raw: bytes = raw) -> Any:
                for start in range(0, len(raw), 10_000):
                    yield raw[start : start + 10_000]

            answer = await house.post(content=chunks(), headers=headers)
            assert (answer.status, answer.error["code"]) == (413, "too_large")
        assert {end.outcome for end in house.ends} == {"rejected"}

    async def test_what_is_beyond_the_limit_is_not_kept_and_not_read_for_ever(self) -> None:
        chunk, read = b"x" * 1_000, 0

        async def receive() -> dict[str, Any]:
            nonlocal read
            read += 1
            return {"type": "http.request", "body": chunk, "more_body": True}

        tracemalloc.start()
        with pytest.raises(TooLarge):
            await read_body({"headers": []}, receive, max_bytes=100_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert read == 401
        assert peak_bytes < 250_000

    async def test_a_body_at_the_limit_is_read(self, house: House) -> None:
        raw = json.dumps({"text": TEXT}).encode()
        house.limits = limits_with(body_bytes=len(raw))
        answer = await house.post(content=raw, headers={"content-type": JSON})
        assert answer.status == 200


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["text", "documents", "style", "max_words", "language", "focus", "stream", "model", "x", "id"]
)


@given(st.dictionaries(NAMES | st.text(max_size=12), JUNK, max_size=6), st.none() | JUNK)
def test_any_object_is_a_request_or_a_named_error(fields: Any, document: Any) -> None:
    if document is not None:
        fields["documents"] = [document]
    try:
        request = request_of(fields, max_documents=4)
    except InvalidRequest as error:
        assert error.param in fields or error.param in ("text", "documents")  # noqa: PT017
        return
    assert request.sources
    for source in request.sources:
        assert source.error is not None or source.text.strip()
    assert request.brief.max_words is None or 1 <= request.brief.max_words <= 10_000


@given(st.binary(max_size=200))
def test_any_query_is_options_or_an_error(query: bytes) -> None:
    try:
        fields = fields_of_query(query)
    except InvalidRequest:
        return
    assert all(isinstance(name, str) for name in fields)


async def test_the_summary_of_odd_text_can_be_sent(house: House) -> None:
    house.engine.script(*SUMMARY, " \udc00 \u2028")
    answer = await house.post({"text": TEXT})
    assert answer.status == 200
    answer.content.decode()
