"""Trust, bias and foreign traffic, one scrape after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.feedback import (
    BIAS_MAX,
    TRUST_CUT,
    TRUST_GAIN_PER_S,
    TRUST_MIN,
    USABLE_MIN,
    Drift,
    Gauge,
    Trust,
    drift_step,
    trust_step,
    usable_blocks,
)


def scrape(counters: list[float], *, every_s: float = 1.0, start: Trust | None = None) -> Trust:
    trust = start or Trust()
    for index, counter in enumerate(counters):
        trust = trust_step(trust, counter, index * every_s)
    return trust


def test_the_first_scrape_only_sets_where_counting_begins():
    assert scrape([500.0]).k == 1.0
    assert scrape([500.0, 500.0, 500.0]).k == 1.0


def test_preemptions_cut_once_in_two_seconds_and_it_creeps_back():
    assert scrape([0, 1]).k == pytest.approx(TRUST_CUT)
    assert scrape([0, 1, 2]).k == pytest.approx(TRUST_CUT)
    assert scrape([0, 1, 2, 3]).k == pytest.approx(TRUST_CUT**2)
    assert scrape([0, 1, 1, 1]).k == pytest.approx(TRUST_CUT + 2 * TRUST_GAIN_PER_S)
    assert scrape([0, 1, *[1] * 60]).k == 1.0


def test_it_never_falls_below_half():
    assert scrape([float(index) for index in range(200)]).k == TRUST_MIN


def test_a_restarted_engine_begins_anew():
    restarted = scrape([100.0, 3.0])
    assert restarted.k == 1.0
    assert trust_step(restarted, 4.0, 10.0).k == pytest.approx(TRUST_CUT)


def gauges(used: float, held: float, count: int, capacity: float = 1000.0) -> Drift:
    drift = Drift()
    for index in range(count):
        drift = drift_step(drift, Gauge(used, held, capacity, float(index)))
    return drift


def test_preemptions_that_others_explain_cost_no_trust():
    before = trust_step(Trust(), 5.0, 0.0)
    after = trust_step(before, 9.0, 10.0, explained=True)
    assert after.k == 1.0
    assert trust_step(after, 9.0, 20.0).k == 1.0, "they are counted, and not held against it later"


def test_requests_that_are_larger_than_thought_take_capacity():
    drift = gauges(used=600, held=500, count=60)
    assert drift.bias == pytest.approx(1.2)
    assert drift.foreign_blocks == 0
    assert usable_blocks(1000, Trust(), drift) == pytest.approx(1000 / 1.2)


def test_a_sudden_reading_is_smoothed():
    drift = drift_step(gauges(used=500, held=500, count=5), Gauge(700, 500, 1000, 5.0))
    assert 1.0 < drift.bias < 1.05


def test_foreign_traffic_counts_when_it_is_seen_twice():
    assert gauges(used=800, held=100, count=1).foreign_blocks == 0
    seen_twice = gauges(used=800, held=100, count=2)
    assert seen_twice.foreign_blocks == pytest.approx(800 - BIAS_MAX * 100)
    gone = drift_step(seen_twice, Gauge(100, 100, 1000, 2.0))
    assert gone.foreign_blocks == 0


def test_an_idle_ledger_says_nothing_of_bias_but_sees_all_that_is_foreign():
    drift = gauges(used=300, held=0, count=3)
    assert drift.bias == 1.0
    assert usable_blocks(1000, Trust(), drift) == 700


def test_what_is_above_peaks_is_foreign_and_no_bias():
    drift = Drift()
    for second in range(5):
        drift = drift_step(drift, Gauge(600, 500, 1000.0, float(second), held_is_peak=True))
    assert (drift.bias, drift.foreign_blocks) == (1.0, 100.0)
    below = drift_step(drift, Gauge(500, 500, 1000.0, 5.0, held_is_peak=True))
    assert below.foreign_blocks == 0


def test_bias_that_was_learned_from_forecasts_fades_where_all_are_peaks():
    drift = gauges(used=600, held=500, count=60)
    for second in range(60, 120):
        drift = drift_step(drift, Gauge(400, 500, 1000.0, float(second), held_is_peak=True))
    assert drift.bias == pytest.approx(1.0, abs=0.01)


def test_a_part_stays_open_whatever_the_gauge_says():
    assert usable_blocks(1000, Trust(TRUST_MIN), gauges(used=1000, held=0, count=3)) == USABLE_MIN * 1000


@given(
    st.lists(st.tuples(st.floats(0, 5000), st.floats(0, 1000), st.floats(0, 3)), max_size=30),
    st.lists(st.floats(0, 1e6), max_size=30),
)
def test_whatever_the_gauges_say_capacity_only_shrinks(readings, counters):
    drift, now_s = Drift(), 0.0
    for used, held, gap_s in readings:
        now_s += gap_s
        drift = drift_step(drift, Gauge(used, held, 1000.0, now_s))
    trust = scrape(counters)
    assert TRUST_MIN <= trust.k <= 1.0
    assert 1.0 <= drift.bias <= BIAS_MAX
    assert USABLE_MIN * 1000 <= usable_blocks(1000, trust, drift) <= 1000
