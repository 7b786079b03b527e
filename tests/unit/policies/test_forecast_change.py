"""Noticing that outputs got longer: the test, what a record does about it, and who is suspected."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from kvgate_policies.forecast import POOL, Lengths
from kvgate_policies.forecast_change import (
    COHORT_SEQUENCES,
    COHORTS_FINE,
    COHORTS_MAX,
    EVIDENCE_MIN,
    GROUP,
    Fate,
    changed_since,
    changed_whoever_is_left_out,
    evidence,
)
from kvgate_policies.forecast_record import GUARD_S_MAX, RELEARN_ENDS, LengthRecord


def test_evidence_bounds_the_chance_of_an_accident():
    """Against the exact lower tail of the Poisson law."""
    for expected in (5.0, 20.0, 60.0):
        for seen in range(int(expected)):
            exact = sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(seen + 1))
            assert exact <= math.exp(-evidence(Fate(expected, seen))) * (1 + 1e-9)
    assert evidence(Fate(10.0, 10.0)) == evidence(Fate(10.0, 30.0)) == 0.0


def test_evidence_bounds_the_chance_also_where_the_forecast_rests_on_few_ends():
    """Against the exact tail of the binomial law: each of all the ends is one of the new ones by its share of trials."""
    for known in (4, 30, 200):
        for expected in (5.0, 20.0, 60.0):
            share = expected / (expected + known)
            for seen in range(int(expected)):
                ends = seen + known
                exact = sum(
                    math.comb(ends, k) * share**k * (1 - share) ** (ends - k) for k in range(seen + 1)
                )
                found = evidence(Fate(expected, seen, doubt=expected / known))
                assert exact <= math.exp(-found) * (1 + 1e-9)
                assert found < evidence(Fate(expected, seen))
    assert evidence(Fate(20.0, 5.0, doubt=1e-9)) == pytest.approx(evidence(Fate(20.0, 5.0)))


def test_the_change_is_dated():
    steady, odd = Fate(30.0, 29.0, due=25.0), Fate(12.0, 2.0, due=10.0)
    assert changed_since([steady] * 6) is None
    assert changed_since([steady, steady, steady, odd, odd, odd]) == 3
    assert changed_since([Fate(3.0, 0.0, due=3.0)]) is None


def test_few_are_no_change_however_long_they_get():
    assert changed_since([Fate(100.0, 0.0, due=9.0)]) is None
    assert changed_since([Fate(100.0, 0.0, due=10.0)]) == 0


def test_a_small_lasting_bias_is_no_change():
    assert evidence(Fate(1000.0, 800.0)) > EVIDENCE_MIN
    assert changed_since([Fate(1000.0, 800.0, due=900.0)]) is None


class Crowd:
    """Sequences of a pool that run side by side, a beat of ten tokens at a time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lengths = Lengths()
        self.running: list[list[Any]] = []
        self.changed: list[str] = []

    def begin(self, count: int, **medians: float) -> None:
        """Each beat two sequences begin, of the tenants in turn."""
        names = list(medians)
        for index in range(count):
            tenant = names[index % len(names)]
            self.add(tenant, medians[tenant])
            if index % 2:
                self.beat()

    def add(self, tenant: str, median: float) -> None:
        """One more sequence begins, of a log-normal length."""
        length = max(1, round(median * self.rng.lognormvariate(0.0, 1.0)))
        self.running.append([tenant, self.lengths.start(tenant), length, 0])

    def finish(self) -> None:
        """Until none runs."""
        while self.running:
            self.beat()

    def beat(self) -> None:
        for one in self.running:
            tenant, cohort, length, emitted = one
            one[3] = min(emitted + 10, length)
            self.lengths.reach(tenant, cohort, emitted, one[3])
            if one[3] == length:
                self.lengths.end(tenant, cohort, length)
        self.running = [one for one in self.running if one[3] < one[2]]
        self.changed += self.lengths.review()


def test_no_false_alarm_in_three_thousand():
    crowd = Crowd(1)
    crowd.begin(3000, a=100.0, b=40.0)
    assert crowd.changed == []


