from __future__ import annotations

import pytest

from kvgate.demo import run
from kvgate.demo.plan import SECONDS_MAX, SECONDS_MIN, DemoPlan, plan_for
from kvgate.errors import ConfigError
from kvgate.sim.profiles import find_profile
from kvgate_policies.engine_model import EngineModel
from kvgate_policies.engine_model_types import SimRequest


def test_an_engine_holds_exactly_twelve_and_four_times_that_is_offered():
    plan = plan_for(60)
    assert (plan.blocks_per_session, plan.fits_per_engine, plan.offered) == (10, 12, 96)
    assert plan.fits_per_engine * plan.blocks_per_session == plan.blocks - 1


def test_while_some_end_a_few_more_have_room_and_far_fewer_than_without_kvgate():
    plan = plan_for(60)
    # Twelve that have begun hold 6 blocks each, and beside them there are 48 for others of ten.
    assert plan.fits_per_engine < plan.most_per_engine == 12 + 4
    assert plan.most_per_engine < plan.offered // plan.engines


def _phase_by_the_model(plan: DemoPlan, at_once: int) -> tuple[float, int, int]:
    """Seconds, steps and preemptions of one engine's share, with at most `at_once` in flight."""
    engine = EngineModel(
        num_gpu_blocks=plan.blocks,
        block_size=plan.block_size,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        profile=find_profile(plan.profile),
    )
    todo = [
        SimRequest(str(n), plan.prompt_tokens, plan.output_tokens)
        for n in range(plan.offered // plan.engines)
    ]
    flying, seconds, steps, preemptions = 0, 0.0, 0, 0
    while todo or flying:
        while todo and flying < at_once:
            engine.add(todo.pop())
            flying += 1
        step = engine.step()
        flying -= len(step.finished)
        seconds, steps, preemptions = seconds + step.step_s, steps + 1, preemptions + len(step.preempted)
    return seconds, steps, preemptions


@pytest.mark.parametrize("seconds", [SECONDS_MIN, 60, 300])
def test_both_phases_fit_into_the_time_by_the_scheduler_model(seconds):
    plan = plan_for(seconds)
    direct_s, _, preempted = _phase_by_the_model(plan, at_once=48)
    gated_s, _, gated_preempted = _phase_by_the_model(plan, at_once=12)
    assert preempted > 0
    assert gated_preempted == 0
    assert seconds / 3 < direct_s + gated_s < seconds


def test_the_length_changes_only_the_speed():
    short, long = (_phase_by_the_model(plan_for(seconds), at_once=48) for seconds in (SECONDS_MIN, 120))
    assert short[1:] == long[1:]
    assert long[0] > short[0]


@pytest.mark.parametrize("seconds", [SECONDS_MIN - 1, SECONDS_MAX + 1, 0, -60])
def test_other_lengths_are_refused(seconds):
    with pytest.raises(ValueError, match="15 to 3600"):
        plan_for(seconds)


@pytest.mark.parametrize("seconds", [3, 4000])
def test_the_demo_says_so_and_starts_nothing(seconds, capsys):
    assert run(seconds=seconds) == 2
    assert "15 to 3600" in capsys.readouterr().err


def test_a_slower_profile_is_the_same_profile_in_every_term():
    plain, slowed = find_profile("vllm-cpu-tiny"), find_profile("vllm-cpu-tiny:2.5")
    sizes = {"decoding": 12, "kv_tokens": 3000, "prefill_tokens": 192}
    assert slowed.duration_s(**sizes) == pytest.approx(2.5 * plain.duration_s(**sizes))


@pytest.mark.parametrize("profile", ["fast:x", "fast:0", "fast:-1", "fast:nan", "fast:inf", "none:2"])
def test_a_factor_that_makes_no_sense_is_refused(profile):
    with pytest.raises(ConfigError):
        find_profile(profile)
