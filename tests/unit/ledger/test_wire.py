"""Costs and risks as they go to the server and come back."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvgate.ledger.wire import (
    INTEGER_MAX,
    cost_of,
    forecast_text,
    least_of,
    parts_of,
    read_cost,
    sum_of,
    z_text,
)
from kvgate_policies.forecast_fit import Z_DEFAULT, z_of
from kvgate_policies.occupancy import GRID, SCALE, Occupancy
from kvgate_policies.types import ZERO_COST, KVCost
from unit.ledger.conformance_forecasts import flat, soft
from unit.ledger.machine import COSTS
from unit.ledger.pool import cost


def text_of(price: KVCost) -> str:
    """As the server writes it into the stream."""
    words = ":".join(map(str, parts_of(price)))
    forecast = forecast_text(price)
    return f"{words}:{forecast}" if forecast else words


@given(COSTS)
def test_a_cost_is_read_as_it_was_written(price):
    assert read_cost(text_of(price)) == price
    assert cost_of(*parts_of(price), forecast_text(price)) == price


def test_what_is_guaranteed_has_no_forecast_and_a_forecast_of_the_peak_has_one():
    assert forecast_text(cost(20)) == ""
    assert forecast_text(flat(20, 20)) == ":".join(["0"] * 2 * len(GRID))


@given(COSTS, COSTS)
def test_differences_go_as_costs_do_whatever_their_sign(one, other):
    difference = one - other
    back = cost_of(difference.blocks, difference.seqs, difference.prefill_tokens, forecast_text(difference))
    assert back == difference


@pytest.mark.parametrize(
    "wrong",
    [
        cost(-1),
        soft(10, 5, -1),
        KVCost(1, 1, 0, Occupancy((0,) * len(GRID), (0,) * (len(GRID) - 1) + (-1,))),
        cost(INTEGER_MAX + 1),
        cost(INTEGER_MAX // SCALE + 1, 1) + flat(1, 0),
        soft(1, INTEGER_MAX),
    ],
)
def test_what_the_server_would_not_keep_as_it_is_is_not_sent(wrong):
    with pytest.raises(ValueError, match=r"negative|between"):
        parts_of(wrong)


@pytest.mark.parametrize("wrong", ["1:2", "1:2:3:4", "1:2:3:" + ":".join(["0"] * 7), "a:2:3", ""])
def test_what_nobody_writes_is_an_error(wrong):
    with pytest.raises(ValueError):
        read_cost(wrong)


@pytest.mark.parametrize("risk", [0.5, 0.3, 0.01, 1e-9])
def test_deviations_are_read_as_the_same_doubles(risk):
    z = z_of(risk)
    expected = () if z == Z_DEFAULT else z
    assert tuple(map(float, z_text(z).split())) == expected


@pytest.mark.parametrize(
    "wrong",
    [(), (1.0,) * (len(GRID) - 1), (math.inf,) * len(GRID), (math.nan,) * len(GRID), (-0.1,) * len(GRID)],
)
def test_what_are_no_deviations_is_not_sent(wrong):
    with pytest.raises(ValueError, match="deviations"):
        z_text(wrong)


@given(st.lists(COSTS, max_size=6))
def test_a_sum_is_that_of_adding_one_by_one(costs):
    assert sum_of(costs) == sum(costs, ZERO_COST)


def test_the_least_of_two_is_so_at_each_point():
    assert least_of(soft(90, 10, 20, 30), soft(80, 20, 5, 30)) == soft(80, 10, 5, 30)
    assert least_of(cost(20, 3, 5), cost(30, 2, 9)) == cost(20, 2, 5)
    assert least_of(cost(25), soft(90, 10, 20, 30)) == soft(25, 10, 20, 25)
