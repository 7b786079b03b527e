from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.engines.base import Trouble
from kvgate.engines.health import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    EMPTY_WINDOW_S,
    FAILURES_MAX,
    PROBE_FAILURES_MAX,
    Health,
    Seen,
    State,
    step,
)

UP = Health(State.UP)
Event = Seen | Trouble


def after(health: Health, *events: Event, now_s: float = 0.0) -> Health:
    for event in events:
        health = step(health, event, now_s, busy_hold_s=0.5)
    return health


def tripped(now_s: float = 0.0) -> Health:
    return after(UP, *[Trouble.RESET] * FAILURES_MAX, now_s=now_s)


def suspended(now_s: float = 0.0) -> Health:
    return after(UP, Trouble.EMPTY, Trouble.EMPTY, now_s=now_s)


def test_it_takes_work_from_its_first_good_probe() -> None:
    assert not Health().takes_work
    assert after(Health(), Seen.PROBE_GOOD).state is State.UP


@pytest.mark.parametrize("event", [Trouble.CONNECT, Seen.PROBE_REFUSED, Seen.PROBE_UNHEALTHY])
@pytest.mark.parametrize("health", [Health(), UP, suspended(), tripped()], ids=lambda health: health.state)
def test_who_is_gone_is_out_at_once_and_back_with_the_next_good_probe(health, event) -> None:
    gone = after(health, event)
    assert gone.state is State.DOWN
    assert after(gone, Seen.PROBE_GOOD) == Health(State.UP, Seen.PROBE_GOOD)


def test_silent_probes_must_come_in_a_row() -> None:
    almost = [Seen.PROBE_SILENT] * (PROBE_FAILURES_MAX - 1)
    assert after(UP, *almost, Seen.PROBE_GOOD, *almost).state is State.UP
    assert after(UP, *almost, Seen.PROBE_SILENT).state is State.DOWN


@pytest.mark.parametrize("trouble", [Trouble.RESET, Trouble.ERROR, Trouble.TIMEOUT])
def test_failures_in_a_row_open_the_breaker(trouble) -> None:
    almost = [trouble] * (FAILURES_MAX - 1)
    assert after(UP, *almost, Seen.SUCCESS, *almost).state is State.UP
    assert after(UP, *almost, trouble).state is State.DOWN


def test_busy_and_empty_do_not_count_as_failures() -> None:
    assert after(UP, *[Trouble.BUSY] * 10, *[Trouble.EMPTY] * 10).failures == 0


def test_a_tripped_engine_waits_out_its_back_off_and_then_stands_trial() -> None:
    down = tripped(now_s=10.0)
    assert after(down, Seen.PROBE_GOOD, now_s=10.0 + BACKOFF_S_MIN - 0.01).state is State.DOWN
    trial = after(down, Seen.PROBE_GOOD, now_s=10.0 + BACKOFF_S_MIN)
    assert trial.state is State.TRIAL
    assert trial.takes_work
    assert after(trial, Seen.SUCCESS) == Health(State.UP, Seen.SUCCESS)


@pytest.mark.parametrize("trouble", [Trouble.RESET, Trouble.ERROR, Trouble.TIMEOUT])
def test_one_failure_on_trial_is_enough(trouble) -> None:
    trial = after(tripped(), Seen.PROBE_GOOD, now_s=BACKOFF_S_MIN)
    assert after(trial, trouble).state is State.DOWN


def test_the_back_off_doubles_to_its_bound_and_starts_small_after_a_success() -> None:
    health, waits, now_s = tripped(), [], 0.0
    for _ in range(8):
        waits.append(health.backoff_s)
        now_s = health.until_s
        health = after(health, Seen.PROBE_GOOD, Trouble.RESET, now_s=now_s)
    assert waits[0] == BACKOFF_S_MIN
    assert waits[-1] == BACKOFF_S_MAX
    assert all(later == min(2 * sooner, BACKOFF_S_MAX) for sooner, later in pairwise(waits))
    up = after(after(health, Seen.PROBE_GOOD, now_s=health.until_s), Seen.SUCCESS)
    assert after(up, *[Trouble.RESET] * FAILURES_MAX).backoff_s == BACKOFF_S_MIN


def test_a_busy_engine_is_held_and_comes_back_as_what_it_was() -> None:
    busy = after(UP, Trouble.BUSY, now_s=1.0)
    assert busy.state is State.BUSY
    assert after(busy, Seen.HOLD_OVER, now_s=1.4).state is State.BUSY
    assert after(busy, Seen.HOLD_OVER, now_s=1.5).state is State.UP
    trial = after(tripped(), Seen.PROBE_GOOD, now_s=BACKOFF_S_MIN)
    assert after(trial, Trouble.BUSY, Seen.HOLD_OVER, now_s=99.0).state is State.BUSY
    assert after(after(trial, Trouble.BUSY, now_s=99.0), Seen.HOLD_OVER, now_s=99.5).state is State.TRIAL