@pytest.mark.parametrize("length", [54, 60, 64, 500])
def test_answers_of_one_length_that_run_side_by_side_raise_no_alarm(length):
    """All come to the same bin at once, and none has ended there yet."""
    crowd = Crowd(7)
    for _ in range(12):
        crowd.running += [["a", crowd.lengths.start("a"), length, 0] for _ in range(150)]
        crowd.finish()
    assert crowd.changed == []


def test_many_after_few_raise_no_alarm():
    """What thirty answers say of the hazard is known to a fifth, and two hundred are measured by it at once."""
    for seed in range(12):
        crowd = Crowd(seed)
        crowd.begin(30, a=16.0)
        for _ in range(200):
            crowd.add("a", 16.0)
        crowd.finish()
        assert crowd.changed == []


def test_a_newcomer_who_is_not_like_the_others_has_not_changed():
    """What is expected of it rests on its pool, which counts as four of its own."""
    for seed in range(4):
        crowd = Crowd(seed)
        crowd.begin(600, a=20.0, b=20.0)
        for _ in range(40):
            crowd.add("new", 100.0)
        crowd.finish()
        assert crowd.changed == []


def test_outputs_three_times_longer_are_noticed_before_they_end_and_relearned():
    crowd = Crowd(2)
    crowd.begin(700, a=200.0)
    before = crowd.lengths.curve("a").quantile(0.5)
    started = 0
    while not crowd.lengths.guarded("a") and started < 1000:
        crowd.begin(10, a=600.0)
        started += 10
    assert started <= 200
    assert "a" in crowd.changed
    assert crowd.lengths.curve("a").quantile(0.5) > 1.5 * before
    crowd.begin(500, a=600.0)
    assert not crowd.lengths.guarded("a")
    assert crowd.lengths.curve("a").quantile(0.5) == pytest.approx(600, rel=0.25)


def test_the_others_are_left_alone():
    crowd = Crowd(3)
    crowd.begin(900, a=200.0, b=100.0, c=50.0)
    while not crowd.lengths.guarded("a"):
        crowd.begin(12, a=1000.0, b=100.0, c=50.0)
    crowd.begin(60, a=1000.0, b=100.0, c=50.0)
    assert not crowd.lengths.guarded("b")
    assert not crowd.lengths.guarded("c")
    assert crowd.lengths.curve("b").quantile(0.5) == pytest.approx(100, rel=0.35)


def begin_at_once(crowd: Crowd, count: int, **medians: float) -> None:
    """So many sequences of each, and no heartbeat in between."""
    for tenant, median in medians.items():
        for _ in range(count):
            crowd.add(tenant, median)


def test_quiet_tenants_and_newcomers_are_left_alone_too():
    """Of them nothing speaks against a change; but nothing speaks for it either."""
    for seed in range(6):
        crowd = Crowd(seed)
        crowd.begin(256, a=20.0, b=20.0)
        crowd.finish()
        for _ in range(4):
            begin_at_once(crowd, 64, a=400.0)
            crowd.finish()
        assert crowd.changed == ["a"]
        assert not crowd.lengths.guarded("b")
        assert not crowd.lengths.guarded("new")


def test_a_newcomer_whose_answers_are_long_is_no_change_of_the_others():
    crowd = Crowd(8)
    crowd.begin(640, a=20.0, b=20.0)
    crowd.finish()
    for _ in range(4):
        begin_at_once(crowd, 96, c=1500.0)
        crowd.finish()
    assert set(crowd.changed) == {"c"}
    assert not crowd.lengths.guarded("a")
    assert not crowd.lengths.guarded("b")


def test_a_change_of_two_is_a_change_of_all():
    crowd = Crowd(9)
    crowd.begin(256, a=20.0, b=20.0)
    crowd.finish()
    begin_at_once(crowd, 64, a=400.0, b=400.0)
    crowd.finish()
    assert {"a", "b"} <= set(crowd.changed)
    assert crowd.changed.count("a") == crowd.changed.count("b") == 1


