"""Who a key belongs to, as the tenants file says now."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.errors import InvalidApiKey
from app.tenants.file import TenantsFileError, parse_tenants, read_raw
from app.tenants.file_watch import FileWatch, Pace
from app.tenants.keys import key_hash
from app.tenants.model import Tenant, Tenants

LONGEST_KEY_CHARACTERS = 512
"""Longer ones are nobody's, and hashing a megabyte of them is work for nothing."""

ReloadResult = Literal["loaded", "failed"]
OnChange = Callable[[Tenants, Tenants], None]
OnReload = Callable[[ReloadResult, Sequence[str]], None]


class Registry:
    """The tenants of one file, reloaded when it changes: all of it, or nothing.

    `on_change(old, new)` is called when the tenants have become others, right after the swap;
    `on_reload(result, problems)` once for each new content of the file, good or bad. Both run on
    the event loop. A removed key is unknown from the next `tenant_of()` on; whoever holds a
    `Tenant` keeps it.

    Raises:
        TenantsFileError: the file cannot be used; there are no tenants to fall back on yet.
    """

    def __init__(
        self, path: Path, on_change: OnChange, on_reload: OnReload, *, pace: Pace | None = None
    ) -> None:
        self._path = path
        self._on_change = on_change
        self._on_reload = on_reload
        self._watch = FileWatch(path, pace or Pace())  # before the first reading: misses nothing
        self._one_at_a_time = asyncio.Lock()
        raw = read_raw(path)
        self._known = fingerprint(raw)
        self._tenants = parse_tenants(raw, path.name)

    @property
    def tenants(self) -> Tenants:
        """All of them; one consistent set for whoever keeps it."""
        return self._tenants

    @property
    def anonymous(self) -> bool:
        """Always false."""
        return False

    def tenant_of(self, key: str | None) -> Tenant:
        """The tenant of `key`; looked up by hash, so the time tells nothing of the key.

        Raises:
            InvalidApiKey: no key, or nobody's. Keys are ASCII: whatever else arrives, whichever
                way it was decoded, is nobody's.
        """
        if key is None:
            raise InvalidApiKey("this needs a key: send yours as `Authorization: Bearer KEY`")
        if len(key) <= LONGEST_KEY_CHARACTERS and key.isascii():
            tenant = self._tenants.by_key.get(key_hash(key))
            if tenant is not None:
                return tenant
        raise InvalidApiKey("no such key: send yours as `Authorization: Bearer KEY`")

    async def watch(self) -> None:
        """Reload whenever the file has changed; runs until cancelled."""
        async with aclosing(self._watch.changes()) as changes:
            async for _ in changes:
                await self.reload()

    async def reload(self) -> None:
        """Read the file now; a content that was read before changes nothing and is not reported."""
        async with self._one_at_a_time:
            # Reading waits for the disk, and parsing ten thousand tenants takes a second.
            read = await asyncio.to_thread(_read, self._path, self._known)
            self._known = read.fingerprint
            if read.problems:
                self._on_reload("failed", read.problems)
            elif read.tenants is not None:
                old, self._tenants = self._tenants, read.tenants
                if old != read.tenants:
                    self._on_change(old, read.tenants)
                self._on_reload("loaded", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What one reading found: tenants, or problems, or neither where the content is known."""

    fingerprint: bytes
    tenants: Tenants | None = None
    problems: Sequence[str] = ()


def _read(path: Path, known: bytes) -> Read:
    """Read the file unless its content is the one with the fingerprint `known`."""
    try:
        raw = read_raw(path)
    except TenantsFileError as error:
        now = fingerprint(str(error).encode())
        return Read(fingerprint=now, problems=() if now == known else error.problems)
    now = fingerprint(raw)
    if now == known:
        return Read(fingerprint=now)
    try:
        return Read(fingerprint=now, tenants=parse_tenants(raw, path.name))
    except TenantsFileError as error:
        return Read(fingerprint=now, problems=error.problems)


def fingerprint(raw: bytes) -> bytes:
    """Tells one content of the file from another."""
    return hashlib.sha256(raw).digest()
