"""What pictures and tests put in for Grafana: variables, legends, units."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.telemetry import catalogue as c
from kvgate_dashboards import looks, queries
from kvgate_dashboards.reading import Query, filled, label_values, legend


def test_variables_and_intervals_are_put_in():
    expr = 'rate(a{pool=~"$pool", tenant=~"$tenant"}[$__rate_interval]) / b[$__range]'
    assert (
        filled(expr, rate_s=5, range_s=60, chosen={"pool": "x"})
        == 'rate(a{pool=~"x", tenant=~".*"}[5s]) / b[60s]'
    )


def test_legends_name_a_series_by_its_labels():
    named = Query("a", "{{pool}}: {{ reason }}", "A")
    assert legend(named, {"pool": "x", "reason": "y"}) == "x: y"
    assert legend(Query("a", "", "A"), {"b": "1", "a": "2"}) == "a=2, b=1"


def test_a_variable_is_a_label_of_a_selector():
    assert label_values('label_values(a{b=~"$pool"}, c)') == ('a{b=~"$pool"}', "c")
    with pytest.raises(ValueError, match="not understood"):
        label_values("query_result(a)")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.256, "percentunit", "26 %"),
        (0.25, "s", "250 ms"),
        (0, "s", "0 s"),
        (12.34, "s", "12.3 s"),
        (3, "short", "3"),
        (12_345, "suffix: blocks", "12.3k blocks"),
        (1.5, "reqps", "1.5 /s"),
        (float("nan"), "s", "–"),
    ],
)
def test_numbers_are_written_with_their_unit(value: float, unit: str, text: str):
    assert looks.written(value, unit) == text


def test_the_colour_is_that_of_the_last_threshold_reached():
    steps: list[dict[str, Any]] = [{"value": None, "color": "green"}, {"value": 1, "color": "#123456"}]
    assert looks.threshold_colour(0.5, steps) == looks.NAMED["green"]
    assert looks.threshold_colour(1, steps) == "#123456"


# How a metric of several processes becomes one number.


def test_what_is_shared_is_taken_once_and_what_is_each_ones_own_is_added_up():
    assert queries.now(c.QUEUE_DEPTH) == 'max by (pool) (kvgate_queue_depth{pool=~"$pool"})'
    assert (
        queries.per_second(c.GRANTS)
        == 'sum (rate(kvgate_grants_total{pool=~"$pool", tenant=~"$tenant"}[$__rate_interval]))'
    )
    assert (
        queries.per_second(c.PINS)
        == 'sum (max by (pool) (rate(kvgate_pins_total{pool=~"$pool"}[$__rate_interval])))'
    )
    each = 'max by (pool, engine) (kvgate_ledger_reserved_blocks{pool=~"$pool", engine=~"$engine"})'
    assert queries.whole(c.RESERVED_BLOCKS) == f"sum by (pool) ({each})"


def test_only_an_edge_of_a_bucket_can_be_asked_for():
    assert 'le="0.98"' in queries.up_to(0.98, c.ESTIMATE)
    with pytest.raises(ValueError, match="no bucket"):
        queries.up_to(0.97, c.ESTIMATE)