def test_a_change_is_the_pools_if_it_shows_whoever_is_left_out():
    one, few, none = Fate(30.0, 2.0), Fate(9.0, 0.0), Fate(9.0, 9.0)
    assert changed_whoever_is_left_out(one + few, [one, few])
    assert not changed_whoever_is_left_out(one, [one])
    assert not changed_whoever_is_left_out(one + none, [one, none])
    assert changed_whoever_is_left_out(one, []), "of those that nobody knows"


def test_a_replica_that_hears_of_one_tenants_change_does_not_take_it_for_all():
    one, other = Crowd(9), Crowd(10)
    for crowd in (one, other):
        crowd.begin(256, a=20.0, b=20.0)
        crowd.finish()
    begin_at_once(one, 64, a=400.0)
    one.finish()
    assert one.changed == ["a"]
    begin_at_once(other, 24, a=400.0)
    other.beat()
    assert other.changed == []
    other.lengths.hear([one.lengths.statements()])
    other.finish()
    assert other.lengths.guarded_names <= {"a"}
    assert not other.lengths.guarded("b")


def test_nobody_is_guarded_for_ever():
    """Of several sequences nothing is learned: who sends nothing else brings no ends to learn from."""
    crowd = Crowd(12)
    crowd.begin(300, a=20.0)
    crowd.finish()
    while not crowd.lengths.guarded("a"):
        crowd.begin(2, a=400.0)
    lengths = crowd.lengths
    lengths.review(GUARD_S_MAX - 1.0)
    assert lengths.guarded("a")
    assert lengths.guarded("new")
    lengths.review(GUARD_S_MAX)
    assert not lengths.guarded("a")
    assert not lengths.guarded("new")
    assert lengths.curve("a").quantile(0.5) > 60, "what was known before is forgotten"


def test_a_change_of_all_is_noticed_by_the_pool_and_newcomers_are_guarded():
    crowd = Crowd(4)
    names = {f"tenant-{index}": 200.0 for index in range(6)}
    crowd.begin(600, **names)
    longer = dict.fromkeys(names, 800.0)
    for _ in range(15):
        crowd.begin(20, **longer)
    assert POOL in crowd.changed
    assert crowd.changed.index(POOL) < COHORT_SEQUENCES
    guarded = [name for name in names if name in crowd.changed]
    assert len(guarded) >= 4


def test_only_what_began_after_a_change_says_that_the_new_lengths_are_known():
    """Those of the old kind that still run, and end soon, are no reason to trust a forecast of the new kind."""
    lengths = Lengths()
    for _ in range(10 * COHORT_SEQUENCES):
        cohort = lengths.start("a")
        lengths.reach("a", cohort, 0, 100)
        lengths.end("a", cohort, 100)
        lengths.review()
    old = [lengths.start("a") for _ in range(2 * COHORT_SEQUENCES)]
    new = [lengths.start("a") for _ in range(100)]
    for cohort in new:
        lengths.reach("a", cohort, 0, 160)
    assert set(lengths.review()) == {"a", POOL}
    counted = lengths.statements()
    for cohort in old:
        lengths.reach("a", cohort, 0, 100)
        lengths.end("a", cohort, 100)
    assert lengths.statements() == counted
    assert lengths.guarded("a")
    for cohort in new:
        lengths.reach("a", cohort, 160, 300)
        lengths.end("a", cohort, 300)
    for _ in range(2):
        lengths.curve("a")
        lengths.review()
    assert not lengths.guarded("a")
    assert lengths.curve("a").quantile(0.5) == pytest.approx(300, rel=0.02)


