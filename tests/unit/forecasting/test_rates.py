"""How fast an engine writes, by its own counter, and by streams where it has none."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvgate.forecasting.rates import Rates


@dataclass
class Gauges:
    running: float | None
    generation_tokens: float | None


@dataclass
class Status:
    id: str
    gauges: Gauges | None


def test_an_engines_counter_over_its_running_sequences():
    status = Status("e", Gauges(4, 1000))
    rates = Rates(lambda: (status,))
    rates.look(0.0)
    assert rates.tokens_per_s("e") is None
    for second in range(1, 20):
        for part in (0.0, 0.25, 0.5, 0.75):  # a scrape is looked at more than once
            status.gauges = Gauges(4, 1000 + 200 * second)
            rates.look(second + part)
    assert rates.tokens_per_s("e") == pytest.approx(50.0)


def test_an_idle_hour_says_nothing_of_the_pace():
    status = Status("e", Gauges(2, 0))
    rates = Rates(lambda: (status,))
    for second in range(5):
        status.gauges = Gauges(2, 100 * second)
        rates.look(second)
    for second in range(5, 3605):
        status.gauges = Gauges(0, 400)
        rates.look(second)
    status.gauges = Gauges(2, 500)
    rates.look(3605)
    assert rates.tokens_per_s("e") == pytest.approx(50.0, rel=0.35)


def test_an_engine_that_began_anew_is_no_engine_that_writes_backwards():
    status = Status("e", Gauges(2, 1000))
    rates = Rates(lambda: (status,))
    for second, tokens in enumerate((1000, 1100, 20, 120)):
        status.gauges = Gauges(2, tokens)
        rates.look(second)
        found = rates.tokens_per_s("e")
        assert found is None or found == pytest.approx(50.0)


@pytest.mark.parametrize("gauges", [None, Gauges(None, None), Gauges(3, None)])
def test_without_a_counter_streams_say_it(gauges: Gauges | None):
    rates = Rates(lambda: (Status("e", gauges),))
    rates.look(0.0)
    assert rates.tokens_per_s("e") is None
    for _ in range(20):
        rates.streamed("e", tokens=60, sequence_s=2.0)
    rates.streamed("e", tokens=0, sequence_s=2.0)
    assert rates.tokens_per_s("e") == pytest.approx(30.0)
    rates.look(1.0)
    assert rates.tokens_per_s("e") == pytest.approx(30.0)


def test_of_an_engine_that_is_gone_nothing_stays():
    engines = [Status("e", None)]
    rates = Rates(lambda: tuple(engines))
    rates.streamed("e", tokens=60, sequence_s=2.0)
    engines.clear()
    rates.look(1.0)
    assert rates.tokens_per_s("e") is None
