"""What a pool knows: fallbacks, sharing between replicas, restarts."""

from __future__ import annotations

import math

import pytest

from kvgate_policies.forecast import POOL, Lengths
from kvgate_policies.forecast_change import COHORT_SEQUENCES, COHORTS_MAX
from kvgate_policies.forecast_lengths import NUMBERS
from kvgate_policies.forecast_record import HISTORY_SEQUENCES, LengthRecord
from kvgate_policies.forecast_survival import prior


def serve(lengths: Lengths, tenant: str, length: int, times: int = 1, *, cut: bool = False) -> None:
    for _ in range(times):
        cohort = lengths.start(tenant)
        lengths.reach(tenant, cohort, 0, length)
        if not cut:
            lengths.end(tenant, cohort, length)
    lengths.review()


def test_before_anything_was_seen_the_prior_holds():
    lengths = Lengths()
    assert lengths.curve("a").quantile(0.5) == pytest.approx(prior().quantile(0.5), abs=2)
    assert not lengths.guarded("a")


def test_a_new_tenant_leans_on_the_pool():
    lengths = Lengths()
    serve(lengths, "old", 1000, 200)
    assert lengths.curve("new").alive(0, 720) > 0.9
    assert prior().alive(0, 720) < 0.5
    serve(lengths, "new", 20, 30)
    assert lengths.curve("new").alive(0, 30) < 0.3
    assert lengths.curve("old").alive(0, 720) > 0.9


@pytest.mark.parametrize("length", [1, 16, 45, 46, 54, 60, 63, 64, 700])
def test_answers_that_all_had_one_length_are_expected_to_have_it(length):
    """Wherever in its bin that is."""
    lengths = Lengths()
    serve(lengths, "a", length, 100)
    curve = lengths.curve("a")
    assert curve.mean_more(0, 8000) == pytest.approx(length, rel=0.05, abs=1.1)
    for q in (0.1, 0.5, 0.9):
        assert curve.quantile(q) == pytest.approx(length, rel=0.005)
    assert curve.alive(0, length + 4) < 0.01


def test_cut_answers_say_that_it_can_get_longer():
    lengths = Lengths()
    for _ in range(50):
        serve(lengths, "a", 100)
        serve(lengths, "a", 127, cut=True)
    assert 0.4 < lengths.curve("a").alive(0, 127) < 0.65


def test_running_sequences_count():
    lengths = Lengths()
    serve(lengths, "a", 50, 100)
    short = lengths.curve("a").alive(0, 200)
    cohorts = [lengths.start("a") for _ in range(15)]
    for cohort in cohorts:
        lengths.reach("a", cohort, 0, 300)
    lengths.review()
    assert lengths.curve("a").alive(0, 200) > short


def test_old_history_fades():
    record = LengthRecord()
    for number in range(3 * int(HISTORY_SEQUENCES)):
        record.start(number // COHORT_SEQUENCES)
        record.review(number // COHORT_SEQUENCES)
    assert record.lengths().sequences < HISTORY_SEQUENCES + COHORTS_MAX * COHORT_SEQUENCES + 1


def test_replicas_know_together_what_each_saw_and_hearing_twice_is_harmless():
    one, other, alone = (Lengths(evidence_min=math.inf) for _ in range(3))
    for lengths in (one, alone):
        serve(lengths, "a", 10, 40)
    for lengths in (other, alone):
        serve(lengths, "a", 300, 40)
    for _ in range(2):
        one.hear([other.statements()])
        other.hear([one.statements()])
    for generated, more in ((0, 5), (0, 200), (20, 100)):
        expected = alone.curve("a").alive(generated, more)
        assert one.curve("a").alive(generated, more) == pytest.approx(expected, rel=1e-9)
        assert other.curve("a").alive(generated, more) == pytest.approx(expected, rel=1e-9)


def test_a_replica_that_hears_of_a_change_forgets_too():
    one, other = Lengths(), Lengths()
    for lengths in (one, other):
        serve(lengths, "a", 50, 200)
    cohorts = [one.start("a") for _ in range(64)]
    for cohort in cohorts:
        one.reach("a", cohort, 0, 400)
    assert "a" in one.review()
    other.hear([one.statements()])
    assert other.guarded("a")
    assert other.curve("a").quantile(0.5) > 60
    one.hear([Lengths().statements()])
    assert one.guarded("a")
    serve(other, "a", 400, 70)
    assert other.curve("a").quantile(0.5) == pytest.approx(400, rel=0.05)
    other.review()
    assert not other.guarded("a")


def test_a_restart_forgets_nothing():
    before, after = Lengths(), Lengths()
    serve(before, "a", 70, 60)
    after.restore(before.statements())
    for more in (10, 60, 80, 500):
        assert after.curve("a").alive(0, more) == pytest.approx(before.curve("a").alive(0, more))


def test_statements_are_plain_numbers_of_fixed_size():
    lengths = Lengths()
    serve(lengths, "a", 5000, 3)
    statements = lengths.statements()
    assert set(statements) == {POOL, "a"}
    assert {len(numbers) for numbers in statements.values()} == {1 + NUMBERS}
    assert all(type(number) is float for numbers in statements.values() for number in numbers)
    with pytest.raises(ValueError, match="numbers"):
        lengths.hear([{"a": [0.0, 1.0]}])
    with pytest.raises(ValueError, match="numbers"):
        lengths.restore({"a": [0.0, 1.0]})


def test_what_is_told_twice_or_of_a_forgotten_tenant_is_no_error():
    lengths = Lengths(tenants_max=1)
    cohort = lengths.start("a")
    lengths.start("b")
    lengths.reach("a", cohort, 0, 10)
    lengths.reach("a", cohort, 10, 10)
    lengths.end("a", cohort, 10)
    assert set(lengths.statements()) == {POOL, "b"}
    assert sum(lengths._pool.lengths().trials) == 10
