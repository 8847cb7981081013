"""When a file has changed and come to rest.

The system's notices only say "look now": what counts is what the file looks like, so that an
editor's rename, Kubernetes' swap of a symbolic link two folders up and a file system without
notices are all the same. A file that was replaced is complete; one that is written in place may be
half of itself and still be valid, and is left alone until nothing has happened for a while.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from watchfiles import awatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often to look, and how long a file must not change before it counts as written.

    `poll_seconds` is the longest time between looks, `look_seconds` that between two of them while
    something happens; `quiet_seconds` is for a file that is written in place, gone, or does not
    end with a new line.
    """

    poll_seconds: float = 1.0
    look_seconds: float = 0.05
    quiet_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """A file from outside; `file` is its device and inode, or None where there is none."""

    file: tuple[int, int] | None
    state: tuple[int, ...] = ()
    whole: bool = False


NOTHING = Look(None)


def look(path: Path) -> Look:
    """What is at `path` now, behind all links."""
    try:
        if not path.is_file():  # opening a pipe would wait
            return NOTHING
        with path.open("rb", buffering=0) as file:
            stat = os.fstat(file.fileno())
            if stat.st_size:
                file.seek(-1, os.SEEK_END)
            return Look(
                (stat.st_dev, stat.st_ino),
                (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns),
                whole=file.read(1) == b"\n",
            )
    except OSError:
        return NOTHING


class FileWatch:
    """Watches one path; changes since it was made are seen, also those before `changes()` runs."""

    def __init__(self, path: Path, pace: Pace) -> None:
        self._path = path
        self._pace = pace
        self._seen = look(path)

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yields each time the file has changed and come to rest; never ends by itself."""
        async with aclosing(self._wakes()) as wakes:
            async for _ in wakes:
                while await asyncio.to_thread(look, self._path) != self._seen:
                    self._seen = await self._at_rest()
                    yield

    async def _at_rest(self) -> Look:
        """What the file looks like once it has stopped changing."""
        pace, latest, in_place, same = self._pace, self._seen, False, 0
        # Looks are counted, not seconds: while this process stands still it sees nothing.
        quiet_looks = math.ceil(pace.quiet_seconds / pace.look_seconds)
        while True:
            now = await asyncio.to_thread(look, self._path)
            if now == latest:
                same += 1
            else:
                in_place = now.file in (latest.file, self._seen.file)
                latest, same = now, 0
            if same >= (quiet_looks if in_place or not now.whole else 1):
                return now
            await asyncio.sleep(pace.look_seconds)

    async def _wakes(self) -> AsyncGenerator[None, None]:
        """Yields when something happened in the file's folder, and after `poll_seconds` at most."""
        poll_seconds = self._pace.poll_seconds
        try:
            notices = awatch(
                self._path.parent,
                watch_filter=None,
                debounce=50,
                step=25,
                rust_timeout=int(poll_seconds * 1000),
                yield_on_timeout=True,
                recursive=False,
            )
            async with aclosing(notices):
                async for _ in notices:
                    yield
        except (OSError, RuntimeError):  # no such folder, or the system has no more watches to give
            pass
        while True:
            yield
            await asyncio.sleep(poll_seconds)
