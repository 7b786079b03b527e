"""How fast an engine writes, by its own counter, and by streams where it has none."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvgate.forecasting.rates import ERROR_MAX, STEPS_ERROR, Rates


@dataclass
class Gauges:
    running: float | None
    generation_tokens: float | None
    steps: float | None = None


@dataclass
class Status:
    id: str
    gauges: Gauges | None
    gauges_age_s: float | None = None


def likely(rates: Rates) -> float | None:
    speed = rates.speed("e")
    return None if speed is None else speed.likely


def speed(rates: Rates) -> tuple[float, float, float] | None:
    found = rates.speed("e")
    return None if found is None else (found.slowest, found.likely, found.fastest)


def about(per_s: float, error: float) -> object:
    return pytest.approx((per_s * (1 - error), per_s, per_s * (1 + error)))


def looked(*scrapes: tuple[float, Gauges], late_s: float = 0.0) -> Rates:
    """Each with the second at which it was made; it is looked at by so much later."""
    status = Status("e", None)
    rates = Rates(lambda: (status,))
    for at_s, gauges in scrapes:
        status.gauges, status.gauges_age_s = gauges, late_s
        rates.look(at_s + late_s)
    return rates


def test_each_step_gives_a_token():
    rates = looked(*((second, Gauges(4, 200 * second, 50 * second)) for second in range(5)))
    assert speed(rates) == about(50.0, STEPS_ERROR)
    assert rates.fastest_per_s("e") == rates.fastest_per_s() == pytest.approx(50.0)


def test_a_change_is_seen_at_the_next_scrape():
    rates = looked((0, Gauges(4, 0, 0)), (1, Gauges(4, 200, 50)), (2, Gauges(4, 280, 70)))
    assert speed(rates) == about(20.0, STEPS_ERROR)


@pytest.mark.parametrize("late_s", [(0.0, 0.4, 0.1), (0.4, 0.0, 0.4)])
def test_what_counts_is_when_an_engine_was_read_and_not_when_that_is_looked_at(late_s: tuple[float, ...]):
    status = Status("e", None)
    rates = Rates(lambda: (status,))
    for second, late in enumerate(late_s):
        status.gauges, status.gauges_age_s = Gauges(4, 200 * second, 50 * second), late
        rates.look(second + late)
    assert likely(rates) == pytest.approx(50.0)


def test_the_older_a_scrape_and_the_longer_the_time_it_speaks_of_the_less_is_known():
    often = looked(*((second, Gauges(4, 200 * second, 50 * second)) for second in range(3)))
    old = looked(*((second, Gauges(4, 200 * second, 50 * second)) for second in range(3)), late_s=4.0)
    seldom = looked(*((second, Gauges(4, 200 * second, 50 * second)) for second in range(0, 9, 4)))
    never = looked(*((second, Gauges(4, 200 * second, 50 * second)) for second in range(3)), late_s=100.0)
    assert speed(often) == about(50.0, STEPS_ERROR)
    assert speed(old) == speed(seldom) == about(50.0, 4 * STEPS_ERROR)
    assert speed(never) == about(50.0, ERROR_MAX)


@pytest.mark.parametrize(
    ("steps_per_s", "slowest", "fastest"), [(200, 50, 200), (20, 20, 50)], ids=["front ends", "speculates"]
)
def test_where_steps_are_no_tokens_the_tokens_are_gone_by(steps_per_s: int, slowest: float, fastest: float):
    rates = looked(*((second, Gauges(4, 200 * second, steps_per_s * second)) for second in range(20)))
    assert speed(rates) == pytest.approx((slowest, 50.0, fastest))


def test_without_steps_tokens_are_shared_by_those_that_run():
    status = Status("e", Gauges(4, 1000))
    rates = Rates(lambda: (status,))
    rates.look(0.0)
    assert rates.speed("e") is None
    for second in range(1, 20):
        for part in (0.0, 0.25, 0.5, 0.75):  # a scrape is looked at more than once
            status.gauges, status.gauges_age_s = Gauges(4, 1000 + 200 * second), part
            rates.look(second + part)
    assert speed(rates) == about(50.0, ERROR_MAX)


@pytest.mark.parametrize("has_steps", [True, False])
def test_an_idle_hour_says_nothing_of_the_pace(has_steps: bool):
    def gauges(running: int, made: int) -> Gauges:
        return Gauges(running, made, made // 2 if has_steps else None)

    ran = [(second, gauges(2, 100 * second)) for second in range(5)]
    idle = [(second, gauges(0, 430)) for second in range(5, 3605)]
    begins = [(3605, gauges(2, 500)), (3606, gauges(2, 600))]
    for upto in (0, 1, 2):
        assert likely(looked(*ran, *idle, *begins[:upto])) == pytest.approx(50.0)


def test_an_engine_that_has_just_begun_says_nothing_yet():
    """For how much of that second it was at work is not known."""
    assert looked((0, Gauges(0, 0, 0)), (1, Gauges(2, 20, 10))).speed("e") is None


def test_an_engine_that_began_anew_is_no_engine_that_writes_backwards():
    status = Status("e", Gauges(2, 1000, 500))
    rates = Rates(lambda: (status,))
    for second, tokens in enumerate((1000, 1100, 20, 120)):
        status.gauges = Gauges(2, tokens, tokens // 2)
        rates.look(second)
        assert likely(rates) in (None, pytest.approx(50.0))


@pytest.mark.parametrize("gauges", [None, Gauges(None, None), Gauges(3, None), Gauges(3, None, 50)])
def test_without_a_counter_streams_say_it(gauges: Gauges | None):
    rates = Rates(lambda: (Status("e", gauges),))
    rates.look(0.0)
    assert rates.speed("e") is None
    for _ in range(20):
        rates.streamed("e", tokens=60, sequence_s=2.0)
    rates.streamed("e", tokens=0, sequence_s=2.0)
    assert speed(rates) == about(30.0, ERROR_MAX)
    rates.look(1.0)
    assert speed(rates) == about(30.0, ERROR_MAX)


def test_of_an_engine_that_is_gone_nothing_stays():
    engines = [Status("e", None)]
    rates = Rates(lambda: tuple(engines))
    rates.streamed("e", tokens=60, sequence_s=2.0)
    engines.clear()
    rates.look(1.0)
    assert rates.speed("e") is None
