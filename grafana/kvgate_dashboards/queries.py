"""PromQL from the rows of the metric catalogue.

Each process of kvgate is scraped by itself, so most numbers exist several times. Those that every process counts for
itself are added up; those that all of them tell of the same thing (the shared ledger, an engine) are taken once, as the
largest: `Metric.across` says which. Where two metrics meet in one expression, both have been reduced in this way.

`rate` always looks back over `$__rate_interval`, which Grafana keeps above four scrapes.
"""

from __future__ import annotations

from kvgate.telemetry.catalogue import Across, Metric

VARIABLES = ("pool", "tenant", "engine")
"""The labels that a reader can narrow down; a metric that has one of them is always filtered by it."""


def now(metric: Metric, *by: str, where: str = "") -> str:
    """The value of a gauge, by pool and the labels `by`."""
    return _reduced(metric, f"{metric.name}{selector(metric, where)}", "pool", *by)


def whole(metric: Metric, *, where: str = "") -> str:
    """A gauge of each engine (or tenant), added up over the pool."""
    each = now(metric, *metric.labels[:1], where=where)
    return f"sum by (pool) ({each})"


def over_time(function: str, metric: Metric, *by: str) -> str:
    """`function` (such as `avg_over_time`) of a gauge over the time range that is shown."""
    return _reduced(metric, f"{function}({metric.name}{selector(metric)}[$__range])", "pool", *by)


def per_second(metric: Metric, *by: str, where: str = "") -> str:
    """The rate of a counter, by the labels `by` alone."""
    return _reduced(metric, f"rate({metric.name}{selector(metric, where)}[$__rate_interval])", *by)


def counted(metric: Metric, *by: str, where: str = "") -> str:
    """By how much a counter grew over the time range that is shown; whole, for `increase` makes 1.01 of one."""
    grown = _reduced(metric, f"increase({metric.name}{selector(metric, where)}[$__range])", *by)
    return f"round ({grown})"


def slope(metric: Metric, *by: str) -> str:
    """The change of a gauge per second."""
    return _reduced(metric, f"deriv({metric.name}{selector(metric)}[$__rate_interval])", "pool", *by)


def quantile(q: float, metric: Metric, *by: str, where: str = "") -> str:
    """A quantile of a histogram, by the labels `by`."""
    buckets = f"rate({metric.name}_bucket{selector(metric, where)}[$__rate_interval])"
    return f"histogram_quantile({q:g}, sum by ({', '.join(('le', *by))}) ({buckets}))"


def up_to(edge: float, metric: Metric, *by: str) -> str:
    """The part of a histogram's observations that were at most `edge`, one of its buckets."""
    if edge not in metric.buckets:
        raise ValueError(f"{edge:g} is no bucket of {metric.name}")
    group = f"sum by ({', '.join(by)})" if by else "sum"
    up_to_edge = selector(metric, f'le="{float(edge)}"')
    below = f"rate({metric.name}_bucket{up_to_edge}[$__rate_interval])"
    every = f"rate({metric.name}_count{selector(metric)}[$__rate_interval])"
    return f"{group} ({below}) / {group} ({every})"


def selector(metric: Metric, where: str = "") -> str:
    """The variables of the dashboard that the metric has a label for, and `where`."""
    matchers = [f'{label}=~"${label}"' for label in VARIABLES if label in metric.label_names]
    return "{" + ", ".join([*matchers, *([where] if where else [])]) + "}"


def _reduced(metric: Metric, vector: str, *by: str) -> str:
    function = "sum" if metric.across is Across.SUM else "max"
    if not by:  # one number: pools are added up, whatever is the same within each of them is not
        return f"sum ({vector})" if function == "sum" else f"sum (max by (pool) ({vector}))"
    return f"{function} by ({', '.join(by)}) ({vector})"
