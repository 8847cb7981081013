"""Noticing that the client has left, and ending its work at once.

The server cancels nothing when a client of a plain handler leaves: it only reports
`http.disconnect` to whoever asks. So the work and that question run side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeVar

from app.errors import FairgateError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody reads the answer any more."""


async def alongside(work: Coroutine[Any, Any, T], *companions: Coroutine[Any, Any, None]) -> T:
    """The result of `work`; `companions` end with it, and one that raises ends it.

    Everything has ended, and been awaited, when this returns or raises.
    """
    with one_error():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(companion) for companion in companions]
            try:
                return await work
            finally:
                for task in tasks:
                    task.cancel()


async def raise_when_gone(receive: Receive) -> None:
    """Wait until the client leaves; the request's body must have been read before.

    Raises:
        ClientGone: always.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone


@contextmanager
def one_error() -> Iterator[None]:
    """Turn the group of errors that a TaskGroup raises into the one that a client is told.

    That the client left comes first, then a `FairgateError`: the rest went wrong because of it.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        raise min(errors, key=_rank) from None


def _rank(error: BaseException) -> int:
    return 0 if isinstance(error, ClientGone) else 1 if isinstance(error, FairgateError) else 2


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
