"""How many series the metrics page can have, whatever clients send. Pure.

A label that grows with what strangers write takes the monitoring with it, so each has a largest number of values:
sets that the code closes, names that the operator wrote, and of tenants the first `TENANTS_MAX` of a pool and `other`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from kvgate.telemetry.catalogue import METRICS, Kind, Metric
from kvgate.telemetry.metrics import REASONS_MAX, TENANTS_MAX
from kvgate.telemetry.scrape import ENGINE_STATES
from kvgate.telemetry.traces import SpanCount
from kvgate_policies.types import Endpoint, Outcome

WORDS_MAX = 16
"""Of a label whose values are words in the code: modes, calls, parts, results."""
PROCESS_SERIES = 8
"""Memory, processor time and descriptors, which the client library adds for the process."""


def series_max(engines: int, pools: int = 1) -> int:
    """Series on the page, with so many engines in each pool: the product of what its labels can be, for each metric.

    Requests that end before their pool is known are one pool more, where there are several.
    """
    values = _values_max(engines)
    parts = pools if pools == 1 else pools + 1
    return PROCESS_SERIES + parts * sum(_series_of(metric, values) for metric in METRICS)


def _values_max(engines: int) -> Mapping[str, int]:
    reasons = REASONS_MAX + 1
    return {
        "tenant": TENANTS_MAX + 2,  # `other`, and `all` for what is of the pool
        "engine": engines,
        "endpoint": len(Endpoint) + 1,
        "outcome": len(Outcome),
        "state": len(ENGINE_STATES) + 1,
        "reason": reasons,
        "would": reasons,
        "budget": reasons,
        "cause": reasons,
        "result": max(len(SpanCount), 2),
        "version": 1,
    }


def _series_of(metric: Metric, values: Mapping[str, int]) -> int:
    children = prod(values.get(label, WORDS_MAX) for label in metric.labels)
    return children * (len(metric.buckets) + 3 if metric.kind is Kind.HISTOGRAM else 1)
