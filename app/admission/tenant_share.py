"""What admission needs to know of a tenant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """A tenant's share and limits; None is no limit.

    `weight` 0 is background: served only when nobody with a weight has work. `queued` refuses
    beyond it, `running` makes more wait. `wait_seconds` replaces the default longest wait.
    """

    id: str
    weight: float = 1.0
    queued: int | None = 200
    running: int | None = 64
    wait_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise ValueError(f"weight of {self.id} must be 0 or a positive number")
        if self.running is not None and self.running < 1:
            raise ValueError(f"running of {self.id} must be at least 1")
        if self.queued is not None and self.queued < 0:
            raise ValueError(f"queued of {self.id} must not be negative")
