"""Lengths one by one, as histograms, and the sum of two histograms that are no joint one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.traffic.lengths import Bucketed, Lengths, Listed, Summed

LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=60)
BOUNDS = (10.0, 100.0, 1000.0, math.inf)


def bucketed(values: list[int]) -> Bucketed:
    edges = [0.0, *BOUNDS]
    counts = [sum(low < v <= high for v in values) for low, high in zip(edges, BOUNDS, strict=False)]
    return Bucketed(BOUNDS, counts, sum(values))


def test_listed() -> None:
    lengths = Listed([5, 1, 3, 3])
    assert (lengths.count, lengths.mean, lengths.percentile(50), lengths.percentile(100)) == (
        4,
        3.0,
        3.0,
        5.0,
    )
    assert [lengths.share_above(x) for x in (0, 1, 3, 5)] == [1.0, 0.75, 0.25, 0.0]


@pytest.mark.parametrize(
    "nothing", [Listed([]), Bucketed((), (), 0.0), Summed(Bucketed((), (), 0.0), Bucketed((), (), 0.0))]
)
def test_of_nothing(nothing: Lengths) -> None:
    assert (nothing.count, nothing.mean, nothing.percentile(99), nothing.share_above(0)) == (0, 0.0, 0.0, 0.0)


@given(LENGTHS, st.integers(0, 4000))
def test_a_histogram_errs_on_the_careful_side(values: list[int], tokens: int) -> None:
    exact, rough = Listed(values), bucketed(values)
    assert rough.mean == pytest.approx(exact.mean)
    assert rough.share_above(tokens) >= exact.share_above(tokens) - 1e-9
    for percent in (50, 90, 99, 100):
        assert rough.percentile(percent) >= exact.percentile(percent)


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=60),
    st.integers(0, 7000),
)
def test_the_sum_of_two_histograms_is_bounded_whatever_belongs_together(
    pairs: list[tuple[int, int]], tokens: int
) -> None:
    exact = Listed(p + o for p, o in pairs)
    rough = Summed(bucketed([p for p, _ in pairs]), bucketed([o for _, o in pairs]))
    assert rough.mean == pytest.approx(exact.mean)
    assert exact.share_above(tokens) - 1e-9 <= rough.share_above(tokens) <= 1
    for percent in (50, 90, 99, 100):
        assert rough.percentile(percent) >= exact.percentile(percent)


def test_bounds_must_grow() -> None:
    with pytest.raises(ValueError, match="growing bounds"):
        Bucketed((2.0, 1.0), (1, 1), 3.0)
