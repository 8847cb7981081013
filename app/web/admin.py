"""What operators see of admission, for admin tenants only."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request
from starlette.responses import Response

from app.admission.statistics import Statistics
from app.errors import Forbidden
from app.web.answers import encode
from app.web.caller import Caller


def mount_admin(app: FastAPI, statistics: Callable[[], Statistics]) -> None:
    """Add `/admin/state`; `statistics` may raise why there are none yet."""

    async def show_state(request: Request) -> Response:
        """Admission at this moment: the window, and each tenant's place in it."""
        caller: Caller = request.scope["state"]["caller"]
        if not caller.tenant.admin:
            raise Forbidden("only a tenant with `admin: true` may see this")
        return Response(encode(state_of(statistics())), media_type="application/json")

    app.add_route("/admin/state", show_state, methods=["GET"])


def state_of(now: Statistics) -> dict[str, object]:
    """The JSON object of `/admin/state`; tokens and sequences, ratios from 0 to 1."""
    return {
        "policy": now.policy,
        "draining": now.draining,
        "queued": now.queued,
        "running": now.running,
        "window": {
            "active_sequences": now.active_sequences,
            "sequence_limit": now.sequence_limit,
            "kv_ceiling_tokens": now.kv_ceiling_tokens,
            "kv_limit_tokens": now.kv_limit_tokens,
        },
        "fairness_index": now.fairness_index,
        "tenants": [
            {
                "tenant": account.tenant,
                "class": account.work_class,
                "weight": account.weight,
                "queued": account.queued,
                "running": account.running,
                "share": account.share,
                "virtual_service": account.virtual,
                "service_tokens": account.service,
            }
            for account in now.accounts
        ],
    }
