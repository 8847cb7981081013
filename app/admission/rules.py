"""The numbers that fairness is stated in, as values with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.admission.ticket import WorkClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a token costs, in units of service.

    1 and 2 are the prices of the VTC paper (OSDI'24, section 3): output costs about twice as much
    time as input on common hardware. `cached_share` of a prompt token that came from the prefix
    cache is kept: it saved the time, not the memory.
    """

    prompt: float = 1.0
    output: float = 2.0
    cached_share: float = 0.1

    def __post_init__(self) -> None:
        if self.prompt <= 0 or self.output <= 0 or not 0 <= self.cached_share <= 1:
            raise ValueError("prices must be positive and cached_share between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BandWeights:
    """How interactive and batch work share the engine while both have work."""

    interactive: float = 10.0
    batch: float = 1.0

    def __post_init__(self) -> None:
        if self.interactive <= 0 or self.batch < 0:
            raise ValueError("interactive must be positive, batch at least 0")

    @classmethod
    def strict(cls, *, floor: float = 0.05) -> BandWeights:
        """Interactive first, but `floor` of the service for batch: that is a weight like any other.

        Floor 0 serves batch only while no interactive work waits.
        """
        if not 0 <= floor < 1:
            raise ValueError("floor must be at least 0 and below 1")
        return cls(interactive=1.0 - floor, batch=floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The longest wait to admission where a tenant has none of its own.

    A target for the first token, where set, replaces `interactive_seconds`.
    """

    interactive_seconds: float = 60.0
    batch_seconds: float = 600.0
    first_token_target_seconds: float | None = None

    def __post_init__(self) -> None:
        target = self.first_token_target_seconds
        if self.interactive_seconds <= 0 or self.batch_seconds <= 0:
            raise ValueError("waits must be positive")
        if target is not None and target <= 0:
            raise ValueError("first_token_target_seconds must be positive")

    def target_for(self, work_class: WorkClass) -> float | None:
        """The target that the class is held to, if any."""
        return self.first_token_target_seconds if work_class == "interactive" else None

    def default_for(self, work_class: WorkClass) -> float:
        """Seconds from arrival, target aside."""
        return self.interactive_seconds if work_class == "interactive" else self.batch_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All of them.

    `light_tokens` is how much service a tenant that was below its share may have before it counts
    as at its share again: a few chat turns. `queued_total` bounds the memory of all queues.
    """

    prices: Prices = field(default_factory=Prices)
    bands: BandWeights = field(default_factory=BandWeights)
    waits: Waits = field(default_factory=Waits)
    light_tokens: float = 1024.0
    queued_total: int = 100_000

    def __post_init__(self) -> None:
        if self.light_tokens < 0 or self.queued_total < 1:
            raise ValueError("light_tokens must be at least 0, queued_total at least 1")
