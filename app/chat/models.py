"""Which model answers a tenant."""

from __future__ import annotations

from app.engine.api import ModelInfo
from app.errors import NotFound
from app.tenants.model import Tenant


def model_for(tenant: Tenant, served: ModelInfo, wanted: str | None = None) -> str:
    """The model that `tenant` asked for, or the first that it may use.

    Raises:
        NotFound: not served, or not to this tenant, which must not learn the difference.
    """
    for name in (served.name, *served.adapters):
        if wanted in (None, name) and served.open_to(tenant.models, name):
            return name
    if wanted is None:
        raise NotFound("this tenant may use none of the served models", param="model")
    raise NotFound(f"the model `{wanted}` does not exist", param="model")