@pytest.mark.parametrize("learned", [40, 41, 42, 43, 47, 50, 59, 60, 100, 1000])
def test_a_burst_of_twenty_that_get_ten_times_longer_is_noticed_whenever_it_comes(learned):
    """As many as a small engine holds; wherever in a cohort they begin, and however little was learned before."""
    lengths = Lengths()
    for _ in range(learned):
        cohort = lengths.start("a")
        lengths.reach("a", cohort, 0, 30)
        lengths.end("a", cohort, 30)
        lengths.review()
    burst = [lengths.start("a") for _ in range(20)]
    for emitted in range(0, 400, 10):
        for cohort in burst:
            lengths.reach("a", cohort, emitted, emitted + 10)
        if lengths.review():
            break
    assert lengths.guarded("a")
    assert emitted < 300, "before they end"


def test_one_that_gets_endless_is_no_change_and_nor_are_four_in_a_row():
    crowd = Crowd(14)
    crowd.begin(300, a=20.0)
    crowd.finish()
    for count in (1, 4):
        for _ in range(count):
            crowd.running.append(["a", crowd.lengths.start("a"), 20_000, 0])
        crowd.finish()
        crowd.begin(100, a=20.0)
    assert crowd.changed == []


def test_who_began_long_ago_is_counted_in_the_group_that_its_cohort_is_in():
    """And not as history, nor for what began since a change."""
    record = LengthRecord()
    record.start(9)
    for cohort in range(10, 10 + COHORTS_FINE + GROUP):
        record.start(cohort)
        record.review(cohort)
    record.reach(9, 0, 7, Fate(expected=0.5))
    record.end(9, 7)
    assert record.fate(0) == Fate(expected=0.5, seen=1.0)
    assert (sum(record.lengths().trials), sum(record.lengths().ends)) == (7.0, 1.0)
    assert len(record._cohorts) < COHORTS_FINE + GROUP, "some were put together"
    record.forget_before(12, 1.0)
    record.reach(9, 7, 20, Fate(expected=0.5))
    record.end(15, 3)
    assert sum(record.lengths().trials) == sum(record.lengths().ends) == 0.0, "its whole group is forgotten"


def test_of_a_burst_all_that_is_surely_new_teaches():
    """It changed within a cohort. That one is forgotten, and no more than one besides."""
    crowd = Crowd(13)
    crowd.begin(90, a=20.0)
    crowd.finish()
    for _ in range(60):
        crowd.running.append(["a", crowd.lengths.start("a"), 400, 0])
    crowd.finish()
    assert crowd.changed.count("a") == 1
    ends = sum(crowd.lengths._tenants["a"].lengths().ends)
    assert 60 - 2 * COHORT_SEQUENCES <= ends < 60
    for _ in range(2):
        crowd.lengths.curve("a")
        crowd.lengths.review()
    assert not crowd.lengths.guarded("a")
    assert crowd.lengths.curve("a").quantile(0.5) == pytest.approx(400, rel=0.05)


def test_who_was_guarded_for_the_pools_sake_is_trusted_again_with_it():
    crowd = Crowd(11)
    names = {f"tenant-{index}": 200.0 for index in range(6)}
    crowd.begin(600, **names)
    longer = dict.fromkeys(names, 800.0)
    while POOL not in crowd.changed:
        crowd.begin(6, **longer)
    assert len(crowd.lengths.guarded_names) >= 4
    while POOL in crowd.lengths.guarded_names:
        crowd.begin(6, **longer)
    ends = {name: sum(record.lengths().ends) for name, record in crowd.lengths._records()}
    trusted = [name for name in names if not crowd.lengths.guarded(name)]
    assert min(ends[name] for name in trusted) < RELEARN_ENDS <= ends[POOL]


def test_shorter_outputs_raise_no_alarm():
    crowd = Crowd(5)
    crowd.begin(600, a=300.0)
    crowd.begin(600, a=80.0)
    assert crowd.changed == []


def test_memory_is_bounded():
    crowd = Crowd(6)
    crowd.begin(COHORT_SEQUENCES * (COHORTS_MAX + 5), a=20.0)
    assert len(crowd.lengths._tenants["a"]._cohorts) <= COHORTS_MAX
    small = Lengths(tenants_max=3)
    for index in range(10):
        small.start(f"t{index}")
    assert list(small.statements()) == [POOL, "t7", "t8", "t9"]
