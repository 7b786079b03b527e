"""How often those that run are looked at, and how much a vector covers until the next time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from kvgate.forecasting.pace import CORE_SHARE, LAG_MAX, LAG_TOGETHER, LOOK_S, PAUSE_S_MIN, SLICE, WAY_S, Pace
from kvgate.forecasting.rates import Rates
from kvgate.forecasting.running import Running
from kvgate_policies.forecast_lengths import LENGTH_MAX
from kvgate_policies.forecast_occupancy import LAG_TOKENS

PAUSE_S_MAX = 0.25


@dataclass
class Run:
    """Of a request, what its pace depends on."""

    engine_id: str = "e"
    meter: object | None = "a stream"
    reached: int = 100
    vector_at: int = 100
    covered: int = 100 + LAG_TOKENS
    is_exact: bool = False
    unsure: int = 0


def running(**fields: object) -> Running:
    return cast("Running", Run(**fields))  # type: ignore[arg-type]


def pace(*, per_s: float | None = 50.0, told_s: float = 0.0, waiting: int = 1) -> Pace:
    rates = Rates()
    if per_s is not None:
        rates.streamed("e", per_s, 1.0)
    return Pace(rates, pause_s_max=PAUSE_S_MAX, told_s=told_s, waiting=lambda: waiting)


def planned(runs: int, tokens_per_event: float = 1.0, **fields: float | None) -> Pace:
    made = pace(**fields)  # type: ignore[arg-type]
    made.plan(runs, PAUSE_S_MIN, tokens_per_event)
    return made


def lag(made: Pace, run: Running | None = None, grown: int = 0) -> int:
    return made.lag_tokens(run or running(), grown)


def test_while_requests_wait_looks_come_as_fast_as_they_may():
    assert planned(5).pause_s == PAUSE_S_MIN
    assert planned(5, waiting=0).pause_s == PAUSE_S_MAX
    assert planned(0).pause_s == PAUSE_S_MAX, "what waits, waits for others than those"


@pytest.mark.parametrize("runs", [1, 50, 100, 300, 416])
def test_looks_take_no_more_of_a_core_than_their_share(runs: int):
    made = planned(runs)
    assert runs * LOOK_S <= made.pause_s * CORE_SHARE * 1.001
    assert PAUSE_S_MIN <= made.pause_s <= PAUSE_S_MAX


def test_with_very_many_a_vector_lasts_longer_than_a_pause():
    few, many = planned(400), planned(10_000)
    assert many.pause_s == PAUSE_S_MAX
    assert lag(few) < lag(many) < 2 * lag(few)
    fresh = running(reached=101, vector_at=100, covered=100 + lag(many))
    assert not many.is_due(fresh, 1)
    assert many.is_due(running(reached=100 + lag(many) - 10, vector_at=100, covered=100 + lag(many)), 1)


def test_a_vector_covers_what_comes_until_the_next_look_and_what_is_on_its_way():
    assert lag(planned(5)) == 50 * (PAUSE_S_MIN + WAY_S) + 1
    assert lag(planned(5, waiting=0)) == 50 * (PAUSE_S_MAX + WAY_S) + 1
    assert lag(planned(5, told_s=0.25)) - lag(planned(5)) == pytest.approx(50 * 0.25, abs=1)
    assert lag(planned(5, tokens_per_event=4.0)) == lag(planned(5)) + 3


def test_one_that_grows_faster_than_its_engine_is_believed():
    made = planned(5)
    assert lag(made, grown=2) == lag(made)
    assert lag(made, grown=6) > 2 * lag(made) - 2
    assert lag(made, grown=1000) == LAG_MAX
    in_tens = planned(5, tokens_per_event=10.0)
    assert lag(in_tens, grown=10) == lag(in_tens), "one event"


@pytest.mark.parametrize(
    ("per_s", "run"),
    [(None, {}), (5.0, {"meter": None}), (5.0, {"reached": 0, "vector_at": 0, "covered": LAG_TOKENS})],
)
def test_what_is_not_known_is_taken_to_be_much(per_s: float | None, run: dict[str, object]):
    assert lag(planned(5, per_s=per_s), running(**run)) == LAG_TOKENS


EXACT = {"is_exact": True}


@pytest.mark.parametrize("waiting", [0, 1])
def test_known_lengths_go_on_together_and_cover_no_time(waiting: int):
    made = planned(SLICE, waiting=waiting)
    assert lag(made, running(**EXACT)) == LAG_TOGETHER < lag(made)
    assert lag(made, running(**EXACT), grown=1000) == LAG_TOGETHER
    moved = running(reached=101, vector_at=100, covered=100 + LAG_TOGETHER, **EXACT)
    assert made.is_due(moved, 1), "with all others"


@pytest.mark.parametrize(
    ("runs", "tokens_per_event", "fields", "run"),
    [
        (SLICE + 1, 1.0, {}, {}),
        (5000, 1.0, {}, {}),
        (5, 1.2, {}, {}),
        (5, 1.0, {"told_s": 0.25}, {}),
        (5, 1.0, {}, {"meter": None}),
        (5, 1.0, {}, {"reached": 0, "vector_at": 0}),
        (5, 1.0, {"per_s": None}, {}),
    ],
    ids=["slices", "turns", "guessed events", "shared ledger", "one piece", "not begun", "unknown engine"],
)
def test_known_lengths_cover_the_time_where_vectors_are_of_several_moments(
    runs: int, tokens_per_event: float, fields: dict[str, float | None], run: dict[str, object]
):
    made = planned(runs, tokens_per_event, **fields)
    assert lag(made, running(**EXACT, **run)) == lag(made, running(**run)) > LAG_TOGETHER


UNSURE = 30
ONE_PIECE: dict[str, object] = {"meter": None, "unsure": UNSURE, **EXACT}


def test_of_a_known_length_in_one_piece_is_covered_besides_where_it_may_be_by_now():
    assert lag(planned(5), running(**ONE_PIECE)) == UNSURE + LAG_TOGETHER
    apart = planned(SLICE + 1)
    assert lag(apart, running(**ONE_PIECE)) == UNSURE + lag(apart)
    begins = running(**ONE_PIECE | {"reached": 0, "vector_at": 0})
    assert lag(planned(5), begins) == UNSURE + LAG_TOGETHER, (
        "it may have begun: that is in what it is unsure by"
    )


@pytest.mark.parametrize("per_s", [None, 50.0])
def test_where_nothing_is_known_of_it_a_known_length_in_one_piece_may_be_anywhere(per_s: float | None):
    assert lag(planned(5, per_s=per_s), running(**ONE_PIECE | {"unsure": LENGTH_MAX})) > LENGTH_MAX


def test_a_known_length_in_one_piece_is_made_anew_when_it_is_anywhere_else_than_it_was_taken_to_be():
    made = planned(5)
    for covered in (100 + LAG_TOKENS, LENGTH_MAX):
        assert made.is_due(running(**ONE_PIECE, covered=covered), 0), "its pace is known now"
    assert not made.is_due(running(**ONE_PIECE, covered=100 + UNSURE + LAG_TOGETHER), 0)


def test_what_did_not_move_is_not_due():
    assert not planned(5).is_due(running(covered=100), 0)


@pytest.mark.parametrize("per_s", [2, 10, 30, 50, 80, 120])
@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize("runs", [1, 300, 5000])
def test_no_vector_is_outgrown_before_it_is_made_anew(per_s: int, waiting: int, runs: int):
    """Whatever was counted at a look: the engine is ahead by what is on its way, until the next one."""
    made = pace(per_s=per_s, waiting=waiting)
    made.plan(runs, PAUSE_S_MAX, 1.0)
    run = Run(reached=1, vector_at=1, covered=1 + made.lag_at_start)
    now_s, made_anew = 0.0, 0
    for _ in range(400):
        pause_s = made.pause_s
        now_s += pause_s
        assert 1 + int((now_s + WAY_S) * per_s) <= run.covered + 1
        made.plan(runs, pause_s, 1.0)
        before, run.reached = run.reached, 1 + int(now_s * per_s)
        grown = run.reached - before
        if made.is_due(cast("Running", run), grown):
            made_anew += 1
            run.vector_at = run.reached
            run.covered = run.reached + made.lag_tokens(cast("Running", run), grown)
    assert made_anew > 1


def test_one_that_starts_is_looked_at_a_long_pause_later_on_the_fastest_engine():
    assert planned(5, per_s=5.0).lag_at_start == planned(5, per_s=None).lag_at_start == LAG_TOKENS
    assert planned(5, per_s=100.0).lag_at_start == 100 * (PAUSE_S_MAX + WAY_S) + 1
