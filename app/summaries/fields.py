"""The options of a request, one by one: each bad one is a sentence that says what to send.

Unknown names are ignored, as OpenAI's API does, so that a client may send fields of its own; but a
name that looks like a slip of one that is known is refused, for a `max_word` that does nothing is
worse than an error.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl

from app.errors import InvalidRequest
from app.summaries.body import Body
from app.summaries.readable import readable

Fields = Mapping[str, object]

# Names that other APIs use for the same thing, too far from ours for a slip of the pen.
_ELSEWHERE = {
    "content": "text",
    "docs": "documents",
    "input": "text",
    "lang": "language",
    "length": "max_words",
    "max_length": "max_words",
    "max_tokens": "max_words",
    "messages": "text",
    "min_length": "max_words",
    "prompt": "text",
    "topic": "focus",
    "words": "max_words",
}
_TRUE, _FALSE = ("true", "1", "yes", ""), ("false", "0", "no")


def fields_of_json(body: Body) -> Fields:
    """The object that a JSON body holds.

    Raises:
        InvalidRequest: it is not UTF-8, not JSON, nested too deeply or not an object.
    """
    if body.charset not in (None, "utf-8", "utf8", "us-ascii"):
        raise InvalidRequest(
            f"JSON is UTF-8, not {body.charset}: send it as UTF-8", param="content-type"
        )
    try:
        value = json.loads(body.data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8: byte {error.start} cannot be decoded; send the JSON as UTF-8"
        ) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply: no option needs that") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:  # a number of thousands of digits
        raise InvalidRequest("the body is not JSON: a number in it is too long") from None
    if not isinstance(value, dict):
        raise InvalidRequest('the body must be a JSON object such as {"text": "..."}')
    return value


def fields_of_query(query: bytes) -> Fields:
    """The options in a query string, typed as JSON would have them where that is clear."""
    try:
        pairs = parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, max_num_fields=32, errors="replace"
        )
    except ValueError:
        raise InvalidRequest("the query has too many options") from None
    fields: dict[str, object] = {}
    for name, value in pairs:
        if name in fields:
            raise InvalidRequest(f"{name} is given twice in the query", param=name)
        fields[name] = typed(name, value)
    return fields


def typed(name: str, value: str) -> object:
    """`value` of a query or form as the JSON value of option `name`, or as it is if it is none."""
    if name == "max_words" and re.fullmatch(r"[+-]?[0-9]{1,12}", value):
        return int(value)
    if name == "stream" and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    return value


def merged(first: Fields, second: Fields) -> Fields:
    """Both sets of options; one given in both is an error, for either might be meant."""
    for name in first:
        if name in second:
            raise InvalidRequest(f"{name} is given in the query and in the body", param=name)
    return {**first, **second}


def refuse_slips(fields: Fields, known: Collection[str]) -> None:
    """Refuse a name that is almost one of `known`; others that are unknown are left alone."""
    for name in fields:
        if name in known:
            continue
        plain = re.sub(r"(?<=[a-z])(?=[A-Z])|-", "_", name[:64]).lower()
        near = difflib.get_close_matches(plain, known, n=1, cutoff=0.75)
        meant = near[0] if near else _ELSEWHERE.get(plain)
        if meant:
            raise InvalidRequest(
                f"there is no option {name[:64]!r}; did you mean {meant!r}?", param=name[:64]
            )


def choice(fields: Fields, name: str, choices: tuple[str, ...]) -> str:
    """The option, one of `choices`; the first where it is absent."""
    value = fields.get(name)
    if value is None:
        return choices[0]
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequest(f"{name} must be one of {', '.join(choices)}", param=name)
    return value


def flag(fields: Fields, name: str) -> bool:
    """The option, true or false; false where it is absent."""
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false", param=name)
    return value


def number(fields: Fields, name: str, low: int, high: int) -> int | None:
    """The option, a whole number from `low` to `high`; None where it is absent."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{name} must be a whole number from {low} to {high:,}", param=name)
    return value


def line(fields: Fields, name: str, max_characters: int) -> str | None:
    """The option, a short text on one line; None where it is absent or blank."""
    value: Any = fields.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str) or len(value) > max_characters:
        raise InvalidRequest(
            f"{name} must be a text of at most {max_characters:,} characters", param=name
        )
    return " ".join(readable(value, param=name).split())
