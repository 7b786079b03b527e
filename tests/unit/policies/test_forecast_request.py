"""The price of a request by a forecast, and whether it was right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate_policies.forecast import POOL, Lengths
from kvgate_policies.forecast_lengths import LengthHistogram
from kvgate_policies.forecast_request import (
    Outlook,
    expected_output,
    longer_than_said,
    request_occupancy,
)
from kvgate_policies.forecast_survival import prior
from kvgate_policies.kv_cost import price
from kvgate_policies.kv_groups import KVGroup
from kvgate_policies.model_shape import Kind
from kvgate_policies.occupancy import GRID, SCALE, guaranteed
from kvgate_policies.types import EngineShape
from unit.policies.made import learned

SHAPE = EngineShape(block_size=16, max_model_len=8192, prefix_caching=True)
WINDOWED = EngineShape(
    block_size=16,
    max_model_len=8192,
    groups=(KVGroup(Kind.FULL), KVGroup(Kind.SLIDING, window=128, count=3)),
    in_flight_tokens=2048,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 8000), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 9000),
    st.integers(0, 500),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9000),
    st.sampled_from([SHAPE, WINDOWED]),
)
def test_it_is_never_above_the_peak(prompts, n, limit, least, ignore_eos, shares, generated, shape):
    outlook = Outlook(tuple(prompts), limit, n, least, ignore_eos, shares_prompt=shares)
    found = request_occupancy(prior(), outlook, shape, generated)
    plain = shape if shares or n == 1 else EngineShape(16, 8192, groups=shape.groups, in_flight_tokens=2048)
    peak = guaranteed(price(plain, prompts, limit, n).blocks)
    assert all(mean <= most + len(prompts) for mean, most in zip(found.means, peak.means, strict=True))
    assert all(variance >= 0 for variance in found.variances)
    assert found.means[0] > 0


def test_a_list_of_prompts_is_the_sum_of_them():
    curve = learned([100, 200, 300])
    one = request_occupancy(curve, Outlook((100,), 900), SHAPE)
    other = request_occupancy(curve, Outlook((700,), 900), SHAPE)
    assert request_occupancy(curve, Outlook((100, 700), 900), SHAPE) == one + other


def test_a_length_that_only_the_limit_ends_is_exact():
    outlook = Outlook((100,), 200, ignore_eos=True)
    found = request_occupancy(learned([5] * 50), outlook, SHAPE)
    assert found.variances == (0,) * len(GRID)
    assert max(found.means) == price(SHAPE, (100,), 200, 1).blocks * SCALE
    assert found.means[-1] == 0
    assert expected_output(learned([5] * 50), outlook) == 200


def test_what_a_window_holds_only_while_the_prompt_is_read_is_in_the_first_points():
    outlook = Outlook((4000,), 4000)
    curve = learned([500] * 50)
    before, after = (request_occupancy(curve, outlook, WINDOWED, generated) for generated in (0, 1))
    reading = price(WINDOWED, (4000,), 1, 1).blocks * SCALE
    assert before.means[0] == before.means[1] == reading > after.means[0]


@pytest.mark.parametrize(("least", "limit"), [(0, 8000), (200, 8000), (0, 150), (400, 150)])
def test_the_expected_output_is_the_mean_of_the_lengths_that_may_be(least: int, limit: int):
    rng = random.Random(4)
    lengths = [max(1, round(rng.lognormvariate(5.0, 0.8))) for _ in range(5000)]
    possible = [min(length, limit) for length in lengths if length >= min(least, limit)]
    found = expected_output(learned(lengths), Outlook((10,), limit, n=3, min_tokens=least))
    assert found == pytest.approx(3 * sum(possible) / len(possible), rel=0.06)


def test_forecasts_of_a_known_distribution_are_calibrated_also_where_limits_cut():
    rng = random.Random(5)
    draw = lambda: max(1, round(rng.lognormvariate(5.0, 0.8)))  # noqa: E731
    curve = learned([draw() for _ in range(20000)])
    seen: dict[float, list[bool]] = {}
    for _ in range(6000):
        limit = rng.choice([50, 300, 8000])
        for quantile, exceeded in longer_than_said(curve, min(draw(), limit), limit=limit):
            seen.setdefault(quantile, []).append(exceeded)
    shares = {quantile: sum(found) / len(found) for quantile, found in seen.items()}
    assert shares == {0.5: pytest.approx(0.5, abs=0.06), 0.9: pytest.approx(0.1, abs=0.03), 0.99: pytest.approx(0.01, abs=0.008)}  # fmt: skip
    assert len(seen[0.5]) == pytest.approx(4000, abs=200)  # a limit of 50 hides the median
    assert len(seen[0.99]) == pytest.approx(2000, abs=200)


def test_a_limit_that_was_reached_exceeds_what_it_does_not_hide():
    curve = learned([100] * 200)
    assert dict(longer_than_said(curve, 3000, limit=3000)) == {0.5: True, 0.9: True, 0.99: True}
    assert not dict(longer_than_said(curve, 20, limit=20))
    assert dict(longer_than_said(curve, 2000, limit=8000, sure=1999))[0.5] is False  # at least so long anyway


def test_what_one_replica_counted_another_takes_over():
    one, other = Lengths(), Lengths()
    for _ in range(100):
        cohort = one.start("a")
        one.reach("a", cohort, 0, 700)
        one.end("a", cohort, 700)
    one.review()
    other.adopt(one.statements())
    assert other.curve("a").alive(0, 500) == pytest.approx(one.curve("a").alive(0, 500), rel=0.05)
    assert other.statements()["a"] == pytest.approx(one.statements()["a"])
    again = Lengths()
    again.adopt(one.statements(["a"]))
    assert sum(again.statements()[POOL]) == 0


def test_what_was_counted_before_a_change_is_not_taken_over_after_it():
    fresh = Lengths()
    fresh.start("a")
    old, new = [0.0, *LengthHistogram().to_numbers()], [2.0, *LengthHistogram().to_numbers()]
    old[1] = new[1] = 7.0
    fresh.adopt({"a": new})
    assert fresh.guarded("a")
    assert fresh.guarded_names == {"a"}
    counted = fresh.statements()["a"]
    fresh.adopt({"a": old})
    assert fresh.statements()["a"] == counted
    with pytest.raises(ValueError, match="numbers"):
        fresh.adopt({"a": [2.0, 1.0]})


def test_a_mark_moves_when_a_statement_does():
    lengths = Lengths()
    cohort = lengths.start("a")
    lengths.start("b")
    before = lengths.marks()
    lengths.reach("a", cohort, 0, 10)
    lengths.end("a", cohort, 10)
    lengths.review()
    changed = {name for name, mark in lengths.marks().items() if before[name] != mark}
    assert changed == {POOL, "a"}
