"""The rate algorithm is a bucket that refills evenly: it is run beside one, and every answer is compared."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.budgets import BURST_MS, charged_ms, corrected_ms, covered_at_ms

PER_MINUTE = st.sampled_from([1, 7, 60, 1000, 600_000])
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 100, 999, 30_000, 200_000]),
        st.sampled_from(["ask", "ask", "ask", "correct"]),
        st.integers(-100, 2000),
    ),
    max_size=40,
)


class Bucket:
    """One minute's worth, refilled evenly and never above full; in exact numbers. `level` may be a debt."""

    def __init__(self, per_minute: int) -> None:
        self.per_ms = Fraction(per_minute, 60_000)
        self.size = Fraction(per_minute)
        self.level = self.size

    def pass_ms(self, ms: int) -> None:
        self.level = min(self.size, self.level + ms * self.per_ms)

    def covers(self, amount: int) -> bool:
        return self.level >= min(Fraction(amount), self.size)

    def spend(self, amount: int) -> None:
        self.level -= amount


@given(PER_MINUTE, STEPS)
def test_it_equals_a_bucket_that_refills_evenly(per_minute, steps):
    bucket, tat_ms, now_ms = Bucket(per_minute), 0.0, 0
    for passed_ms, what, amount in steps:
        now_ms += passed_ms
        bucket.pass_ms(passed_ms)
        if what == "correct":
            # Nothing is given back to a full bucket: whoever holds nothing has nothing to correct.
            if bucket.level - amount <= bucket.size and bucket.level < bucket.size:
                bucket.spend(amount)
                tat_ms = corrected_ms(tat_ms, amount, per_minute)
        elif amount >= 0:
            covered = covered_at_ms(tat_ms, amount, per_minute) <= now_ms
            exact = bucket.level - min(amount, bucket.size)
            assert covered == (exact >= 0) or abs(exact) < 1e-6 * per_minute
            if covered:
                bucket.spend(amount)
                tat_ms = charged_ms(tat_ms, amount, per_minute, now_ms)


@given(
    PER_MINUTE,
    st.lists(st.integers(0, 5000), min_size=1, max_size=20),
    st.integers(0, 5000),
    st.integers(0, 10**12),
)
def test_what_it_says_of_the_future_holds_to_the_millisecond(per_minute, spent, amount, began_ms):
    tat_ms = 0.0
    for each in spent:
        tat_ms = charged_ms(tat_ms, each, per_minute, began_ms)
    at_ms = covered_at_ms(tat_ms, amount, per_minute)
    bucket = Bucket(per_minute)
    bucket.spend(sum(spent))
    if at_ms > began_ms + 1:
        bucket.pass_ms(int(at_ms - began_ms) - 1)
        assert not bucket.covers(amount)
        bucket.pass_ms(3)
        assert bucket.covers(amount)
    else:
        bucket.pass_ms(2)
        assert bucket.covers(amount)


def test_a_fresh_budget_holds_a_minutes_worth():
    assert covered_at_ms(0.0, 600, 600) <= 0
    assert covered_at_ms(charged_ms(0.0, 600, 600, 0), 1, 600) == pytest.approx(100)


def test_a_minute_of_rest_fills_it_and_no_longer_rest_fills_it_more():
    for rest_ms in (60_000, 10 * 60_000):
        tat_ms = charged_ms(charged_ms(0.0, 600, 600, 0), 600, 600, rest_ms)
        assert covered_at_ms(tat_ms, 1, 600) == pytest.approx(rest_ms + 100)


def test_the_long_run_is_the_rate():
    """Whoever asks whenever it is covered gets a minute's worth at once, and the rate from then on."""
    tat_ms, now_ms, granted = 0.0, 0.0, 0
    while now_ms < 10 * BURST_MS:
        now_ms = max(now_ms, covered_at_ms(tat_ms, 37, 1000))
        tat_ms = charged_ms(tat_ms, 37, 1000, now_ms)
        granted += 37
    assert granted == pytest.approx(11 * 1000, abs=2 * 37)


def test_more_than_the_burst_passes_when_full_and_is_a_debt():
    tat_ms = charged_ms(0.0, 1800, 600, 0)
    assert covered_at_ms(tat_ms, 0, 600) == pytest.approx(120_000)
    assert covered_at_ms(tat_ms, 600, 600) == covered_at_ms(tat_ms, 5000, 600) == pytest.approx(180_000)


def test_a_correction_is_as_if_it_had_been_charged_so():
    estimated = corrected_ms(charged_ms(0.0, 100, 600, 5000), 50, 600)
    assert estimated == pytest.approx(charged_ms(0.0, 150, 600, 5000))
    given_back = corrected_ms(charged_ms(0.0, 100, 600, 5000), -100, 600)
    assert given_back == pytest.approx(5000)
