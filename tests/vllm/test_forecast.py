"""Forecast reservations before a real engine: it is nearly as busy as without a limit, and does not preempt."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from vllm import measured, mixed, server, traffic
from vllm.steps import Step, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.server import Engine, Gateway

LONG = os.environ.get("KVGATE_SOAK") == "1"
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400 if LONG else 900)]

USABLE = server.BLOCKS - 1
SIZES = tuple(range(2, 13)) if LONG else (2, 3, 4)
"""So many times 48 requests: how they happen to come together moves the steps of each by a twentieth."""
KNOWN_STEPS_MAX, UNKNOWN_STEPS_MAX = (1.10, 1.12) if LONG else (1.12, 1.25)
"""Of those without a limit. What is held to over many draws in virtual time is 1.08, and 1.069 is met
(`tests/integration/forecasting/test_full_engine.py`). Here eleven draws took 1.059, and chance moves as many by 0.013
either way, three by a fortieth, and a machine that stands still for a moment by more."""
LEARNING = 200
MEASURED = 300


@dataclass(frozen=True, slots=True)
class Run:
    got: list[traffic.Got]
    steps: list[Step]
    summary: Summary

    @property
    def kv_use(self) -> float:
        """From the first step to the last in which a request began: after it nothing is left that could fill up."""
        last = max(number for number, step in enumerate(self.steps) if step.new)
        return Summary.of(self.steps[: last + 1]).kv_mean / USABLE

    @property
    def steps_per_token(self) -> float:
        """Sampled answers differ from run to run in length, so steps are compared for each token."""
        return self.summary.steps / self.summary.tokens_out


@pytest.fixture(scope="module")
def forecasting(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    options = ("--prompt-tokens", "backend", "--reservation", "forecast", "--queue-wait", "300s")
    with server.gateway(engine.url, tmp_path_factory.mktemp("forecast"), *options) as running:
        yield running


def run_known(engine: Engine, url: str, sizes: int, tokens: int, *, whole: int = 0) -> Run:
    mark = engine.steps.mark()
    with engine.paced(measured.BURST_STEP_S):
        got = asyncio.run(traffic.offer(url, mixed.known(sizes, tokens), whole=whole))
    steps = engine.steps.since(mark)
    return Run(got, steps, Summary.of(steps))


def run_unknown(engine: Engine, url: str, seed: int, count: int) -> Run:
    mark = engine.steps.mark()
    with engine.paced(measured.BURST_STEP_S):
        got = asyncio.run(mixed.ask(url, mixed.unknown(seed, count)))
    steps = engine.steps.since(mark)
    return Run(got, steps, Summary.of(steps))


@pytest.fixture(scope="module")
def bold(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A dozen requests fill this engine, so chance weighs heavily; it is told to leave more to it than by default."""
    options = ("--prompt-tokens", "backend", "--reservation", "forecast", "--queue-wait", "300s")
    with server.gateway(
        engine.url, tmp_path_factory.mktemp("bold"), *options, "--risk", "30%", "--queue-depth", "500"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def known_direct(engine: Engine, bursts: dict[str, Summary]) -> list[Run]:
    runs = [run_known(engine, engine.url, sizes, tokens=30 + sizes) for sizes in SIZES]
    bursts.update({f"mixed {sizes}": run.summary for sizes, run in zip(SIZES, runs, strict=True)})
    return runs


@pytest.fixture(scope="module")
def known_forecast(engine: Engine, forecasting: Gateway, bursts: dict[str, Summary]) -> list[Run]:
    runs = [run_known(engine, forecasting.url, sizes, tokens=40 + sizes) for sizes in SIZES]
    bursts.update({f"forecast {sizes}": run.summary for sizes, run in zip(SIZES, runs, strict=True)})
    return runs


@pytest.fixture(scope="module", params=[48, 24], ids=["none streams", "half stream"])
def known_whole(
    request: pytest.FixtureRequest, engine: Engine, forecasting: Gateway, bursts: dict[str, Summary]
) -> list[Run]:
    """Of what comes in one piece nothing is seen but the engine's counters, once a second."""
    whole, draws = request.param, SIZES[: len(SIZES) if LONG else 1]
    runs = [run_known(engine, forecasting.url, n, tokens=60 + whole + n, whole=whole) for n in draws]
    bursts.update({f"{whole} whole {n}": run.summary for n, run in zip(draws, runs, strict=True)})
    return runs


@pytest.fixture(scope="module")
def unknown_direct(engine: Engine, bursts: dict[str, Summary]) -> Run:
    run = run_unknown(engine, engine.url, 41, MEASURED)
    bursts["chats"] = run.summary
    return run


@pytest.fixture(scope="module")
def unknown_forecast(engine: Engine, bold: Gateway, bursts: dict[str, Summary]) -> Run:
    learned = run_unknown(engine, bold.url, 42, LEARNING)
    assert all(got.status == 200 and got.done for got in learned.got)
    run = run_unknown(engine, bold.url, 43, MEASURED)
    bursts["learned"] = run.summary
    return run


def test_known_lengths_direct_preempts(known_direct: list[Run]) -> None:
    for run in known_direct:
        assert all(got.complete for got in run.got)
        assert run.summary.preemptions > 10
        assert run.summary.gap_steps_max > 50


@pytest.mark.soak
def test_known_lengths_are_never_preempted(known_forecast: list[Run]) -> None:
    for run in known_forecast:
        assert all(got.complete for got in run.got)
        assert run.summary.preemptions == 0
        assert run.summary.gap_steps_max <= 3


@pytest.mark.soak
def test_known_lengths_fill_the_engine(known_direct: list[Run], known_forecast: list[Run]) -> None:
    """Reserved to their peaks, these requests take 1.4 times the steps of no limit at all, and use two thirds."""
    assert all(run.kv_use >= 0.80 for run in known_forecast)
    direct, forecast = (sum(run.summary.steps for run in runs) for runs in (known_direct, known_forecast))
    assert forecast <= KNOWN_STEPS_MAX * direct


@pytest.mark.soak
def test_known_lengths_in_one_piece_are_never_preempted(known_whole: list[Run]) -> None:
    for run in known_whole:
        assert all(got.complete for got in run.got)
        assert run.summary.preemptions == 0
        assert run.kv_use >= 0.70


@pytest.mark.soak
def test_unknown_lengths_are_hardly_preempted(unknown_forecast: Run) -> None:
    assert all(got.status == 200 and got.done for got in unknown_forecast.got)
    assert unknown_forecast.summary.preemptions <= 2 * MEASURED // 100


@pytest.mark.soak
def test_unknown_lengths_fill_the_engine(unknown_direct: Run, unknown_forecast: Run) -> None:
    assert unknown_forecast.kv_use >= 0.75
    assert unknown_forecast.steps_per_token <= UNKNOWN_STEPS_MAX * unknown_direct.steps_per_token
