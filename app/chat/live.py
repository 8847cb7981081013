"""A session at work: the task that answers its turn, and the socket it happens to be attached to."""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from app.chat import frames
from app.chat.breaker import Breaker
from app.chat.connection import Connection, Verdict
from app.chat.fitting import fit
from app.chat.protocol import Say
from app.chat.session import Session, Turn
from app.engine.api import (
    Api,
    End,
    Piece,
    Queued,
    Started,
    TextEngine,
    Usage,
    Work,
)
from app.errors import Draining, FairgateError, TooSlow
from app.web.answers import as_fairgate_error
from app.web.caller import Caller

logger = logging.getLogger(__name__)

# After an error with one of these codes there is nothing to be said over the socket any more.
CLOSING_CODES = frozenset({"engine_dead", "too_slow", "unsupported_media_type", "too_large"})


class MakeWork(Protocol):
    """Says how one turn of a caller counts.

    Raises:
        FairgateError: it may not even be tried.
    """

    def __call__(
        self, caller: Caller, api: Api, *, streamed: bool, batch: bool = False
    ) -> Work: ...


class House(Protocol):
    """What a session needs of the switchboard."""
