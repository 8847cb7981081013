"""How many prompts a step: prompts that come together slow everyone's next token together.

They also end together, and so come together again: without pacing a flood keeps its rhythm, with
long prefills and then long spans in which no place comes free. What keeps the engine full is known
from Little's law: as many prompts a step as it runs sequences, over the steps that one stays. A
part of what is free is added, so that an empty engine fills. Steps refill the allowance, and time
does where no steps come.
"""

from __future__ import annotations

# Endings over which the steps of a stay are averaged: about what common engines run at once.
AVERAGED_ENDINGS = 64
# The part of the free places that may be filled per step beyond what endings need: small, or the
# rhythm of a flood's first second lasts (simulated: a light tenant's p95 is 1.16 of the floor's at
# 1/64, 1.36 at 1/32, 1.86 at 1/16).
FREE_PART = 1 / 64
# Without steps for this long there is nothing to pace.
IDLE_SECONDS = 0.25


class Pace:
    """The allowance of prompts for the current step."""

    __slots__ = ("_left", "_refilled_seconds", "_stay", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self._left = 1.0
        self._stay: float | None = None
        self._refilled_seconds = 0.0

    @property
    def open(self) -> bool:
        """One more prompt may be handed over in this step."""
        return self._left >= 1.0

    @property
    def refill_seconds(self) -> float:
        """When it opens even if no step comes."""
        return self._refilled_seconds + IDLE_SECONDS

    def handed(self) -> None:
        """A prompt was handed over."""
        self._left -= 1.0

    def ended(self, stayed_steps: int) -> None:
        """A request left the engine after so many steps."""
        if self._stay is None:
            self._stay = float(stayed_steps)
        self._stay += (stayed_steps - self._stay) / AVERAGED_ENDINGS

    def stepped(self, limit_sequences: int, free_sequences: int, now: float) -> None:
        """The engine has made a step."""
        self.steps += 1
        needed = 1.0 if self._stay is None else limit_sequences / max(1.0, self._stay)
        self._refill(max(1.0, needed + free_sequences * FREE_PART), now)

    def tick(self, now: float) -> None:
        """Refill where no steps come."""
        if now >= self.refill_seconds:
            self._refill(1.0, now)

    def _refill(self, prompts: float, now: float) -> None:
        # At most one more than a step's is saved up, for fractions to add up and bursts not to.
        self._left = min(max(self._left, 0.0) + prompts, prompts + 1.0)
        self._refilled_seconds = now
