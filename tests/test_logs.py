"""One way out for every line, stable names, and no key ever on it."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from app import logs

KEY = "fg_Zm9vYmFyYmF6cXV4LTEyMzQ1"


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, warnings.showwarning
    yield
    root.handlers[:], level, warnings.showwarning = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_fields(stream):
    logs.configure("json", "info", stream=stream)
    logs.get_logger("app.chat").info("chat.refused", code="busy", seconds=0.5)
    (line,) = written(stream)
    assert line["event"] == "chat.refused"
    assert line["code"] == "busy"
    assert line["seconds"] == 0.5
    assert line["level"] == "info"
    assert line["logger"] == "app.chat"
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize("when", ["before", "after"])
def test_lines_of_the_standard_library_take_the_same_way_out(stream, when):
    """uvicorn's and vLLM's, whose loggers get handlers of their own before and after."""
    theirs = io.StringIO()
    name = f"library.{when}"
    foreign = logging.getLogger(name)
    if when == "before":
        route_elsewhere(name, theirs)
    logs.configure("json", "info", stream=stream)
    logs.adopt(name)
    if when == "after":
        route_elsewhere(name, theirs)
    foreign.warning("KV cache is %d %% full", 99)
    logging.getLogger(f"{name}.inner").info("x.done", extra={"count": 3})
    assert theirs.getvalue() == ""
    full, done = written(stream)
    assert full["event"] == "KV cache is 99 % full"
    assert (done["event"], done["count"]) == ("x.done", 3)


def route_elsewhere(name: str, stream: io.StringIO) -> None:
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"own": {"class": "logging.StreamHandler", "stream": stream}},
            "loggers": {name: {"handlers": ["own"], "level": "INFO", "propagate": False}},
        }
    )


async def test_the_request_is_named_in_every_line_of_its_context(stream):
    """And in no other's, of either kind of logger."""
    logs.configure("json", "info", stream=stream)
    with logs.bound(request_id="r1", tenant="acme"):
        logs.get_logger("a").info("a.one")
        logging.getLogger("b").info("b.two")
    logs.get_logger("a").info("a.three")
    one, two, three = written(stream)
    assert (one["request_id"], one["tenant"]) == (two["request_id"], two["tenant"])
    assert one["request_id"] == "r1"
    assert "request_id" not in three


def fail(message: str) -> None:
    raise ValueError(message)


def leak(logger: Any) -> None:
    logger.info("a.one", header=f"Bearer {KEY}")
    logger.info("a.two", nested={"Authorization": "abc", "list": [f"bearer.{KEY}"]})
    logger.info("a.three", api_key="hunter2hunter2")
    logging.getLogger("b").warning("got %s", KEY)
    logging.getLogger("b").warning("got", extra={"seen": f"bearer {KEY}".encode()})
    try:
        fail(f"no such key: {KEY}")
    except ValueError:
        logger.exception("a.four")
        logging.getLogger("b").exception("b.five")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_key_gets_out_wherever_it_hides(stream, log_format):
    logs.configure(log_format, "info", stream=stream)
    leak(logs.get_logger("a"))
    text = stream.getvalue()
    assert text.count("[redacted]") >= 7
    for secret in (KEY, KEY[3:], "hunter2", "'abc'", '"abc"'):
        assert secret not in text
    assert "no such key" in text  # the rest of the traceback stays


def test_a_traceback_does_not_show_what_variables_held(stream):
    """They hold prompts and answers."""
    logs.configure("text", "info", stream=Terminal())
    logs.configure("text", "info", stream=stream)
    prompt = "tell nobody"
    try:
        fail("wrong")
    except ValueError:
        logs.get_logger("a").exception("a.failed")
    assert "ValueError: wrong" in stream.getvalue()
    assert prompt not in stream.getvalue()


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json"),
    [
        pytest.param("auto", Terminal(), False, id="a terminal gets text"),
        pytest.param("auto", io.StringIO(), True, id="a pipe gets JSON"),
        pytest.param("json", Terminal(), True, id="JSON can be forced"),
        pytest.param("text", io.StringIO(), False, id="text can be forced"),
    ],
)
def test_the_format_follows_the_terminal_unless_it_is_forced(log_format, stream, is_json):
    logs.configure(log_format, "info", stream=stream)
    logs.get_logger("a").info("a.event")
    assert stream.getvalue().startswith("{") is is_json


def test_what_is_below_the_level_is_not_written(stream):
    """Of libraries too, whose loggers have levels of their own; uvicorn's chatter never."""
    logs.configure("json", "warning", stream=stream)
    talkative = logging.getLogger("talkative")
    talkative.setLevel(logging.DEBUG)
    talkative.info("so much to say")
    logs.get_logger("a").info("a.event")
    assert written(stream) == []
    logs.configure("json", "info", stream=stream)
    logging.getLogger("uvicorn.error").info('"WebSocket /chat?key=secret" [accepted]')
    assert written(stream) == []


def test_configuring_again_replaces_the_way_out():
    first, second = io.StringIO(), io.StringIO()
    logs.configure("json", "info", stream=first)
    logs.configure("json", "info", stream=second)
    logs.get_logger("a").info("a.event")
    assert first.getvalue() == ""
    assert len(written(second)) == 1
