"""The survival curve: against closed forms, and against lengths drawn from it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate_policies.forecast_lengths import LENGTH_MAX, NUMBERS, LengthHistogram
from kvgate_policies.forecast_survival import never_ends, prior, stretched, survival
from unit.policies.made import learned


def test_the_prior_is_wide():
    assert prior().alive(0, 0) == 1.0
    assert prior().quantile(0.5) == pytest.approx(256, rel=0.05)
    assert 7000 < prior().quantile(0.99) < 10000
    assert prior().alive(0, 256) == pytest.approx(0.5, abs=0.02)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20000), max_size=30), st.integers(0, 5000))
def test_it_never_rises_and_quantiles_are_its_inverse(lengths, generated):
    curve = learned(lengths)
    alive = [curve.alive(generated, more) for more in (0, 1, 16, 128, 768, 4096, 50000)]
    assert alive == sorted(alive, reverse=True)
    assert all(0.0 <= chance <= 1.0 for chance in alive)
    for q in (0.1, 0.5, 0.9):
        length = curve.quantile(q, generated)
        assert length == LENGTH_MAX or 1.0 - curve.alive(generated, length - generated) >= q - 1e-9
        assert length == generated + 1 or 1.0 - curve.alive(generated, length - 1 - generated) < q + 1e-9


def test_a_constant_hazard_gives_the_geometric_law():
    rng = random.Random(5)
    curve = learned([max(1, math.ceil(rng.expovariate(1 / 300))) for _ in range(20000)])
    for generated in (0, 100, 700):
        assert curve.alive(generated, 300) == pytest.approx(math.exp(-1), abs=0.02)
        assert curve.mean_more(generated, LENGTH_MAX) == pytest.approx(300, rel=0.05)
    assert curve.expected_ends(0, 300) == pytest.approx(1.0, rel=0.05)


def test_cut_sequences_do_not_shorten_the_curve():
    rng = random.Random(6)
    lengths = [max(1, math.ceil(rng.expovariate(1 / 300))) for _ in range(20000)]
    seen = LengthHistogram()
    for length in lengths:
        cut = 200
        seen.reach(0, min(length, cut))
        if length <= cut:
            seen.end(length)
    curve = survival(seen, prior())
    assert curve.alive(0, 180) == pytest.approx(math.exp(-180 / 300), abs=0.02)
    naive = sum(min(length, 200) > 180 for length in lengths if length <= 200) / sum(
        n <= 200 for n in lengths
    )
    assert naive < 0.1, "counting finished ones alone would have been far off"


def seen_of(lengths: list[int], *, cut: tuple[int, ...] = ()) -> LengthHistogram:
    seen = LengthHistogram()
    for length in (*lengths, *cut):
        seen.start()
        seen.reach(0, length)
    for length in lengths:
        seen.end(length)
    return seen


@pytest.mark.parametrize("place", [0, 1, 9, 15, 18])
def test_ends_in_one_place_of_a_bin_are_expected_there(place):
    length = 45 + place
    curve = learned([length] * 2000)
    assert curve.alive(0, length - 2) > 0.97
    assert curve.alive(0, length + 1) < 0.03
    assert curve.mean_more(20, 2 * length) == pytest.approx(length - 20, abs=0.5)
    assert curve.expected_ends(0, length - 2) < 0.05
    assert 0.85 < curve.expected_ends(0, length) < 1.05


def test_two_places_of_a_bin_are_as_likely_as_they_were():
    curve = learned([725] * 700 + [1000] * 1300)
    assert curve.alive(0, 723) > 0.99
    assert curve.alive(0, 1023) < 0.01
    assert curve.mean_more(0, 5000) == pytest.approx(0.35 * 725 + 0.65 * 1000, rel=0.02)


def test_as_many_ends_are_expected_over_what_it_was_made_of_as_came():
    rng = random.Random(8)
    for draw in (
        lambda: rng.lognormvariate(5.0, 1.0),
        lambda: rng.lognormvariate(6.2, 0.05),
        lambda: rng.expovariate(1 / 40),
        lambda: rng.choice([20, 54, 700]),
        lambda: rng.uniform(50, 70),
    ):
        lengths = [math.ceil(draw()) for _ in range(3000)]
        curve = learned(lengths)
        expected = sum(curve.expected_ends(0, length) for length in lengths)
        assert 0.85 * 3000 < expected < 1.03 * 3000


def test_one_that_was_cut_within_a_bin_was_at_risk_for_the_part_it_came():
    half = 45 + 9  # of the 19 tokens of its bin
    curve = survival(seen_of([45 + 18] * 1000, cut=(half,) * 1000), prior())
    assert curve.alive(44, 19) == pytest.approx(1 - 1000 / (1000 + 1000 * 10 / 19), abs=0.01)


def test_counts_that_nobody_can_have_told_make_a_curve_all_the_same():
    for numbers in ([5.0] * NUMBERS, [0.0] * (NUMBERS - 1) + [1e12], [0.0] * 40 + [1e9] * (NUMBERS - 40)):
        curve = survival(LengthHistogram.from_numbers(numbers), prior())
        alive = [curve.alive(0, tokens) for tokens in range(0, 3000, 7)]
        assert alive == sorted(alive, reverse=True)
        assert 0 <= curve.mean_more(0, 4000) <= 4000


def test_lengths_without_spread_leave_no_doubt():
    curve = learned([512] * 300)
    assert curve.alive(0, 500) > 0.95
    assert curve.alive(0, 530) < 0.05


def test_a_sequence_that_never_ends_reaches_its_limit():
    assert never_ends().alive(0, 10**5) == 1.0
    assert never_ends().mean_more(10, 400) == 390
    assert never_ends().expected_ends(0, 1000) == 0.0


def test_mean_of_what_is_to_come_is_the_sum_of_chances():
    curve = learned([5, 40, 40, 300, 2000])
    for generated, limit in ((0, 700), (30, 31), (100, 5000), (50, 50)):
        direct = sum(curve.alive(generated, more) for more in range(limit - generated))
        assert curve.mean_more(generated, limit) == pytest.approx(direct, rel=1e-9)


def test_a_tenant_leans_on_its_parent_where_it_has_seen_nothing():
    parent = learned([3000] * 50 + [50] * 50)
    seen = LengthHistogram()
    for _ in range(100):
        seen.reach(0, 40)
        seen.end(40)
    child = survival(seen, parent)
    assert child.alive(0, 100) < 0.15
    assert child.alive(500, 1000) == pytest.approx(parent.alive(500, 1000), abs=1e-6)


def test_stretching_makes_it_longer():
    seen = LengthHistogram()
    for length in [200] * 20 + [600] * 20:
        seen.reach(0, length)
        seen.end(length)
    curve = survival(seen, prior())
    longer = stretched(curve, 0.3, seen)
    assert all(longer.alive(0, more) >= curve.alive(0, more) for more in (10, 100, 500, 1000))
    assert longer.quantile(0.5) > 2 * curve.quantile(0.5)
    assert longer.alive(1000, 500) == pytest.approx(curve.alive(1000, 500)), (
        "there it was a guess, and stays one"
    )


def test_quantiles_lie_between_0_and_1():
    for q in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="quantile"):
            prior().quantile(q)
