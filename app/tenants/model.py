"""A tenant as the rest of the house sees it: plain values, read once from the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a tenant may hold or use at once or per minute; None is no limit.

    `queued` counts waiting requests and refuses beyond it; `running` makes more of them wait.
    """

    queued: int | None = 200
    running: int | None = 64
    connections: int | None = None
    wait_seconds: float | None = None
    request_seconds: float | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One customer: its share (`weight`), its most urgent class, its models and limits.

    `models` None means every served model. `admin` opens `/admin`.
    """

    id: str
    weight: float = 1.0
    work_class: Literal["interactive", "batch"] = "interactive"
    models: frozenset[str] | None = None
    limits: Limits = field(default_factory=Limits)
    admin: bool = False


ANONYMOUS = Tenant(id="default", admin=True)
