"""Who may call, and with which share: the tenants file or the lack of one, told to those who ask.

Part of the composition: it knows the tenants' room, admission and the metrics, which do not know
each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from app import logs
from app.admission.dispatcher import Dispatcher
from app.admission.tenant_share import TenantShare
from app.engine.api import Work
from app.engine.metering import Spent
from app.errors import Refused
from app.metrics import Metrics
from app.settings import Settings, SettingsError
from app.tenants.charge import Charge
from app.tenants.file import TenantsFileError
from app.tenants.keys import key_hash
from app.tenants.model import ANONYMOUS, Tenant, Tenants
from app.tenants.quota import Quota
from app.tenants.registry import Registry, ReloadResult
from app.web.caller import Anonymous, CurrentKeys, OneTenant
from app.web.origins import is_loopback

log = logs.get_logger(__name__)


class Tenancy:
    """The keys that count, and their tenants' shares in admission and labels in metrics.

    Raises:
        SettingsError: the tenants file cannot be used.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._dispatcher: Dispatcher | None = None
        self._registry = self._read(settings.tenants_file)
        self.keys = CurrentKeys(self._registry or Anonymous(ANONYMOUS))
        self._name_in_metrics()
        redis_url = settings.redis_url
        try:
            self._quota = Quota(
                None if redis_url is None else redis_url.get_secret_value(),
                when_away=settings.redis_away,
                on_away=metrics.set_quota_store_away,
            )
        except ValueError as error:
            raise SettingsError([f"FAIRGATE_REDIS_URL: {error}"]) from None

    @asynccontextmanager
    async def metered(self, work: Work, tokens: int) -> AsyncIterator[Spent]:
        """Take `tokens` of the tenant's minute, and settle them to what was spent.

        Raises:
            RateLimited: no room for them, or for one more request, this minute.
            InvalidRequest: more than a whole minute's.
        """
        tenant = self._metered_tenant(work.tenant)
        spent = Spent()
        if tenant is None:
            yield spent
            return
        request = Charge() if work.counted else await self._quota.take_request(tenant)
        try:
            reserved = await self._quota.reserve_tokens(tenant, tokens)
        except BaseException:
            self._quota.give_back(request)
            raise
        work.counted = True
        work.headers += [*request.headers(), *reserved.headers()]
        try:
            yield spent
        except Refused:
            # Another limit refused it: it costs nothing of this one.
            self._quota.give_back(request)
            raise
        finally:
            self._quota.settle(reserved, spent.tokens)

    def _metered_tenant(self, tenant_id: str) -> Tenant | None:
        """The tenant, where it has a limit per minute."""
        if self._registry is None:
            return None
        tenant = self._registry.tenants.by_id.get(tenant_id)
        if tenant is None:
            return None
        limits = tenant.limits
        free = limits.requests_per_minute is None and limits.tokens_per_minute is None
        return None if free else tenant

    def honour(self, api_keys: Sequence[str]) -> None:
        """Take over vLLM's `--api-key`, and refuse to be open to others without any key.

        Raises:
            SettingsError: keys in two places, or none on an address that others can reach.
        """
        host = self._settings.host
        if self._registry is not None:
            if api_keys:
                problem = "--api-key does not go with a tenants file: put the key's hash into it"
                raise SettingsError([problem])
        elif api_keys:
            hashes = {key_hash(key) for key in api_keys}
            self.keys.now = OneTenant(replace(ANONYMOUS, admin=False), hashes)
        elif is_loopback(host):
            log.warning("gateway.anonymous", host=host, meaning="whoever is on this machine")
        elif self._settings.allow_anonymous:
            self.keys.now = Anonymous(replace(ANONYMOUS, admin=False))
            log.warning("gateway.anonymous", host=host, meaning="whoever can connect is served")
        else:
            problem = (
                f"{host} can be reached by others and there is no key: set FAIRGATE_TENANTS_FILE, "
                "or give --api-key KEY, or say FAIRGATE_ALLOW_ANONYMOUS=true"
            )
            raise SettingsError([problem])

    def share_out(self, dispatcher: Dispatcher) -> None:
        """Tell admission of every tenant, now and whenever the file changes."""
        self._dispatcher = dispatcher
        for tenant in self._tenants():
            dispatcher.set_tenant(share_of(tenant))

    async def watch(self) -> None:
        """Follow the tenants file and settle quotas until cancelled; only where there is a file."""
        if self._registry is None:
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._registry.watch())
                group.create_task(self._quota.run())
        finally:
            await self._quota.close()

    def _read(self, path: Path | None) -> Registry | None:
        if path is None:
            return None
        try:
            return Registry(path, self._changed, self._reloaded)
        except TenantsFileError as error:
            raise SettingsError(list(error.problems)) from None

    def _tenants(self) -> Sequence[Tenant]:
        if self._registry is None:
            return [ANONYMOUS]
        return list(self._registry.tenants.by_id.values())

    def _changed(self, old: Tenants, new: Tenants) -> None:
        """Weights and limits hold from now on; counters and running requests are left alone."""
        self._name_in_metrics()
        if self._dispatcher is None:
            return
        for tenant in new.changed_since(old):
            self._dispatcher.set_tenant(share_of(tenant))
        for tenant_id in new.gone_since(old):
            self._dispatcher.forget_tenant(tenant_id)

    def _reloaded(self, result: ReloadResult, problems: Sequence[str]) -> None:
        self._metrics.tenants_reloaded(result)
        if problems:
            log.error("tenants.reload_failed", problems=list(problems), kept="the tenants before")
        else:
            log.info("tenants.reloaded")

    def _name_in_metrics(self) -> None:
        self._metrics.know_tenants(tenant.id for tenant in self._tenants())


def share_of(tenant: Tenant) -> TenantShare:
    """What admission needs to know of a tenant."""
    limits = tenant.limits
    return TenantShare(
        id=tenant.id,
        weight=tenant.weight,
        queued=limits.queued,
        running=limits.running,
        wait_seconds=limits.wait_seconds,
    )
