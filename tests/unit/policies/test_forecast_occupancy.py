"""The vector a ledger adds up: bounds, exact lengths, and what is really held."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate_policies.forecast_lengths import LengthHistogram
from kvgate_policies.forecast_occupancy import LAG_TOKENS, blocks_of_request, forecast_occupancy
from kvgate_policies.forecast_survival import never_ends, prior, survival
from kvgate_policies.kv_cost import price
from kvgate_policies.occupancy import GRID, NOTHING, SCALE, Occupancy, guaranteed
from kvgate_policies.types import EngineShape

SHAPE = EngineShape(block_size=16, max_model_len=32768, prefix_caching=True)


def vector(prompt: int, generated: int, limit: int, *, n: int = 1, curve=None, **named) -> Occupancy:
    curve = curve or prior()
    return forecast_occupancy(
        curve, blocks_of_request(SHAPE, prompt, n), generated=generated, limit=limit, **named
    )


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 20000), st.integers(0, 4000), st.integers(1, 8000), st.integers(1, 4), st.integers(0, 3000)
)
def test_it_never_exceeds_the_guaranteed_peak(prompt, generated, more, n, min_tokens):
    limit = generated + more
    peak = guaranteed(price(SHAPE, (prompt,), limit, n).blocks)
    found = vector(prompt, generated, limit, n=n, min_tokens=min_tokens)
    assert all(mean <= most for mean, most in zip(found.means, peak.means, strict=True))
    assert all(variance >= 0 for variance in found.variances)
    assert found.means[0] > 0


def test_now_is_certain_and_the_future_fades():
    found = vector(1000, 100, 20000)
    now = price(SHAPE, (1000,), 100 + LAG_TOKENS, 1).blocks
    assert found.means[0] >= now * SCALE
    assert found.means[0] < (now + 1) * SCALE + found.means[-1]
    assert found.variances[0] < found.variances[GRID.index(128)]
    assert found.means[-1] < found.means[0]


def test_what_is_asked_for_at_least_is_certain():
    sure = vector(100, 10, 32000, min_tokens=900)
    open_ended = vector(100, 10, 32000)
    at = GRID.index(512)
    assert sure.variances[at] < open_ended.variances[at]
    assert sure.means[at] >= price(SHAPE, (100,), 10 + 512, 1).blocks * SCALE > open_ended.means[at]


def test_a_known_length_has_no_variance_and_ends():
    found = vector(100, 0, 200, curve=never_ends())
    assert found.variances == (0,) * len(GRID)
    after = GRID.index(256)
    assert set(found.means[after:]) == {0}
    assert found.means[after - 1] == price(SHAPE, (100,), 200, 1).blocks * SCALE


def test_a_limit_that_nobody_reaches_changes_nothing():
    seen = LengthHistogram()
    for length in range(60, 4000):
        seen.reach(0, length)
        seen.end(length)
    curve = survival(seen, prior())
    near, far = vector(500, 50, 20000, curve=curve), vector(500, 50, 30000, curve=curve)
    assert near.means == pytest.approx(far.means, abs=SCALE)


def test_several_sequences_share_their_prompt():
    one, four = vector(1600, 10, 400), vector(1600, 10, 400, n=4)
    assert one.means[0] < four.means[0] < 2 * one.means[0]


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_sum_of_known_lengths_bounds_what_is_held_at_every_moment(rng):
    """Sequences in lock-step, vectors up to a lag old: no moment between grid points holds more."""
    requests = []
    for _ in range(rng.randint(1, 30)):
        prompt, limit = rng.randint(1, 600), rng.randint(2, 6000)
        requests.append((prompt, limit, rng.randint(1, limit - 1), rng.randint(0, LAG_TOKENS)))
    held = NOTHING
    for prompt, limit, generated, _ in requests:
        held += vector(prompt, generated, limit, curve=never_ends())
    for ahead in {0, 1, *(rng.randint(0, 7000) for _ in range(20))}:
        point = max(index for index, start in enumerate(GRID) if start <= ahead)
        real = sum(
            price(SHAPE, (prompt,), generated + lag + ahead, 1).blocks
            for prompt, limit, generated, lag in requests
            if generated + lag + ahead < limit
        )
        assert real * SCALE <= held.means[point]


def test_mean_and_variance_are_those_of_lengths_drawn_from_the_curve():
    rng = random.Random(3)
    seen = LengthHistogram()
    lengths = [max(1, round(rng.lognormvariate(5.5, 0.8))) for _ in range(20000)]
    for length in lengths:
        seen.reach(0, length)
        seen.end(length)
    found = vector(400, 0, 30000, curve=survival(seen, prior()), lag_tokens=0)
    size = price(SHAPE, (400,), 128, 1).blocks
    running = sum(length > 128 for length in lengths) / len(lengths)
    at = GRID.index(128)
    assert found.means[at] / SCALE == pytest.approx(running * size, rel=0.03)
    assert found.variances[at] / SCALE == pytest.approx(size**2 * running * (1 - running), rel=0.06)


def test_sums_come_back_to_nothing():
    vectors = [vector(100 * i + 1, i, 1000 + i) for i in range(50)]
    held = NOTHING
    for one in vectors:
        held += one
    for one in reversed(vectors):
        held -= one
    assert held == NOTHING


def test_it_comes_back_from_plain_numbers():
    found = vector(10, 3, 500)
    assert Occupancy.from_numbers(found.to_numbers()) == found
    assert found.use_blocks == -(-max(found.means) // SCALE)
    with pytest.raises(ValueError, match=f"{2 * len(GRID)} numbers"):
        Occupancy.from_numbers([1, 2, 3])
