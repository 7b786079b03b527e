"""A policy with forecasts: what is reserved follows what answers have come to, and nothing depends on the steps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgate.forecasting.rates import Rates
from kvgate.replay.offered import Offered
from unit.replay.make import HARDWARE, offered, one

POOL = "version: 1\npools: {{sim: {{backends: ['http://127.0.0.1:9'], reservation: {kind}}}}}\n"


def policy(tmp_path: Path, kind: str) -> str:
    path = tmp_path / f"{kind}.yaml"
    path.write_text(POOL.format(kind=kind) + "defaults: {queue: {depth: 1000, wait: 10m}}\n")
    return str(path)


def short_answers(count: int, seed: int = 1, **more: Any) -> list[Offered]:
    """They ask for ten times what they get."""
    rng = random.Random(seed)
    return [
        offered(
            number / 4,
            prompt_tokens=rng.randint(50, 250),
            output_tokens=rng.randint(20, 60),
            max_tokens=600,
            **more,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("stream", [True, False])
def test_forecasts_learn_that_answers_are_short(tmp_path: Path, stream: bool):
    requests = short_answers(400, stream=stream)
    peaks, forecasts = (
        one(requests, policy(tmp_path, kind), replace(HARDWARE, profile="fast:20"))
        for kind in ("guaranteed", "forecast")
    )
    assert peaks.total.served == forecasts.total.served == 400
    assert peaks.total.wait_p50_s is not None
    assert forecasts.total.wait_p50_s is not None
    assert forecasts.total.wait_p50_s < peaks.total.wait_p50_s / 5
    assert peaks.reserved_share is not None
    assert forecasts.reserved_share is not None
    assert forecasts.reserved_share < peaks.reserved_share
    assert forecasts.total.preemptions <= 4


def test_how_fast_an_engine_writes_is_seen_where_nothing_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else what runs would be taken to hold less than it does, and more would start than fits."""
    rates: list[float | None] = []
    running = Rates.look

    def look(self: Rates, now_s: float) -> None:
        running(self, now_s)
        speeds = (self.speed(engine.id) for engine in self._statuses())
        rates.extend(None if speed is None else speed.likely for speed in speeds)

    monkeypatch.setattr(Rates, "look", look)
    left = [
        offered(number / 4 + 0.1, output_tokens=400, seen_enough_s=0.5, stream=False)
        for number in range(0, 40, 8)
    ]
    whole = [offered(number / 4, output_tokens=300, max_tokens=300, stream=False) for number in range(40)]
    requests = sorted([*whole, *left], key=lambda one: one.arrived_s)
    assert one(requests, policy(tmp_path, "forecast")).total.served == 40
    known = [rate for rate in rates if rate is not None]
    assert len(known) > 10
    assert 80 <= min(known) <= max(known) <= 140, (
        known
    )  # a token each ten milliseconds, as sequences come and go


def test_the_same_input_gives_the_same_answer_with_forecasts_too(tmp_path: Path):
    requests = [
        *short_answers(100),
        offered(25.5, seen_enough_s=0.3, max_tokens=600, output_tokens=400),
        offered(25.6, n=2, max_tokens=600),
    ]
    file = policy(tmp_path, "forecast")
    first, again, exact = (one(requests, file, exact=exact) for exact in (False, False, True))
    assert first == again
    assert exact.total.outcomes == first.total.outcomes
    assert exact.total.wait_p99_s == pytest.approx(first.total.wait_p99_s, rel=0.02, abs=0.02)
