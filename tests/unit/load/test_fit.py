"""The fit finds the terms that the times were made of, and leaves out what is not there."""

from __future__ import annotations

import random

import pytest

from kvgate.load.calibration_report import fit_json
from kvgate.load.fit import Fit, Observation, fit
from kvgate_policies.engine_model import StepProfile


def observations(profile: StepProfile, request_s: float, noise: float = 0.0) -> list[Observation]:
    source = random.Random(1)

    def times(seconds: float) -> float:
        return seconds * (1 + source.uniform(-noise, noise))

    found = [
        Observation(
            "d", b, b * kv, 0, times(profile.duration_s(decoding=b, kv_tokens=b * kv, prefill_tokens=0))
        )
        for b in (1, 2, 4, 8, 16)
        for kv in (30, 70, 900, 1000)
    ]
    for length in (200, 400, 600, 800, 1000):
        seconds = profile.duration_s(decoding=0, kv_tokens=length, prefill_tokens=length) + request_s
        found.append(Observation("p", 0, length, length, times(seconds), requests=1))
    return found


def known(made_of: tuple[float, ...]) -> StepProfile:
    step_s, decode_s, kv_s, prefill_s, _ = made_of
    return StepProfile("known", step_s, decode_s, kv_s, prefill_s)


def terms(found: Fit) -> tuple[float, ...]:
    return (
        found.step_s,
        found.decode_s_per_seq,
        found.kv_s_per_token,
        found.prefill_s_per_token,
        found.request_s,
    )


@pytest.mark.parametrize(
    "made_of",
    [(0.012, 0.0005, 2e-6, 5e-5, 0.004), (0.02, 0.0, 0.0, 1e-4, 0.0), (0.0, 0.001, 1e-6, 0.0, 0.002)],
)
def test_exact_times_give_the_exact_terms(made_of: tuple[float, ...]) -> None:
    found = fit(observations(known(made_of), made_of[4]))
    assert terms(found) == pytest.approx(made_of, rel=1e-6, abs=1e-12)
    assert found.off_max == pytest.approx(0, abs=1e-6)


def test_noise_of_two_percent_moves_the_large_terms_little_and_none_below_zero() -> None:
    made_of = (0.012, 0.0005, 2e-6, 5e-5, 0.004)
    found = fit(observations(known(made_of), made_of[4], noise=0.02))
    assert min(terms(found)) >= 0
    assert terms(found)[:4] == pytest.approx(made_of[:4], rel=0.1)
    assert 0 < found.off_median <= found.off_max < 0.05


def test_a_negative_slope_becomes_none_at_all() -> None:
    falling = [Observation("d", b, 10.0 * b, 0, 0.02 - 0.0005 * b) for b in (1, 2, 4, 8, 16)]
    found = fit(falling)
    assert (found.decode_s_per_seq, found.kv_s_per_token) == (0.0, 0.0)
    assert found.step_s == pytest.approx(0.017, abs=0.003)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([Observation("d", 1, 1, 0, 1.0)] * 4, "4 observations"),
        ([Observation("d", 1, 1, 0, 0.0)] * 5, "took no time"),
    ],
)
def test_too_little_to_fit(seen: list[Observation], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fit(seen)


def test_the_json_has_the_residuals() -> None:
    found = fit(observations(StepProfile("known", 0.01, 0.001, 0.0, 1e-4), 0.001))
    told = fit_json(found)
    assert (told["step_ms"], told["off_max"]) == (pytest.approx(10.0), 0.0)
    assert len(told["observations"]) == 25  # type: ignore[arg-type]
