"""What a request may use of its tenant's minute, as the engine's seam asks for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from app.engine.api import Work


@dataclass(slots=True)
class Spent:
    """The tokens that a request really used, prompt and answer; 0 where it never began."""

    tokens: int = 0


# Takes what a request may use of its tenant's limits per minute, and settles it to what it used.
Metered = Callable[[Work, int], AbstractAsyncContextManager[Spent]]
