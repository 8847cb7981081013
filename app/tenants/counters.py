"""Where the use of the quotas is counted: in this process, or in a Redis that replicas share.

Of `limits` only the storages are used. Its strategies can neither take back what was reserved nor
charge what was used beyond it, they forget the count when a limit changes, they do not say when a
cost of many would fit, and its storage in memory walks over every key at each use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

from limits.aio.storage import RedisClusterStorage, RedisSentinelStorage, RedisStorage
from limits.errors import ConfigurationError, StorageError

from app.tenants.minutes import MINUTE_SECONDS
from app.tenants.reach import TIMEOUT_SECONDS, Reach

EXPIRY_SECONDS = 3 * MINUTE_SECONDS
"""A minute's count is read in this minute and the next; the third is for clocks that differ."""

SCHEMES: dict[str, type[RedisStorage]] = {
    "redis": RedisStorage,
    "rediss": RedisStorage,
    "redis+unix": RedisStorage,
    "redis+sentinel": RedisSentinelStorage,
    "redis+cluster": RedisClusterStorage,
}
OPTIONS: dict[str, Any] = {
    "wrap_exceptions": True,
    "implementation": "redispy",
    "key_prefix": "fairgate",
    "socket_connect_timeout": TIMEOUT_SECONDS,
    # Reach is the timeout. This one would be a wait_for(), which before Python 3.12 may swallow a
    # cancellation, and the request of a client that left would go on.
    "socket_timeout": None,
}
STORE_ERRORS = (StorageError, OSError, TimeoutError)
"""What a store raises that cannot be asked."""


class Counters(Protocol):
    """Counts by name and minute (whole minutes since 1970).

    Where they are kept elsewhere, `add` and `read` may raise `reach.Away`.
    """

    @property
    def away(self) -> str | None:
        """Why they cannot be asked, or None."""

    async def add(self, name: str, minute: int, amount: int) -> int:
        """The count after adding `amount`, which may be negative; one step for all who count."""

    async def read(self, name: str, minute: int) -> int:
        """The count; 0 where nothing was added."""

    async def close(self) -> None:
        """Give back what is held."""


class OwnCounters:
    """In this process; never waits."""

    away = None

    def __init__(self) -> None:
        self._minutes: dict[int, dict[str, int]] = {}

    async def add(self, name: str, minute: int, amount: int) -> int:
        """See `Counters.add`."""
        counts = self._minutes.get(minute)
        if counts is None:
            self._forget(minute)
            counts = self._minutes[minute] = {}
        counts[name] = total = counts.get(name, 0) + amount
        return total

    async def read(self, name: str, minute: int) -> int:
        """See `Counters.read`."""
        return self._minutes.get(minute, {}).get(name, 0)

    async def close(self) -> None:
        """Nothing is held."""

    def _forget(self, minute: int) -> None:
        self._minutes = {at: counts for at, counts in self._minutes.items() if abs(at - minute) < 2}


class SharedCounters:
    """In the Redis at `url`; replicas that share it should have clocks within a second or two.

    `on_away` hears when it goes away and when it is back.

    Raises:
        ValueError: not the URL of a Redis, or the library for it is not installed.
    """

    def __init__(self, url: str, on_away: Callable[[bool], None]) -> None:
        self._reach = Reach(STORE_ERRORS, on_away)
        try:
            scheme = urlsplit(url).scheme
            self._storage: RedisStorage = SCHEMES[scheme](f"async+{url}", **OPTIONS)
        except KeyError:
            known = ", ".join(SCHEMES)
            raise ValueError(
                f"no URL of a Redis: it begins with one of {known}, then ://"
            ) from None
        except ConfigurationError as error:
            if url in str(error):  # and with it the password
                raise ValueError(f"no URL of a Redis: what stands behind {scheme}://") from None
            raise ValueError(f"Redis cannot be used: {error}") from None
        except ValueError:
            raise ValueError("no URL of a Redis: it cannot be read") from None

    @property
    def away(self) -> str | None:
        """See `Counters.away`."""
        return self._reach.away

    async def add(self, name: str, minute: int, amount: int) -> int:
        """See `Counters.add`."""
        key = f"{name}/{minute}"
        return await self._reach.ask(lambda: self._storage.incr(key, EXPIRY_SECONDS, amount))

    async def read(self, name: str, minute: int) -> int:
        """See `Counters.read`."""
        return await self._reach.ask(lambda: self._storage.get(f"{name}/{minute}"))

    async def close(self) -> None:
        """Close the connections."""
        bridge: Any = self._storage.bridge  # each kind has this, the class that mypy sees has not
        await bridge.get_connection().aclose()
