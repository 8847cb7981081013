"""What a request may not choose for itself once it is with us: order, rank, cache, length."""

from __future__ import annotations

import hmac
from typing import Any

from vllm.sampling_params import RequestOutputKind

from app.engine.api import Work

# Lower is sooner under vLLM's `priority` scheduling policy.
PRIORITY = {"interactive": 0, "batch": 1}


def own(request: Any, work: Work, salt_secret: bytes) -> bool:
    """Overwrite what clients may not choose; returns whether the answer is wanted whole.

    A whole answer is asked of the engine in deltas too, so that its tokens count as they are made.
    """
    request.priority = PRIORITY[work.work_class]
    request.data_parallel_rank = None
    request.kv_hints = None
    request.session_id = None
    request.cache_salt = salted(salt_secret, work.tenant, request.cache_salt)
    params = request.sampling_params
    if params is None:
        return False
    if params.extra_args:
        params.extra_args.pop("kv_transfer_params", None)
    if work.output_tokens_limit is not None:
        params.max_tokens = min(params.max_tokens, work.output_tokens_limit)
        params.min_tokens = min(params.min_tokens, params.max_tokens)
    if params.output_kind == RequestOutputKind.FINAL_ONLY:
        params.output_kind = RequestOutputKind.DELTA
        return True
    return False


def salted(secret: bytes, tenant: str, client_salt: str | None) -> str:
    """The prefix cache's salt: one tenant's entries are never another's, whatever it sends."""
    text = f"{len(tenant)}:{tenant}:{client_salt or ''}"
    return hmac.digest(secret, text.encode("utf-8", "surrogatepass"), "sha256").hex()
