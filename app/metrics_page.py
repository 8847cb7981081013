"""The page that Prometheus scrapes: our instruments, and vLLM's beside them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from app.metrics import Metrics

_OPENMETRICS = "application/openmetrics-text"
_WAITING = "vllm:num_requests_waiting"
_WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
_GATEWAY = "gateway"


class MetricsPage:
    """One page of two registries: ours, and the library's own, where vLLM keeps its series.

    vLLM's series stay as they are, but for one: routers and autoscalers read from
    `vllm:num_requests_waiting` how many requests wait, and ours wait in the gateway, so the
    gateway's queue is added to it. Read on the ops port's thread.
    """

    def __init__(self, metrics: Metrics, theirs: CollectorRegistry = REGISTRY) -> None:
        self._metrics = metrics
        self._theirs = theirs

    def render(self, accept: str) -> tuple[str, bytes]:
        """Content type and page, in OpenMetrics where the `Accept` header names it.

        The library's own negotiation would turn `vllm:` into `vllm_` there, as if a colon were not
        allowed, and every dashboard made for vLLM would be empty.
        """
        if _OPENMETRICS in accept:
            page: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]  # untyped
                _Reading(self._metrics, self._theirs, strict=True),
                escaping=openmetrics.ALLOWUTF8,
            )
            return openmetrics.CONTENT_TYPE_LATEST, page
        reading = _Reading(self._metrics, self._theirs, strict=False)
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(reading)


class _Reading(Collector):
    """Every series of both registries at one time; `strict` for OpenMetrics."""

    def __init__(self, metrics: Metrics, theirs: CollectorRegistry, *, strict: bool) -> None:
        self._metrics = metrics
        self._theirs = theirs
        self._strict = strict

    def collect(self) -> Iterator[Metric]:
        """Ours first."""
        for metric in self._metrics.registry.collect():
            # The time a series was made is one more series for each of ours, and of no use.
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            if self._strict:
                _drop_bare_counts(metric)
            yield metric
        queued = self._metrics.queued_now()
        for metric in self._theirs.collect():
            if metric.name == _WAITING:
                _add_to_first_engine(metric, queued)
            elif metric.name == _WAITING_BY_REASON:
                _add_reason(metric, queued)
            yield metric


def _drop_bare_counts(metric: Metric) -> None:
    # A histogram of values below zero has no sum, and OpenMetrics allows no count without one.
    names = {sample.name for sample in metric.samples}
    if metric.type == "histogram" and f"{metric.name}_sum" not in names:
        metric.samples = [s for s in metric.samples if not s.name.endswith("_count")]


def _add_to_first_engine(metric: Metric, queued: int) -> None:
    # The queue is one for all engines: added to each it would be counted several times.
    for place, sample in enumerate(metric.samples):
        if sample.labels.get("engine") == "0":
            metric.samples[place] = sample._replace(value=sample.value + queued)


def _add_reason(metric: Metric, queued: int) -> None:
    first = next((s for s in metric.samples if s.labels.get("engine") == "0"), None)
    if first is not None:
        labels = {**first.labels, "reason": _GATEWAY}
        metric.samples.append(first._replace(labels=labels, value=float(queued)))
