"""The hazard histogram: trials and ends."""

from __future__ import annotations

import pytest

from kvgate_policies.forecast_lengths import (
    EDGES,
    LENGTH_MAX,
    NUMBERS,
    TOKENS_MAX,
    WIDTHS,
    LengthHistogram,
    bin_of,
    total,
)


def test_bins_grow_by_the_square_root_of_two_and_have_no_gap():
    assert EDGES[:8] == (1, 2, 3, 4, 6, 8, 11, 16)
    assert EDGES[-1] == TOKENS_MAX
    assert list(EDGES) == sorted(set(EDGES))
    assert all(bin_of(edge) == index for index, edge in enumerate(EDGES))
    assert all(bin_of(edge - 1) == index - 1 for index, edge in enumerate(EDGES) if index)


def test_every_token_is_one_trial_however_it_is_told():
    whole, pieces = LengthHistogram(), LengthHistogram()
    whole.reach(0, 1000)
    for before in range(0, 1000, 7):
        pieces.reach(before, min(before + 7, 1000))
    assert whole.trials == pieces.trials
    assert sum(whole.trials) == 1000
    assert whole.trials[bin_of(128)] == EDGES[bin_of(128) + 1] - 128


def test_the_last_bin_takes_everything_beyond():
    seen = LengthHistogram()
    seen.reach(TOKENS_MAX - 1, TOKENS_MAX + 50)
    seen.end(TOKENS_MAX + 50)
    assert seen.trials[-1] == 51
    assert seen.ends[-1] == 1
    assert seen.left[-1] == LENGTH_MAX - 1 - (TOKENS_MAX + 50)
    seen.reach(TOKENS_MAX + 50, 2 * LENGTH_MAX)
    seen.end(2 * LENGTH_MAX)
    assert seen.left[-1] == LENGTH_MAX - 1 - (TOKENS_MAX + 50)


def test_what_was_left_of_a_bin_says_where_in_it_the_ends_were():
    seen = LengthHistogram()
    for length in (45, 60, 63):
        seen.reach(0, length)
        seen.end(length)
    index = bin_of(60)
    assert seen.left[index] == 18 + 3
    assert seen.left_squares[index] == 18**2 + 3**2
    assert seen.trials[index] + seen.left[index] == 3 * WIDTHS[index]


def test_adding_up_and_fading_keep_the_hazard():
    one, other = LengthHistogram(), LengthHistogram()
    for seen, length in ((one, 10), (other, 10), (other, 300)):
        seen.start()
        seen.reach(0, length)
        seen.end(length)
    both = total([one, other])
    one.add(other)
    assert one == both
    hazard = both.ends[bin_of(10)] / both.trials[bin_of(10)]
    both.fade(0.5)
    assert both.sequences == 1.5
    assert both.ends[bin_of(10)] / both.trials[bin_of(10)] == hazard


def test_it_comes_back_from_plain_numbers():
    seen = LengthHistogram()
    seen.start()
    seen.reach(0, 77)
    seen.end(77)
    assert LengthHistogram.from_numbers(seen.to_numbers()) == seen
    assert total([]) == LengthHistogram()


@pytest.mark.parametrize(
    "numbers", [[], [1.0] * 5, [0.0] * (1 + 2 * len(EDGES)), [float("nan")] * NUMBERS, [-1.0] * NUMBERS]
)
def test_numbers_that_are_no_histogram_are_refused(numbers):
    with pytest.raises(ValueError, match="length histogram"):
        LengthHistogram.from_numbers(numbers)


def test_time_does_not_run_backwards():
    with pytest.raises(ValueError, match="from 5 tokens to 4"):
        LengthHistogram().reach(5, 4)
    with pytest.raises(ValueError, match="ended with 0"):
        LengthHistogram().end(0)
