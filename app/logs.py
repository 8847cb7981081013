"""Structured logs: a stable dotted event name, data in fields, one line each on stderr.

Rooms log with the standard library (`logging.getLogger(__name__).info("chat.refused",
extra={"code": code})`) or through `get_logger`; uvicorn's and vLLM's own lines take the same way
out. Text for a terminal, JSON otherwise. Prompts, answers and keys are never logged: no event
carries them, and whatever looks like a key is blotted out on the way, in tracebacks too.

Lines of vLLM's child processes go to stderr in vLLM's own format: they share our stream but not
our process.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any, Literal, TextIO

import structlog

LogFormat = Literal["auto", "text", "json"]

# `fg_` is what our own keys start with; `bearer.` is the WebSocket subprotocol that carries one.
# Anything shorter than 8 characters is a word, not a key.
_KEY = re.compile(r"""(?ix) \b (?: fg_ | bearer[.\ ]\s* | sk- ) [A-Za-z0-9_\-.~+/]{8,} =*""")
_SECRET_FIELDS = frozenset({"authorization", "api_key", "key", "password", "cookie", "x-api-key"})
_BLOT = "[redacted]"

# Far below any line that helps, far above any line that is one: a stack of vLLM's is about 10 kB.
_LONGEST_VALUE_CHARACTERS = 20_000

# Their INFO lines repeat our own events in other words; uvicorn's even quote the query string.
_TALKATIVE = ("uvicorn", "httpx", "watchfiles", "asyncio")


def configure(log_format: LogFormat, level: str, *, stream: TextIO | None = None) -> None:
    """Send every log line of this process through one formatter; calling again replaces it.

    `level` is a name as `logging` knows it, in any case. `auto` is text where `stream` (stderr) is
    a terminal.
    """
    stream = stream or sys.stderr
    text = is_text(log_format, stream)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(text=text, colours=text and stream.isatty()))
    handler.setLevel(level.upper())  # of libraries' loggers too, which set levels of their own
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in ("uvicorn", "uvicorn.error", "vllm"):
        adopt(name)
    # One line per request is ours to write, with the tenant; uvicorn's would carry the query too.
    logging.getLogger("uvicorn.access").disabled = True
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_before(), _wrap()],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def is_text(log_format: LogFormat, stream: TextIO | None = None) -> bool:
    """Whether lines are for people; `auto` asks the terminal."""
    return log_format == "text" or (log_format == "auto" and (stream or sys.stderr).isatty())


def adopt(name: str) -> None:
    """Take over a library's logger, for good: its lines take our way out, whatever it sets up.

    vLLM gives its logger a handler of its own when it is imported, and again with each engine.
    """
    logger = logging.getLogger(name)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    vars(logger).pop("propagate", None)
    logger.__class__ = _Adopted


class _Adopted(logging.Logger):
    # Both are what dictConfig sets when a library configures its logger: to no effect.
    propagate = property(lambda _self: True, lambda _self, _value: None)

    def addHandler(self, hdlr: logging.Handler) -> None:  # noqa: N802  the standard library's name
        """Nothing: the root's handler writes its lines."""


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose methods take an event name and fields: `log.info("server.ready", port=1)`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def bind(**fields: str) -> None:
    """Add `request_id`, `tenant` and the like to every later line of this context (task)."""
    structlog.contextvars.bind_contextvars(**fields)


@contextlib.contextmanager
def bound(**fields: str) -> Iterator[None]:
    """`bind` for the length of a block."""
    with structlog.contextvars.bound_contextvars(**fields):
        yield


def redact(text: str) -> str:
    """`text` with everything that looks like a key blotted out."""
    return _KEY.sub(_BLOT, text)


def _formatter(*, text: bool, colours: bool) -> logging.Formatter:
    # Plain tracebacks: the default ones show what variables held, and that is prompts and keys.
    plain = structlog.dev.plain_traceback
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]
        if text
        else [structlog.processors.JSONRenderer()]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_before(), structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _blot_out,
            *last,
        ],
    )


def _before() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _wrap() -> Any:
    return structlog.stdlib.ProcessorFormatter.wrap_for_formatter


def _blot_out(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Any:
    """Blot out keys in every value, however deep; a processor, so before anything is written."""
    for name, value in event.items():
        event[name] = _BLOT if name.lower() in _SECRET_FIELDS else _blotted(value)
    return event


def _blotted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value[:_LONGEST_VALUE_CHARACTERS])
    if isinstance(value, dict):
        return {
            key: _BLOT if str(key).lower() in _SECRET_FIELDS else _blotted(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_blotted(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact(str(value)[:_LONGEST_VALUE_CHARACTERS])
