"""How much at once: the protocol of a batch policy, and the shipped ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the engine was started with.

    `sequences` is its `max_num_seqs`, `kv_tokens` the size of its KV cache (None: unknown),
    `step_tokens` its `max_num_batched_tokens`, `block_tokens` its KV block.
    """

    sequences: int
    kv_tokens: int | None = None
    step_tokens: int = 2048
    block_tokens: int = 16

    def __post_init__(self) -> None:
        for name in ("sequences", "step_tokens", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """At most so many sequences at once, and nothing else; None: as many as the engine runs."""

    active_sequences: int | None = None

    @property
    def name(self) -> str:
        """Its name in settings and `/admin/policy`."""
        return "fixed"
