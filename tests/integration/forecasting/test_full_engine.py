"""How full is a small engine by forecasts, and how many steps more does that cost? Many draws, in virtual time.

How the last requests of a draw happen to come together moves its steps by a twentieth either way. Real runs, of which
there are few, can only be held to a wider bound (`tests/vllm/test_forecast.py`); the mean of many is held to the real
one here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import pytest

from support.virtual_gate import CPU, SHAPE, Ran, Sizes, VirtualGate, direct

pytestmark = pytest.mark.timeout(180)

KNOWN = 48
LEARNING, UNKNOWN = 200, 300
BOLD = 0.3
"""The risk that `tests/vllm/test_forecast.py` takes, too: a dozen requests fill this engine."""

Runs = Sequence[tuple[Ran, Ran]]
"""Of each draw: without a limit, and by forecast."""


def known_sizes(rng: random.Random) -> Sizes:
    """As `tests/vllm/mixed.py` draws them."""
    return {f"{index}": (rng.randint(32, 512), rng.randint(32, 512)) for index in range(KNOWN)}


def unknown_sizes(rng: random.Random, count: int, name: str) -> Sizes:
    """Each token is the last one with a chance of ten in 1,024."""
    return {f"{name}{index}": (rng.randint(30, 320), _length(rng)) for index in range(count)}


def _length(rng: random.Random) -> int:
    length = 1
    while rng.random() > 10 / 1024 and length < SHAPE.max_model_len - 400:
        length += 1
    return length


def ratio(runs: Runs) -> float:
    return fmean(forecast.steps / unlimited.steps for unlimited, forecast in runs)


@pytest.fixture(scope="module")
def known() -> Runs:
    draws = [known_sizes(random.Random(seed)) for seed in range(1, 33)]
    return [(direct(sizes), VirtualGate(risk=0.01, known=True).run(sizes)) for sizes in draws]


@pytest.fixture(scope="module")
def unknown() -> Runs:
    runs: list[tuple[Ran, Ran]] = []
    for seed in range(1, 9):
        rng, gate = random.Random(seed), VirtualGate(risk=BOLD, known=False)
        gate.run(unknown_sizes(rng, LEARNING, "learn"))
        sizes = unknown_sizes(rng, UNKNOWN, "measure")
        runs.append((direct(sizes), gate.run(sizes)))
        assert gate.changes == [], "lengths of one kind were taken to have changed"
    return runs


def test_known_lengths_are_never_preempted(known: Runs):
    assert fmean(unlimited.preemptions for unlimited, _ in known) > KNOWN / 3
    assert sum(forecast.preemptions for _, forecast in known) == 0


def test_known_lengths_fill_the_engine(known: Runs):
    assert all(forecast.kv_use >= 0.80 for _, forecast in known)
    assert ratio(known) <= 1.08


@pytest.fixture(scope="module", params=[0.0, 0.5], ids=["none streams", "half stream"])
def unseen(request: pytest.FixtureRequest) -> Runs:
    """Known lengths, and of those that don't stream nothing to be seen but the engine's counters, once a second."""
    runs: list[tuple[Ran, Ran]] = []
    for seed in range(1, 33):
        rng = random.Random(seed)
        sizes = known_sizes(rng)
        streams = {name for name in sizes if rng.random() < request.param}
        gate = VirtualGate(risk=0.01, known=True, streams=streams.__contains__, profile=CPU)
        runs.append((direct(sizes), gate.run(sizes)))
    return runs


def test_known_lengths_in_one_piece_are_never_preempted(unseen: Runs):
    assert sum(forecast.preemptions for _, forecast in unseen) == 0


def test_known_lengths_in_one_piece_fill_the_engine(unseen: Runs):
    assert fmean(forecast.kv_use for _, forecast in unseen) >= 0.80
    assert ratio(unseen) <= 1.13


def test_unknown_lengths_are_hardly_preempted(unknown: Runs):
    assert fmean(unlimited.preemptions for unlimited, _ in unknown) > UNKNOWN / 10
    assert fmean(forecast.preemptions for _, forecast in unknown) <= 2 * UNKNOWN / 100


def test_unknown_lengths_fill_the_engine(unknown: Runs):
    assert all(forecast.kv_use >= 0.75 for _, forecast in unknown)
    assert ratio(unknown) <= 1.12
