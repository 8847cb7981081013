"""How long answers get: the last lengths of each tenant, and quantiles of what is still to come."""

from __future__ import annotations

from collections import OrderedDict

from app.admission.recent import Recent
from app.admission.ticket import Ticket

# The last 256 lengths of a kind of request say enough and forget a change of habit in minutes.
REMEMBERED = 256
# A tenant's own lengths count against those of everybody as n to this.
PRIOR_WEIGHT = 8
# Sketches kept, the least recently used go first: 4 KiB each.
SKETCHES = 4096
# What is assumed of an answer before any was seen, where its limit is larger.
UNKNOWN_TOKENS = 256


class Lengths:
    """Sketches per tenant, way of delivery and size of `max_tokens`, over one of everybody."""

    def __init__(self) -> None:
        self._own: OrderedDict[tuple[str, bool, int], Recent] = OrderedDict()
        self._everybody: dict[int, Recent] = {}

    def finished(self, ticket: Ticket) -> None:
        """Learn from an answer that the model ended; an aborted one would teach too little."""
        bucket = ticket.max_output_tokens.bit_length()
        key = (ticket.tenant, ticket.streamed, bucket)
        own = self._own.get(key)
        if own is None:
            own = self._own[key] = Recent(REMEMBERED)
            if len(self._own) > SKETCHES:
                self._own.popitem(last=False)
        self._own.move_to_end(key)
        length = ticket.output_tokens // ticket.sequences
        own.add(length)
        self._everybody.setdefault(bucket, Recent(REMEMBERED)).add(length)

    def mean(self, ticket: Ticket) -> float:
        """Expected output tokens of one sequence, never above its limit."""
        limit = ticket.max_output_tokens
        bucket = limit.bit_length()
        everybody = self._everybody.get(bucket)
        if everybody is None:
            return min(limit, UNKNOWN_TOKENS)
        own = self._own.get((ticket.tenant, ticket.streamed, bucket))
        if own is None:
            return min(limit, everybody.mean)
        count = len(own)
        return min(
            limit, (count * own.mean + PRIOR_WEIGHT * everybody.mean) / (count + PRIOR_WEIGHT)
        )

    def quantile(self, ticket: Ticket, share: float, beyond: int = 0) -> int:
        """Output tokens of one sequence that made `beyond`, at this quantile; at most its limit."""
        limit = ticket.max_output_tokens
        bucket = limit.bit_length()
        # Longer than anything seen: somewhere between here and its limit.
        unknown = beyond + share * (limit - beyond)
        own = self._own.get((ticket.tenant, ticket.streamed, bucket))
        everybody = self._everybody.get(bucket)
        if everybody is None:
            return limit
        theirs = everybody.quantile(share, beyond=beyond)
        prior = unknown if theirs is None else theirs
        if own is None:
            return min(limit, round(prior))
        mine = own.quantile(share, beyond=beyond)
        count = len(own) if mine is not None else 0
        blend = (count * (mine or 0) + PRIOR_WEIGHT * prior) / (count + PRIOR_WEIGHT)
        return min(limit, max(beyond + 1, round(blend)))
