"""What the instruments count, and that nobody outside can make their number grow."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from app.admission.events import Ended, FirstToken, Granted, Refused, Served, Waiting
from app.metrics import APIS, CLASSES, OUTCOMES, Metrics
from app.metrics_page import MetricsPage

ACME = {"tenant": "acme", "class": "interactive"}


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics()
    metrics.know_tenants(["acme", "default"])
    return metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"fairgate_{name}", labels)


def waiting(tenant: str = "acme", request: str = "r1", position: int = 1) -> Waiting:
    return Waiting(
        tenant=tenant,
        work_class="interactive",
        request_id=request,
        position=position,
        eta_seconds=1.0,
    )


def granted(
    tenant: str = "acme", request: str = "r1", seconds: float = 0.0, predicted: float | None = None
) -> Granted:
    return Granted(
        tenant=tenant,
        work_class="interactive",
        request_id=request,
        sequences=1,
        prompt_tokens=10,
        queue_seconds=seconds,
        predicted_seconds=predicted,
    )


def ended(tenant: str = "acme", request: str = "r1", **fields: Any) -> Ended:
    given: dict[str, Any] = {
        "outcome": "finished",
        "code": None,
        "granted": True,
        "queue_seconds": 0.0,
        "output_tokens": 5,
        **fields,
    }
    return Ended(tenant=tenant, work_class="interactive", request_id=request, **given)


def end_request(metrics: Metrics, **fields: Any) -> None:
    given: dict[str, Any] = {
        "tenant": "acme",
        "work_class": "interactive",
        "api": "v1",
        "outcome": "finished",
        "code": None,
        "duration_seconds": 1.0,
        **fields,
    }
    metrics.request_ended(**given)


def test_waits_of_granted_expired_and_departed_requests_add_up(metrics):
    """Ten requests on one place, 5 s each: the sum of the waits is 0 + 5 + ... + 45."""
    for number in range(8):
        metrics.on_event(granted(request=f"r{number}", seconds=5.0 * number))
    metrics.on_event(ended(granted=False, outcome="expired", queue_seconds=40.0))
    metrics.on_event(ended(granted=False, outcome="aborted", queue_seconds=45.0))
    assert value(metrics, "queue_wait_seconds_sum", **ACME) == 225
    assert value(metrics, "queue_wait_seconds_count", **ACME) == 10


def test_what_is_refused_at_once_has_not_waited(metrics):
    refused = Refused(
        tenant="acme", work_class="interactive", code="queue_full", retry_after_seconds=1
    )
    metrics.on_event(refused)
    end_request(metrics, outcome="rejected", code="queue_full")
    assert value(metrics, "queue_wait_seconds_count", **ACME) in (None, 0)
    assert value(metrics, "rejections_total", tenant="acme", reason="queue_full") == 1
    assert value(metrics, "requests_total", **ACME, api="v1", outcome="rejected") == 1
    assert value(metrics, "request_duration_seconds_count", tenant="acme", api="v1") is None


def test_the_queue_and_what_runs_are_empty_when_everyone_has_gone(metrics):
    """Whether granted at once, after waiting, in parts under one id, or gone while waiting."""
    metrics.on_event(granted(request="at once"))
    for _ in range(2):
        metrics.on_event(waiting(request="two parts"))
    metrics.on_event(waiting(request="leaves"))
    assert value(metrics, "queue_depth", **ACME) == metrics.queued_now() == 3
    for _ in range(2):
        metrics.on_event(granted(request="two parts", seconds=1))
    assert value(metrics, "queue_depth", **ACME) == metrics.queued_now() == 1
    assert value(metrics, "running_requests", **ACME) == 3
    metrics.on_event(ended(request="leaves", granted=False, outcome="aborted"))
    for request in ("at once", "two parts", "two parts"):
        metrics.on_event(ended(request=request))
    assert value(metrics, "queue_depth", **ACME) == metrics.queued_now() == 0
    assert value(metrics, "running_requests", **ACME) == 0


def test_tokens_count_as_they_happen_in_disjoint_kinds(metrics):
    for _ in range(3):
        metrics.on_event(
            Served(
                tenant="acme",
                work_class="batch",
                prompt_tokens=7,
                cached_tokens=3,
                completion_tokens=2,
            )
        )
    counts = [
        value(metrics, "tokens_total", tenant="acme", kind=kind)
        for kind in ("prompt", "cached", "completion")
    ]
    assert counts == [21, 9, 6]


def test_latencies_of_tokens_come_from_the_events(metrics):
    first = FirstToken(
        tenant="acme",
        work_class="interactive",
        request_id="r1",
        seconds=6.5,
        prompt_tokens=4,
        cached_tokens=0,
    )
    metrics.on_event(granted())
    metrics.on_event(first)
    metrics.on_event(ended(seconds_per_token=0.04))
    metrics.on_event(granted())
    metrics.on_event(ended(seconds_per_token=None))  # one token: there is nothing to divide
    assert value(metrics, "time_to_first_token_seconds_sum", **ACME) == 6.5
    assert value(metrics, "time_per_output_token_seconds_count", **ACME) == 1
    assert value(metrics, "time_per_output_token_seconds_sum", **ACME) == 0.04


def test_a_wait_is_judged_against_its_prediction_only_if_there_was_one(metrics):
    metrics.on_event(granted(seconds=2.0, predicted=3.0))
    metrics.on_event(granted(seconds=2.0))
    metrics.on_event(granted(seconds=0.0, predicted=3.0))
    assert value(metrics, "predicted_wait_error_ratio_count") == 1
    assert value(metrics, "predicted_wait_error_ratio_bucket", le="0.25") == 0
    assert value(metrics, "predicted_wait_error_ratio_bucket", le="0.5") == 1


def lines(metrics: Metrics) -> int:
    return len(MetricsPage(metrics, CollectorRegistry()).render("")[1].splitlines())


def test_a_client_cannot_make_series(metrics):
    """Ten thousand requests with made-up values of every label leave the page as it was."""
    for outcome in OUTCOMES:
        end_request(metrics, outcome=outcome, code="queue_full")
        end_request(metrics, outcome=outcome, tenant="nobody")
    before = lines(metrics)
    for number in range(10_000):
        tenant = f"tenant-{number}"
        end_request(metrics, tenant=tenant, api=f"/wp-{number}", outcome=f"o{number}", code="x")
        end_request(metrics, outcome="rejected", code=f"code-{number}", work_class=f"c{number}")
        metrics.on_event(waiting(tenant, f"r{number}"))
        metrics.on_event(granted(tenant, f"r{number}"))
        metrics.on_event(ended(tenant, f"r{number}"))
    # One set of series for the tenant `unknown`, and the catch-all values.
    assert lines(metrics) - before < 150
    assert value(metrics, "running_requests", tenant="unknown", **{"class": "interactive"}) == 0


def test_a_removed_tenants_series_go_when_its_last_request_has_ended(metrics):
    metrics.on_event(granted())
    end_request(metrics)
    metrics.know_tenants(["default"])
    assert value(metrics, "running_requests", **ACME) == 1
    metrics.on_event(ended())
    assert b"acme" not in MetricsPage(metrics, CollectorRegistry()).render("")[1]
    metrics.know_tenants(["acme", "default"])
    metrics.on_event(granted())
    assert value(metrics, "running_requests", **ACME) == 1


def test_every_code_of_the_error_tree_is_a_reason_of_its_own(metrics):
    from app.web.answers import ANSWERS

    for code in ANSWERS:
        end_request(metrics, outcome="rejected", code=code)
        assert value(metrics, "rejections_total", tenant="acme", reason=code) == 1


def test_histograms_reach_the_longest_waits_with_few_buckets(metrics):
    """Below 25 buckets each, from milliseconds to the longest that a request may take."""
    reaches = {"queue_wait": 600, "request_duration": 3600, "time_to_first_token": 600}
    for instrument in vars(metrics._instruments).values():
        if not isinstance(instrument, Histogram):
            continue
        bounds = list(instrument._kwargs["buckets"])
        assert len(bounds) < 25
        assert bounds == sorted(set(bounds))
        for name, reach in reaches.items():
            if instrument._name == f"fairgate_{name}_seconds":
                assert bounds[-1] == reach


def full_page(metrics: Metrics) -> bytes:
    for work_class in CLASSES:
        for api in APIS:
            end_request(metrics, work_class=work_class, api=api)
    metrics.on_event(waiting())
    metrics.on_event(granted(seconds=1.0, predicted=2.0))
    metrics.on_event(ended(seconds_per_token=0.1))
    metrics.loop_lag(0.001)
    metrics.follow_websockets(lambda: 1)
    metrics.set_engine_ready(True)
    return MetricsPage(metrics, CollectorRegistry()).render("")[1]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_nothing_to_say_about_our_names(metrics):
    page = full_page(metrics)
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False, timeout=30
    )
    assert check.returncode == 0
    assert check.stderr == check.stdout == b""


def test_every_instrument_says_in_a_sentence_what_it_measures(metrics):
    families = list(text_string_to_metric_families(full_page(metrics).decode()))
    assert len(families) > 10
    for family in families:
        assert family.name.startswith("fairgate_")
        assert family.documentation.endswith(".")
        assert not any(sample.name.endswith("_created") for sample in family.samples)


def engines() -> CollectorRegistry:
    theirs = CollectorRegistry()
    queue = Gauge("vllm:num_requests_waiting", "Waiting.", ["engine"], registry=theirs)
    reasons = Gauge(
        "vllm:num_requests_waiting_by_reason", "By.", ["engine", "reason"], registry=theirs
    )
    for engine, count in (("0", 1), ("1", 2)):
        queue.labels(engine).set(count)
        reasons.labels(engine, "capacity").set(count)
    Gauge("vllm:kv_cache_usage_perc", "Usage.", registry=theirs).set(0.5)
    return theirs


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_vllms_queue_counts_ours_once_and_the_rest_is_as_it_was(metrics, accept):
    for number in range(5):
        metrics.on_event(waiting(request=f"r{number}"))
    page = MetricsPage(metrics, engines()).render(accept)[1].decode()
    seen = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in page.splitlines()}
    assert seen['vllm:num_requests_waiting{engine="0"}'] == "6.0"
    assert seen['vllm:num_requests_waiting{engine="1"}'] == "2.0"
    by_reason = "vllm:num_requests_waiting_by_reason"
    assert seen[f'{by_reason}{{engine="0",reason="gateway"}}'] == "5.0"
    assert seen[f'{by_reason}{{engine="0",reason="capacity"}}'] == "1.0"
    assert seen["vllm:kv_cache_usage_perc"] == "0.5"


def test_the_page_speaks_openmetrics_where_asked(metrics):
    content_type, page = MetricsPage(metrics, engines()).render("application/openmetrics-text")
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")
    full_page(metrics)
    page = MetricsPage(metrics, CollectorRegistry()).render("application/openmetrics-text")[1]
    assert len(list(parse_openmetrics(page.decode()))) > 10
    assert MetricsPage(metrics, engines()).render("*/*")[0].startswith("text/plain")


def test_two_sets_of_instruments_do_not_meet():
    """Nothing is global: a process may hold several, as tests do."""
    one, other = Metrics(), Metrics()
    one.follow_websockets(lambda: 1)
    assert value(one, "websocket_connections") == 1
    assert value(other, "websocket_connections") == 0
