"""A tenant as the rest of the house sees it: plain values, read once from the file."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class Tenants:
    """Every tenant of one reading of the file, by id and by the hash of each of its keys."""

    by_id: Mapping[str, Tenant]
    by_key: Mapping[str, Tenant] = field(repr=False)

    def changed_since(self, old: Tenants) -> list[Tenant]:
        """Those that `old` lacks or knows otherwise; keys do not count."""
        return [tenant for tenant in self.by_id.values() if old.by_id.get(tenant.id) != tenant]

    def gone_since(self, old: Tenants) -> list[str]:
        """The ids that only `old` has."""
        return [id_ for id_ in old.by_id if id_ not in self.by_id]


# Whoever calls where there is no tenants file. Nobody shares with it, so the engine alone bounds
# what it runs.
ANONYMOUS = Tenant(id="default", limits=Limits(queued=1000, running=None), admin=True)
