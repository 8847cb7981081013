"""What moves our instruments: the events of admission, and a few verbs for the rest.

Label values are bounded: `tenant` is one of the tenants made known with `know_tenants`, or
`unknown`; `class`, `api`, `outcome` and `reason` come from closed sets. The instruments belong to
one registry, a fresh one unless it is passed in; nothing here is global. Everything is called on
the event loop but `queued_now`, which the page reads on its own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from prometheus_client import CollectorRegistry

from app.admission.events import Ended, Event, FirstToken, Granted, Served, Waiting
from app.errors import FairgateError
from app.instruments import Instruments, Series

UNKNOWN = "unknown"
OTHER = "other"
CLASSES = ("interactive", "batch")
APIS = ("chat", "summarize", "ask", "v1")
OUTCOMES = ("finished", "failed", "aborted", "expired", "rejected")

# A relative error of less than a millisecond's wait says nothing.
_SHORTEST_JUDGED_SECONDS = 0.001


class Metrics:
    """The instruments, and the few verbs that move them; an observer of admission."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._instruments = Instruments(self.registry)
        self._known: frozenset[str] = frozenset()
        self._series: dict[tuple[str, str], Series] = {}
        self._reasons = frozenset(_codes(FairgateError))

    def know_tenants(self, ids: Iterable[str]) -> None:
        """From now on these tenants have series of their own, and all others are `unknown`.

        The series of a tenant that is no longer known go when its last request has ended.
        """
        self._known = frozenset(ids)
        for tenant in {tenant for tenant, _ in self._series}:
            self._forget_if_gone(tenant)

    def on_event(self, event: Event, /) -> None:
        """Count what happened in admission; a refusal counts with its request's end instead."""
        match event:
            case Served():
                series = self._of(event.tenant, event.work_class)
                if event.completion_tokens:
                    series.completion.inc(event.completion_tokens)
                if event.prompt_tokens:
                    series.prompt.inc(event.prompt_tokens)
                if event.cached_tokens:
                    series.cached.inc(event.cached_tokens)
            case FirstToken():
                self._of(event.tenant, event.work_class).first_token.observe(event.seconds)
            case Waiting():
                self._start_waiting(event)
            case Granted():
                self._granted(event)
            case Ended():
                self._ended(event)

    def request_ended(
        self,
        *,
        tenant: str,
        work_class: str,
        api: str,
        outcome: str,
        code: str | None,
        duration_seconds: float,
    ) -> None:
        """A request has its one outcome; `duration_seconds` runs from its arrival to its last byte.

        `code` is the error's where there was one. A request turned away at the door, before its
        tenant was known, comes here too, as tenant `unknown`.
        """
        known = self._label(tenant)
        instruments = self._instruments
        work_class = work_class if work_class in CLASSES else CLASSES[0]
        api = api if api in APIS else OTHER
        outcome = outcome if outcome in OUTCOMES else OTHER
        instruments.requests.labels(known, work_class, api, outcome).inc()
        if outcome in ("rejected", "expired"):
            instruments.rejections.labels(known, self._reason(code)).inc()
        else:
            instruments.duration.labels(known, api).observe(duration_seconds)

    def set_engine_ready(self, ready: bool, /) -> None:  # noqa: FBT001  the gauge's one value
        """Whether the engine can take work."""
        self._instruments.engine_ready.set(int(ready))

    def loop_lag(self, seconds: float) -> None:
        """How late a timer of the main event loop was."""
        self._instruments.loop_lag.observe(seconds)

    def tenants_reloaded(self, result: Literal["loaded", "failed"]) -> None:
        """A new content of the tenants file was taken over, or the old one was kept."""
        self._instruments.tenants_reload.labels(result).inc()

    def set_quota_store_away(self, away: bool, /) -> None:  # noqa: FBT001  the gauge's one value
        """Whether the Redis that counts limits per minute is away."""
        self._instruments.quota_store_away.set(int(away))

    def follow_websockets(self, count: Callable[[], int]) -> None:
        """Ask `count`, on the page's thread, how many WebSockets are open."""
        self._instruments.websockets.set_function(count)

    def queued_now(self) -> int:
        """Requests that wait in the gateway, all tenants together; may be read on any thread."""
        return sum(series.queued_now for series in list(self._series.values()))

    def _start_waiting(self, event: Waiting) -> None:
        series = self._of(event.tenant, event.work_class)
        series.waiting[event.request_id] = series.waiting.get(event.request_id, 0) + 1
        series.queued_now += 1
        series.queued.set(series.queued_now)

    def _stop_waiting(self, event: Granted | Ended, series: Series) -> None:
        series.queue_wait.observe(max(0.0, event.queue_seconds))
        waiting = series.waiting.pop(event.request_id, 0)
        if not waiting:
            return  # went straight in
        if waiting > 1:
            series.waiting[event.request_id] = waiting - 1
        series.queued_now -= 1
        series.queued.set(series.queued_now)

    def _granted(self, event: Granted) -> None:
        series = self._of(event.tenant, event.work_class)
        self._stop_waiting(event, series)
        series.running_now += 1
        series.running.set(series.running_now)
        predicted, actual = event.predicted_seconds, event.queue_seconds
        if predicted is not None and actual > _SHORTEST_JUDGED_SECONDS:
            self._instruments.prediction_error.observe((predicted - actual) / actual)

    def _ended(self, event: Ended) -> None:
        series = self._of(event.tenant, event.work_class)
        if event.granted:
            series.running_now -= 1
            series.running.set(series.running_now)
            if event.seconds_per_token is not None:
                series.output_token.observe(event.seconds_per_token)
        else:
            self._stop_waiting(event, series)
        self._forget_if_gone(event.tenant)

    def _of(self, tenant: str, work_class: str) -> Series:
        series = self._series.get((tenant, work_class))
        return series or self._make(tenant, work_class)

    def _make(self, tenant: str, work_class: str) -> Series:
        label = self._label(tenant)
        if label != tenant:
            return self._of(label, work_class)
        series = self._instruments.series(label, work_class)
        self._series[label, work_class] = series
        return series

    def _label(self, tenant: str) -> str:
        return tenant if tenant in self._known else UNKNOWN

    def _forget_if_gone(self, tenant: str) -> None:
        if tenant in self._known or tenant == UNKNOWN:
            return
        keys = [(tenant, work_class) for work_class in CLASSES]
        held = [self._series[key] for key in keys if key in self._series]
        if held and not any(series.queued_now or series.running_now for series in held):
            for key in keys:
                self._series.pop(key, None)
            self._instruments.forget(tenant)

    def _reason(self, code: str | None) -> str:
        return code if code in self._reasons else OTHER


def _codes(kind: type[FairgateError]) -> Iterator[str]:
    yield kind.code
    for child in kind.__subclasses__():
        yield from _codes(child)
