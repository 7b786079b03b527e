"""Exemplars: from a bucket of a histogram to the trace of a request that is in it; in OpenMetrics only."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvgate.admin.page import MetricsPage
from kvgate.clock import SystemClock
from kvgate.telemetry import RequestRecord, Telemetry
from kvgate.telemetry.formats import OPENMETRICS, encoder_for
from kvgate.telemetry.pools import PoolsTelemetry
from kvgate_policies.types import Endpoint, Outcome

TRACE = "0af7651916cd43dd8448eb211c80319c"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""What a Prometheus server sends."""
WITH_EXEMPLARS = {
    "kvgate_queue_wait_seconds",
    "kvgate_request_ttft_seconds",
    "kvgate_request_duration_seconds",
}


def a_record(trace_id: str | None) -> RequestRecord:
    return RequestRecord(
        "r1",
        endpoint=Endpoint.CHAT,
        outcome=Outcome.SERVED,
        engine_id="http://a:1",
        queue_s=0.3,
        engine_ttft_s=0.2,
        ttft_s=0.5,
        total_s=4.0,
        trace_id=trace_id,
    )


def told(trace_id: str | None, pool: str = "p") -> Telemetry:
    telemetry = Telemetry(pool, CollectorRegistry())
    telemetry.granted("t", 0.3, trace_id)
    telemetry.ended(a_record(trace_id))
    return telemetry


async def page(telemetry: Telemetry | PoolsTelemetry, accept: str) -> str:
    text, _ = await MetricsPage(telemetry, SystemClock()).render(accept)
    return text.decode()


def exemplars(families: list[Family]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for family in families:
        for sample in family.samples:
            if sample.exemplar is not None:
                found.setdefault(family.name, []).append((sample, sample.exemplar))
    return found


async def test_waits_first_tokens_and_durations_lead_to_the_trace() -> None:
    found = exemplars(list(parse_openmetrics(await page(told(TRACE), PROMETHEUS))))
    assert set(found) == WITH_EXEMPLARS
    for of_family in found.values():
        for sample, exemplar in of_family:
            assert exemplar.labels == {"trace_id": TRACE}
            assert exemplar.value <= float(sample.labels["le"])
    assert len(found["kvgate_request_ttft_seconds"]) == 3, "queue, engine and total"


async def test_what_is_not_sampled_has_none() -> None:
    assert exemplars(list(parse_openmetrics(await page(told(None), PROMETHEUS)))) == {}


@pytest.mark.parametrize("accept", ["", "text/plain", "*/*", "application/openmetrics-text;version=nonsense"])
async def test_prometheus_text_is_as_it_was(accept: str) -> None:
    with_trace, without = await page(told(TRACE), accept), await page(told(None), accept)
    assert with_trace == without
    assert TRACE not in with_trace


async def test_both_formats_have_the_same_series() -> None:
    telemetry = told(TRACE)
    rich = list(parse_openmetrics(await page(telemetry, PROMETHEUS)))
    plain = list(parse_text(await page(telemetry, "")))
    series = [
        {(s.name, *sorted(s.labels.items())) for f in families for s in f.samples}
        for families in (rich, plain)
    ]
    assert series[0] == series[1]


async def test_exemplars_of_several_pools_are_on_one_page() -> None:
    pools = PoolsTelemetry([told("aa", "a"), told("bb", "b")])
    found = exemplars(list(parse_openmetrics(await page(pools, PROMETHEUS))))
    of_pool = {s.labels["pool"]: e.labels["trace_id"] for s, e in found["kvgate_queue_wait_seconds"]}
    assert of_pool == {"a": "aa", "b": "bb"}


def test_the_format_is_what_prometheus_asks_for() -> None:
    assert encoder_for(PROMETHEUS)[1].startswith(OPENMETRICS)
    assert encoder_for("")[1].startswith("text/plain")
