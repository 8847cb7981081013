"""Every Prometheus instrument of ours: its name, its labels, its buckets, and what it measures."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# From an idle engine's hand-over to the longest wait that a class has by default (600 s, batch).
QUEUE_WAIT_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
# Dense between 50 ms and 2 s, where targets for the first token are set; waits are part of it.
FIRST_TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
# 1 ms is a small model on a large GPU, 2 s a laptop that swaps; readers feel 20 to 100 ms.
OUTPUT_TOKEN_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05),
    *(0.06, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0),
)
# To an hour: the longest summaries; the top bucket must not be where the 99th percentile lies.
DURATION_SECONDS = (
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0),
    *(60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0),
)
# A timer is late by about a millisecond on any machine; beyond 50 ms streams are felt to stutter.
LOOP_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Predicted too short is negative; -1 is a wait that was not foreseen at all.
ERROR_RATIO = (-0.75, -0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(slots=True)
class Series:
    """One tenant's series of one class, looked up once: `labels()` costs more than counting."""

    queue_wait: Histogram
    first_token: Histogram
    output_token: Histogram
    queued: Gauge
    running: Gauge
    prompt: Counter
    cached: Counter
    completion: Counter
    waiting: dict[str, int] = field(default_factory=dict)  # by request; its parts share an id
    queued_now: int = 0
    running_now: int = 0


class Instruments:
    """The instruments by name; help says what is measured, from when to when."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"fairgate_{name}", says, labels, registry=registry)

        def gauge(name: str, says: str, *labels: str) -> Gauge:
            return Gauge(f"fairgate_{name}", says, labels, registry=registry)

        def histogram(name: str, says: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"fairgate_{name}", says, labels, registry=registry, buckets=buckets)

        per_class = ("tenant", "class")
        self.queue_wait = histogram(
            "queue_wait_seconds",
            "From a request's arrival at the door to its hand-over to the engine, or to when it"
            " left or expired while waiting; requests refused at once are not in it.",
            *per_class,
            buckets=QUEUE_WAIT_SECONDS,
        )
        self.first_token = histogram(
            "time_to_first_token_seconds",
            "From a request's arrival at the door, its wait included, to when the engine made its"
            " first token.",
            *per_class,
            buckets=FIRST_TOKEN_SECONDS,
        )
        self.output_token = histogram(
            "time_per_output_token_seconds",
            "From the first token to the last, divided by the tokens of a sequence but one; one"
            " sample for each request with two tokens or more.",
            *per_class,
            buckets=OUTPUT_TOKEN_SECONDS,
        )
        self.duration = histogram(
            "request_duration_seconds",
            "From a request's arrival at the door to the last byte of its answer, or to when its"
            " client left; requests rejected or expired are not in it.",
            "tenant",
            "api",
            buckets=DURATION_SECONDS,
        )
        self.prediction_error = histogram(
            "predicted_wait_error_ratio",
            "(predicted - actual) / actual wait of requests that had to wait, at their hand-over;"
            " negative is longer than foretold.",
            buckets=ERROR_RATIO,
        )
        self.loop_lag = histogram(
            "event_loop_lag_seconds",
            "How late a timer of the main event loop was, sampled four times a second.",
            buckets=LOOP_LAG_SECONDS,
        )
        self.requests = counter(
            "requests_total",
            "Requests (each chat turn is one), counted once, when they ended.",
            *per_class,
            "api",
            "outcome",
        )
        self.rejections = counter(
            "rejections_total",
            "Requests rejected or expired, by the code of the error that their client was sent.",
            "tenant",
            "reason",
        )
        self.tokens = counter(
            "tokens_total",
            "Tokens as they happen: prompt computed and cached from the prefix cache at the first"
            " token, completion with every piece; the kinds are disjoint.",
            "tenant",
            "kind",
        )
        self.queued = gauge(
            "queue_depth", "Requests waiting in the gateway for their turn.", *per_class
        )
        self.running = gauge(
            "running_requests", "Requests handed to the engine and not yet ended.", *per_class
        )
        self.tenants_reload = counter(
            "tenants_reload_total",
            "New contents of the tenants file since the start, by whether they were taken over.",
            "result",
        )
        self.quota_store_away = gauge(
            "quota_store_away", "1 while the Redis that counts limits per minute is away, else 0."
        )
        self.websockets = gauge("websocket_connections", "WebSockets open now.")
        self.engine_ready = gauge("engine_ready", "1 while the engine can take work, else 0.")

    def series(self, tenant: str, work_class: str) -> Series:
        """A tenant's series of one class, each at zero from now on."""
        return Series(
            queue_wait=self.queue_wait.labels(tenant, work_class),
            first_token=self.first_token.labels(tenant, work_class),
            output_token=self.output_token.labels(tenant, work_class),
            queued=self.queued.labels(tenant, work_class),
            running=self.running.labels(tenant, work_class),
            prompt=self.tokens.labels(tenant, "prompt"),
            cached=self.tokens.labels(tenant, "cached"),
            completion=self.tokens.labels(tenant, "completion"),
        )

    def forget(self, tenant: str) -> None:
        """Take every series of a tenant off the page."""
        for instrument in vars(self).values():
            if "tenant" in instrument._labelnames:  # noqa: SLF001  the library has no public name
                instrument.remove_by_labels({"tenant": tenant})
