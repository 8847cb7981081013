"""What one request holds of a limit per minute, and what its client is told of that limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from app.errors import RateLimited
from app.tenants.minutes import Minutes

Kind = Literal["requests", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaState:
    """Where a tenant stands with one of its limits per minute."""

    kind: Kind
    limit: int
    remaining: int
    reset_seconds: float

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The three `x-ratelimit-*` headers, written as OpenAI's clients read them."""
        kind = self.kind.encode()
        return [
            (b"x-ratelimit-limit-" + kind, b"%d" % self.limit),
            (b"x-ratelimit-remaining-" + kind, b"%d" % self.remaining),
            (b"x-ratelimit-reset-" + kind, b"%ds" % math.ceil(self.reset_seconds)),
        ]


class QuotaSpent(RateLimited):
    """The limit of `state` is used up."""

    def __init__(self, message: str, *, retry_after_seconds: float, state: QuotaState) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        self.state = state


@dataclass(slots=True, kw_only=True)
class Charge:
    """What one request holds of one limit; `name` is None, and so is `state`, without a limit.

    Settled by `Quota.settle()` or `Quota.give_back()`, the first of which counts.
    """

    name: str | None = None
    minute: int = 0
    amount: int = 0
    state: QuotaState | None = None
    settled: bool = False

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The `x-ratelimit-*` headers of its limit; none without one."""
        return [] if self.state is None else self.state.headers()


def state_of(kind: Kind, minutes: Minutes) -> QuotaState:
    """What a client is told of its limit."""
    return QuotaState(
        kind=kind,
        limit=minutes.limit,
        remaining=minutes.remaining,
        reset_seconds=minutes.reset_seconds,
    )
