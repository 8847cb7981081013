"""From a key to a caller: who asks, and what this one request may claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from app.errors import InvalidApiKey
from app.tenants.keys import key_hash
from app.tenants.model import Tenant

WorkClass = Literal["interactive", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One request's caller, found at the door and kept in `scope["state"]["caller"]`.

    `arrived_seconds` is `time.monotonic()` at the door. `work_class` and `max_wait_seconds` are
    what the client asked for, bounded by what its tenant may have; None leaves it to the route.
    """

    tenant: Tenant
    request_id: str
    arrived_seconds: float
    work_class: WorkClass | None = None
    max_wait_seconds: float | None = None


class Keys(Protocol):
    """Who a key belongs to: the tenants file, or everyone where there is none."""

    @property
    def anonymous(self) -> bool:
        """True where there is no tenants file and the Authorization header is ignored."""

    def tenant_of(self, key: str | None) -> Tenant:
        """The tenant of `key`.

        Raises:
            InvalidApiKey: no key, or nobody's.
        """


class CurrentKeys:
    """The keys that count now; the flags and the tenants file change them after the start."""

    def __init__(self, keys: Keys) -> None:
        self.now = keys

    @property
    def anonymous(self) -> bool:
        """Whether nobody needs a key."""
        return self.now.anonymous

    def tenant_of(self, key: str | None) -> Tenant:
        """See `Keys.tenant_of`."""
        return self.now.tenant_of(key)


class OneTenant:
    """One tenant with a few keys and no file: what `--api-key` asks for.

    `hashes` are `sha256:...` of the keys.
    """

    def __init__(self, tenant: Tenant, hashes: set[str]) -> None:
        self._tenant = tenant
        self._hashes = frozenset(hashes)

    @property
    def anonymous(self) -> bool:
        """Always false."""
        return False

    def tenant_of(self, key: str | None) -> Tenant:
        """The one tenant; looked up by hash, so the time tells nothing of the key.

        Raises:
            InvalidApiKey: no key, or another one.
        """
        if key is None or key_hash(key) not in self._hashes:
            raise InvalidApiKey("no such key: send yours as `Authorization: Bearer KEY`")
        return self._tenant


class Anonymous:
    """Everyone is tenant `default`; used where there is no tenants file."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant

    @property
    def anonymous(self) -> bool:
        """Always true."""
        return True

    def tenant_of(self, key: str | None) -> Tenant:
        """The one tenant, whatever the key."""
        return self._tenant
