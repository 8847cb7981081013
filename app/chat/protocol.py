"""The frames of a client: text in, values out, and one clear sentence for whatever is wrong.

Unknown fields are ignored, unknown types are not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from app.chat.options import GivenOptions, read_options
from app.chat.text import clean, read_text
from app.engine.api import Message
from app.errors import InvalidFrame

Fields = dict[str, Any]

MOST_OBJECTS = 20_000  # in one frame: 1 MiB of `{}` would hold the event loop for 60 ms
LONGEST_ID = 256
LONGEST_HELLO = 4096  # characters; nobody reads more of someone unknown


@dataclass(frozen=True, slots=True)
class Hello:
    """Who is asking, where the handshake did not say."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How the conversation begins."""

    system: str | None
    history: tuple[Message, ...]
    model: str | None
    options: GivenOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """A `message`: the user's turn."""

    id: str
    content: str
    options: GivenOptions


@dataclass(frozen=True, slots=True)
class Stop:
    """End this turn now."""

    id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a session whose connection was lost, after the last frame that arrived."""

    session: str
    after: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Is anyone there?"""


ClientFrame = Hello | Start | Say | Stop | Resume | Ping


def decode(text: str) -> Fields:
    """The JSON object in `text`.

    Raises:
        InvalidFrame: no JSON, no object, nested too deeply, with a name twice, or too large a heap
            of objects.
    """
    objects = 0

    def build(pairs: list[tuple[str, Any]]) -> Fields:
        nonlocal objects
        objects += 1
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise InvalidFrame("a frame names each field once")
        if objects > MOST_OBJECTS:
            raise InvalidFrame(f"a frame holds at most {MOST_OBJECTS} JSON objects")
        return fields

    try:
        value = json.loads(text, object_pairs_hook=build, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidFrame("the frame is nested too deeply") from None
    except ValueError:
        raise InvalidFrame("a frame is one JSON object; this is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidFrame("a frame is one JSON object with a `type`")
    return value


def speaks_sessions(text: str) -> bool:
    """Whether this first frame of a socket without subprotocol means session mode.

    A JSON object with a `type` does, be it right or wrong; any other text is a message itself.
    """
    if not text.lstrip(" \t\r\n").startswith("{"):
        return False
    try:
        return "type" in json.loads(text)
    except RecursionError:
        return True
    except ValueError:
        return False


def frame_id(fields: Fields) -> str | None:
    """The id to name in an error about these fields, if they carry a usable one."""
    value = fields.get("id")
    return clean(value) if isinstance(value, str) and len(value) <= LONGEST_ID else None


def read(fields: Fields) -> ClientFrame:
    """The frame that `fields` mean.

    Raises:
        InvalidFrame: an unknown type, a missing field or one of the wrong kind.
        InvalidRequest: an option outside its range.
    """
    kind = fields.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise InvalidFrame(f"`type` must be one of {', '.join(_READERS)}", param="type")
    return reader(fields)


def _no_constant(name: str) -> NoReturn:
    raise InvalidFrame(f"{name} is not JSON")


def _optional_text(fields: Fields, name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else read_text(value, name)


def _content(value: Any, name: str) -> str:
    """A string, or a list of text parts, joined as chat clients expect."""
    if not isinstance(value, list):
        return read_text(value, name)
    parts = []
    for index, part in enumerate(value):
        where = f"{name}[{index}]"
        if not isinstance(part, dict) or part.get("type") != "text":
            raise InvalidFrame(f"`{where}` must be a part of type text", param=where)
        parts.append(read_text(part.get("text"), f"{where}.text"))
    return "".join(parts)


def _message(value: Any, name: str) -> Message:
    if not isinstance(value, dict):
        raise InvalidFrame(f"`{name}` must be an object", param=name)
    role = value.get("role")
    if role not in ("system", "user", "assistant"):
        raise InvalidFrame(f"`{name}.role` must be system, user or assistant", param=name)
    return Message(role=role, content=_content(value.get("content"), f"{name}.content"))


def _start(fields: Fields) -> Start:
    given = fields.get("history")
    if given is not None and not isinstance(given, list):
        raise InvalidFrame("`history` must be a list of messages", param="history")
    history = [_message(value, f"history[{i}]") for i, value in enumerate(given or ())]
    system = _optional_text(fields, "system")
    if history and history[0].role == "system" and system is None:
        system = history.pop(0).content
    for message in history:
        if message.role == "system":
            raise InvalidFrame("the system message stands first, and once", param="history")
    return Start(
        system=system,
        history=tuple(history),
        model=_optional_text(fields, "model"),
        options=read_options(fields),
    )


def _say(fields: Fields) -> Say:
    return Say(
        id=read_text(fields.get("id"), "id", longest=LONGEST_ID),
        content=_content(fields.get("content"), "content"),
        options=read_options(fields),
    )


def _resume(fields: Fields) -> Resume:
    after = fields.get("after")
    if not isinstance(after, int) or isinstance(after, bool) or after < 0:
        raise InvalidFrame("`after` must be the `seq` of the last frame that arrived, or 0")
    return Resume(read_text(fields.get("session"), "session", longest=LONGEST_ID), after)


_READERS: dict[str, Callable[[Fields], ClientFrame]] = {
    "hello": lambda fields: Hello(read_text(fields.get("key"), "key")),
    "start": _start,
    "message": _say,
    "stop": lambda fields: Stop(read_text(fields.get("id"), "id", longest=LONGEST_ID)),
    "resume": _resume,
    "ping": lambda _: Ping(),
}
