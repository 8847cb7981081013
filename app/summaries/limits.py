"""What one request to `/summarize` or `/ask` may cost and how long its connection is kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryLimits:
    """Bounds of this room, one value for all tenants.

    `body_bytes` bounds an upload while it arrives, `documents` how many one request may carry and
    `parallel_calls` how many engine calls of one request are in flight. A document may need `calls`
    of them: with 1, what does not fit the context is refused. PDF, DOCX and HTML are read by
    `extractors` processes at a time, each for at most `extract_seconds`. After `silence_seconds`
    without an event a stream gets a comment line; a reader that leaves a full buffer for
    `write_seconds` is dropped.
    """

    body_bytes: int = 8 * 1024 * 1024
    documents: int = 64
    calls: int = 1
    parallel_calls: int = 8
    extractors: int = 2
    extract_seconds: float = 30.0
    silence_seconds: float = 5.0
    write_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Raise ValueError for a bound that would refuse everything."""
        for name in ("body_bytes", "documents", "calls", "parallel_calls", "extractors"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("extract_seconds", "silence_seconds", "write_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
