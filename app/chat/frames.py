"""The frames of the server, as finished strings.

A delta is made once per token: its constant start is prepared once a turn (`delta_prefix`), so that
what is left is one concatenation and the escaping of the text.
"""

from __future__ import annotations

import json
import math
from typing import Any

from app.engine.api import Timing, Usage
from app.errors import FairgateError
from app.web.answers import retry_after

quote = json.JSONEncoder(ensure_ascii=False).encode
"""The JSON of one string."""

MOST_SECONDS = 1e9  # JSON knows no infinity
PONG = '{"type":"pong"}'


def ready(session: str, model: str) -> str:
    """The session is open, or open again."""
    return _frame({"type": "ready", "session": session, "model": model})


def queued(turn: str, position: int, eta_seconds: float) -> str:
    """The turn waits; an expectation that nobody has is null."""
    eta = round(eta_seconds, 2) if math.isfinite(eta_seconds) else None
    return _frame({"type": "queued", "id": turn, "position": position, "eta_seconds": eta})


def trimmed(turn: str, turns: int) -> str:
    """So many of the oldest turns no longer fit into the context and are forgotten."""
    return _frame({"type": "trimmed", "id": turn, "turns": turns})


def started(turn: str, seq: int, queue_seconds: float) -> str:
    """The engine has the turn."""
    fields = {"type": "started", "id": turn, "seq": seq, "queue_seconds": _seconds(queue_seconds)}
    return _frame(fields)


def delta_prefix(turn: str) -> str:
    """What every delta of a turn begins with; its number comes next."""
    return f'{{"type":"delta","id":{quote(turn)},"seq":'


def delta(prefix: str, seq: int, text: str) -> str:
    """One piece of text."""
    return f'{prefix}{seq},"text":{quote(text)}}}'


def done(turn: str, seq: int, reason: str, usage: Usage, timing: Timing) -> str:
    """The answer is complete, or was stopped."""
    return _frame(
        {
            "type": "done",
            "id": turn,
            "seq": seq,
            "finish_reason": reason,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
            },
            "timing": {
                "queue_seconds": _seconds(timing.queue_seconds),
                "ttft_seconds": _seconds(timing.ttft_seconds),
                "total_seconds": _seconds(timing.total_seconds),
            },
        }
    )


def error(seq: int, problem: FairgateError, turn: str | None = None) -> str:
    """What went wrong; `turn` where one turn did."""
    fields: dict[str, Any] = {"type": "error", "seq": seq, "code": problem.code}
    if turn is not None:
        fields["id"] = turn
    fields["message"] = problem.message
    seconds = retry_after(problem)
    if seconds is not None:
        fields["retry_after_seconds"] = seconds
    return _frame(fields)


def _seconds(value: float) -> float:
    return round(min(max(0.0, value), MOST_SECONDS), 4)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _frame(fields: dict[str, Any]) -> str:
    return _encode(fields)
