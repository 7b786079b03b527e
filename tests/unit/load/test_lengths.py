"""How long sessions are: what can be written, what is drawn, and what the longest is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.load.lengths import Fixed, Independent, Length, LogNormal, Longest, Measured, Uniform, read_length


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("512", Fixed(512)),
        ("uniform:64:2048", Uniform(64, 2048)),
        (" lognormal:300:4000 ", LogNormal(300, 4000)),
    ],
)
def test_what_can_be_written(text: str, length: Length) -> None:
    assert read_length(text) == length


@pytest.mark.parametrize(
    "text",
    ["", "0", "-5", "1.5", "uniform", "uniform:5", "uniform:9:5", "uniform:0:5", "lognormal:5:5", "normal:1:2",
     "uniform:1:2:3", "99999999999", "٣"],
)  # fmt: skip
def test_what_cannot(text: str) -> None:
    with pytest.raises(ValueError, match="a number of tokens such as 512"):
        read_length(text)


@given(st.integers(0, 1000), st.sampled_from(["7", "uniform:64:2048", "lognormal:300:4000"]))
def test_no_draw_is_above_the_longest(seed: int, text: str) -> None:
    length = read_length(text)
    assert 1 <= length.draw(random.Random(seed)) <= length.most


def test_a_lognormal_has_the_median_and_the_percentile_it_was_given() -> None:
    source = random.Random(1)
    drawn = sorted(LogNormal(300, 4000).draw(source) for _ in range(4000))
    assert drawn[2000] == pytest.approx(300, rel=0.1)
    assert drawn[3960] == pytest.approx(4000, rel=0.25)


def test_measured_pairs_stay_together() -> None:
    sizes = Measured([10, 500, 0], [400, 20, 5])
    source = random.Random(1)
    assert {sizes.draw(source) for _ in range(50)} == {(10, 400), (500, 20)}
    assert sizes.largest == (500, 20)
    with pytest.raises(ValueError, match="no request with a prompt and an answer"):
        Measured([0], [5])


def test_the_worst_case_is_the_longest_every_time() -> None:
    sizes = Longest(Independent(Uniform(1, 100), Uniform(1, 50)))
    source = random.Random(1)
    assert {sizes.draw(source) for _ in range(9)} == {(100, 50)} == {sizes.largest}