def test_busy_again_prolongs_the_hold() -> None:
    busy = after(after(UP, Trouble.BUSY, now_s=1.0), Trouble.BUSY, now_s=1.4)
    assert after(busy, Seen.HOLD_OVER, now_s=1.5).state is State.BUSY


def test_one_empty_answer_is_a_suspicion_two_are_a_suspension() -> None:
    once = after(UP, Trouble.EMPTY)
    assert once.state is State.UP
    assert after(once, Trouble.EMPTY, now_s=EMPTY_WINDOW_S).state is State.SUSPENDED
    assert after(once, Trouble.EMPTY, now_s=EMPTY_WINDOW_S + 1).state is State.UP


def test_a_canary_confirms_or_clears_a_suspicion() -> None:
    once = after(UP, Trouble.EMPTY)
    assert after(once, Seen.CANARY_ABORTED).state is State.SUSPENDED
    assert after(once, Seen.CANARY_ALIVE, Trouble.EMPTY).state is State.UP
    assert after(once, Seen.CANARY_UNCLEAR, Trouble.EMPTY).state is State.SUSPENDED


def test_good_probes_and_old_requests_that_end_well_do_not_lift_a_suspension() -> None:
    assert (
        after(suspended(), Seen.PROBE_GOOD, Seen.SUCCESS, Trouble.BUSY, now_s=99.0).state is State.SUSPENDED
    )


def test_a_canary_or_the_back_off_lifts_a_suspension() -> None:
    held = suspended()
    assert after(held, Seen.CANARY_ALIVE).state is State.UP
    assert after(held, Seen.CANARY_UNCLEAR).state is State.SUSPENDED
    trial = after(held, Seen.CANARY_UNCLEAR, now_s=held.until_s)
    assert trial.state is State.TRIAL
    assert after(trial, Trouble.EMPTY, now_s=99.0).state is State.SUSPENDED
    assert after(trial, Trouble.RESET, now_s=99.0).state is State.DOWN


def test_an_aborted_canary_suspends_for_longer_each_time() -> None:
    held = suspended()
    again = after(held, Seen.CANARY_ABORTED, now_s=held.until_s)
    assert again.until_s - held.until_s == 2 * BACKOFF_S_MIN


@pytest.mark.parametrize("health", [UP, suspended(), tripped(), Health(State.BUSY)], ids=lambda h: h.state)
def test_a_restarted_engine_has_no_past(health) -> None:
    assert after(health, Seen.RESTARTED) == Health(State.UP, Seen.RESTARTED)


@given(st.lists(st.tuples(st.sampled_from([*Seen, *Trouble]), st.floats(0, 20)), max_size=40))
def test_whatever_happens_there_is_a_way_back(events) -> None:
    """No sequence leaves an engine that answers probes, canaries and requests shut for good."""
    health, now_s = Health(), 0.0
    for event, passed_s in events:
        now_s += passed_s
        health = after(health, event, now_s=now_s)
        assert health.backoff_s <= BACKOFF_S_MAX
        assert health.until_s <= now_s + BACKOFF_S_MAX
    now_s += BACKOFF_S_MAX
    health = after(health, Seen.HOLD_OVER, Seen.PROBE_GOOD, Seen.CANARY_ALIVE, Seen.SUCCESS, now_s=now_s)
    assert health.state is State.UP
    assert not health.tripped


def test_a_stalled_engine_is_back_with_any_sign_of_life() -> None:
    held = after(UP, Seen.STALLED)
    assert held.state is State.STALLED
    assert not held.takes_work
    for sign in (Seen.MOVED, Seen.CANARY_ALIVE, Seen.SUCCESS, Seen.RESTARTED):
        assert after(held, sign).state is State.UP, sign
    assert after(held, Seen.PROBE_GOOD, Trouble.TIMEOUT, Trouble.EMPTY, now_s=99.0).state is State.STALLED


def test_a_canary_without_an_answer_holds_a_stall_and_one_that_cannot_be_asked_ends_in_a_trial() -> None:
    held = after(UP, Seen.STALLED)
    again = after(held, Seen.CANARY_SILENT, now_s=held.until_s)
    assert (again.state, again.until_s - held.until_s) == (State.STALLED, 2 * BACKOFF_S_MIN)
    assert after(again, Seen.CANARY_UNCLEAR, now_s=again.until_s).state is State.TRIAL
    assert after(suspended(), Seen.CANARY_SILENT, now_s=99.0).state is State.TRIAL


@pytest.mark.parametrize("health", [Health(), tripped(), suspended()], ids=lambda health: health.state)
def test_who_is_out_already_does_not_stall(health) -> None:
    assert after(health, Seen.STALLED, Seen.MOVED) == health
