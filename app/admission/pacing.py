"""How many prompts a step: prompts that come together slow everyone's next token together.

They also end together, and so come together again: without pacing a flood keeps its rhythm. What
is allowed per step is what keeps the engine full: as many prompts as sequences end in a step, and
a part of what is free. It is refilled by engine steps, and by time where none come.
"""

from __future__ import annotations

# Steps over which the rate of endings is averaged: about the length of a short answer.
AVERAGED_STEPS = 32
# A sixteenth of what is free per step fills an empty engine in about half a second at common steps.
FREE_SHARE = 16
# Without steps for this long there is nothing to pace.
IDLE_SECONDS = 0.25


class Pace:
    """The allowance of prompts for the current step."""

    __slots__ = ("_ended", "_endings", "_left", "_refilled_seconds")

    def __init__(self) -> None:
        self._left = 1.0
        self._ended = 0
        self._endings = 0.0
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

    def ended(self, sequences: int) -> None:
        """So many sequences are done."""
        self._ended += sequences

    def stepped(self, free_sequences: int, now: float) -> None:
        """The engine has made a step."""
        self._endings += (self._ended - self._endings) / AVERAGED_STEPS
        self._ended = 0
        self._refill(max(1.0, self._endings + free_sequences / FREE_SHARE), now)

    def tick(self, now: float) -> None:
        """Refill where no steps come."""
        if now >= self.refill_seconds:
            self._refill(1.0, now)

    def _refill(self, prompts: float, now: float) -> None:
        # At most one more than a step's is saved up, for fractions to add up and bursts not to.
        self._left = min(max(self._left, 0.0) + prompts, prompts + 1.0)
        self._refilled_seconds = now
