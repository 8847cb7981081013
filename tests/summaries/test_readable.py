from __future__ import annotations

import base64
import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest
from app.summaries.readable import readable

ANYTHING = st.text(st.characters(codec=None, exclude_categories=()))  # half pairs included


@given(ANYTHING)
def test_a_readable_text_keeps_its_length_and_can_be_encoded(text: str) -> None:
    """Offsets into it are offsets into what the client sent, and logs can be written."""
    with contextlib.suppress(InvalidRequest):
        result = readable(text, param="text")
        assert len(result) == len(text)
        result.encode()
        assert not set(result) & set("\x00\x01\x1b\x7f\x9f")


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("a\ud83db", "a\ufffdb"),
        ("\U0001f600 ok", "\U0001f600 ok"),
        ("a\x00b", "a b"),
        ("\ufeffHello", " Hello"),
        ("a\u2028b\r\nc\td", "a\u2028b\r\nc\td"),
    ],
    ids=["half pair", "whole pair", "nul", "byte order mark", "line ends stay"],
)
def test_what_disturbs_is_replaced_in_place(sent: str, read: str) -> None:
    assert readable(sent, param="text") == read


@pytest.mark.parametrize("text", ["", " \n\t ", "\u200b\ufeff\u2060", "\x00\x00"])
def test_a_text_without_anything_to_see_is_empty(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is empty"):
        readable(text, param="text")


NOISE = random.Random(7).randbytes(3000)


@pytest.mark.parametrize(
    "text",
    [
        "%PDF-1.7\n%\xe2\xe3\n1 0 obj",
        "PK\x03\x04\x14\x00",
        "\x89PNG\r\n\x1a\n",
        NOISE.decode("latin-1"),
        NOISE.decode("utf-8", "replace"),
        base64.b64encode(NOISE).decode(),
        base64.encodebytes(NOISE).decode(),
        base64.b64encode(b"%PDF-1.4").decode(),
        "data:application/pdf;base64,AAAA",
        "\ufeff%PDF-1.7",
    ],
    ids=str,
)
def test_a_file_that_is_not_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not text"):
        readable(text, param="text")


@pytest.mark.parametrize(
    "text",
    [
        "a" * 100_000,
        "0123456789abcdef" * 1000,
        "\u6f22\u5b57" * 1000,
        '{"a":1,"b":[1,2,3]}' * 500,
        "TheCatSat. " * 100,
        "https://example.org/AbCdEf0123456789/" * 20,
        "A1 b2 C3 d4 " * 200,
        "PKW und LKW",
    ],
    ids=["one letter", "hex", "chinese", "minified", "prose", "links", "short words", "PK"],
)
def test_odd_texts_are_texts(text: str) -> None:
    assert readable(text, param="text") == text
