"""The engine model behaves like the engine: same requests, same blocks, about the same preemptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vllm.simulated import simulate

if TYPE_CHECKING:
    from vllm.measured import Accounted, Burst
    from vllm.steps import Summary

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

PREEMPTIONS_BAND = 0.3
"""When exactly 48 requests arrive at the engine is chance; the model has them all before its first step."""
STEPS_BAND = 0.05


def test_each_request_takes_the_same_blocks(accounted: list[Accounted]) -> None:
    simulated = [max(step.kv for step in simulate([one.call])) for one in accounted]
    assert simulated == [one.kv_max for one in accounted]


def test_a_burst_preempts_about_as_often(burst_direct: Burst, burst_simulated: Summary) -> None:
    assert burst_direct.summary.preemptions > 0
    assert burst_simulated.preemptions == pytest.approx(
        burst_direct.summary.preemptions, rel=PREEMPTIONS_BAND
    )


def test_a_burst_takes_about_as_many_steps(burst_direct: Burst, burst_simulated: Summary) -> None:
    assert burst_simulated.steps == pytest.approx(burst_direct.summary.steps, rel=STEPS_BAND)
    assert burst_simulated.kv_max == burst_direct.summary.kv_max


def test_a_burst_freezes_streams_as_long(burst_direct: Burst, burst_simulated: Summary) -> None:
    assert burst_simulated.gap_steps_max == pytest.approx(
        burst_direct.summary.gap_steps_max, rel=PREEMPTIONS_BAND
    )
