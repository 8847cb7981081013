"""`/admin/state` shows admission, to admins only."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.admission.policy import Capacity
from app.admission.scheduler import Scheduler
from app.admission.tenant_share import TenantShare
from app.admission.ticket import Ticket
from app.tenants.model import Tenant
from app.web.admin import mount_admin
from app.web.caller import Caller
from app.web.health import Health
from app.web.routes import mount_web


async def asked(tenant: Tenant, scheduler: Scheduler) -> httpx.Response:
    app = FastAPI()
    mount_web(app, Health())
    mount_admin(app, scheduler.statistics)

    async def door(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"caller": Caller(tenant=tenant, request_id="r", arrived_seconds=0.0)}
        await app(scope, receive, send)

    transport = httpx.ASGITransport(app=door)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get("/admin/state")


@pytest.fixture
def scheduler() -> Scheduler:
    """One place, one tenant of weight 2 in it and one request of it waiting."""
    made = Scheduler(Capacity(sequences=1))
    made.set_tenant(TenantShare(id="acme", weight=2.0))
    for number in range(2):
        ticket = Ticket(
            tenant="acme",
            work_class="interactive",
            request_id=str(number),
            prompt_tokens=10,
            max_output_tokens=5,
            arrived_seconds=0.0,
        )
        made.submit(ticket, 0.0)
        made.pump(0.0)
    return made


async def test_an_admin_sees_the_window_and_every_tenant(scheduler: Scheduler) -> None:
    response = await asked(Tenant(id="ops", admin=True), scheduler)
    state = response.json()
    assert response.status_code == 200
    assert state["window"]["active_sequences"] == state["window"]["sequence_limit"] == 1
    (acme,) = state["tenants"]
    assert (acme["tenant"], acme["class"], acme["weight"]) == ("acme", "interactive", 2.0)
    assert (acme["queued"], acme["running"], acme["share"]) == (1, 1, 1.0)


async def test_nobody_else_does(scheduler: Scheduler) -> None:
    response = await asked(Tenant(id="acme"), scheduler)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden")
