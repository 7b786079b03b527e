"""The engine that leaps is the engine model: the same times, preemptions and blocks on the same work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvgate.replay.engine import LeapingEngine
from kvgate.replay.engine_base import NEVER_S, EngineSizes, Sequence
from kvgate.replay.exact import SteppingEngine
from kvgate_policies.engine_model import StepProfile
from unit.replay.drive import drive, random_case

SIZES = EngineSizes(101, 16, 1000, 64, 512, StepProfile("x", 0.01, 0.001, 1e-6, 1e-4))
CASES = 60


def test_random_work_ends_at_the_same_times_and_is_preempted_alike():
    preempted = aborted = roomy = 0
    for seed in range(CASES):
        sizes, jobs, aborts = random_case(seed)
        leaping, stepping = (
            drive(engine, jobs, aborts) for engine in (LeapingEngine(sizes), SteppingEngine(sizes))
        )
        assert leaping.ended_s == pytest.approx(stepping.ended_s, abs=1e-6), seed
        assert leaping.first_s == pytest.approx(stepping.first_s, abs=1e-6), seed
        assert leaping.preempted == stepping.preempted, seed
        assert leaping.generated == stepping.generated, seed
        assert leaping.held_block_s == pytest.approx(stepping.held_block_s, rel=0.15), seed
        preempted += sum(leaping.preempted) > 0
        roomy += not sum(leaping.preempted)
        aborted += any(number not in leaping.ended_s for number in aborts)
    assert min(preempted, roomy, aborted) > CASES / 10, "every kind of case has to occur"


def test_most_steps_are_leapt_over():
    jobs = [(number / 5, 100, 400) for number in range(60)]
    roomy = replace(SIZES, num_gpu_blocks=4001)
    leaping, stepping = drive(LeapingEngine(roomy), jobs, {}), drive(SteppingEngine(roomy), jobs, {})
    assert leaping.ended_s == pytest.approx(stepping.ended_s)
    assert leaping.settled * 3 < stepping.settled
    assert leaping.settled <= 4 * len(jobs), "it wakes for comings and goings, not for steps"


def test_one_that_comes_in_a_leap_joins_after_the_step_in_progress():
    plain = replace(SIZES, profile=StepProfile("x", 0.01))
    engine = LeapingEngine(plain)
    engine.add(Sequence(0, 10, 100), 0.0)
    assert engine.due_s == pytest.approx(0.01), "the prompt"
    engine.settle()
    assert engine.due_s == pytest.approx(1.0), "and all the rest of it in one"
    late = Sequence(1, 10, 1)
    engine.add(late, 0.123)
    assert engine.due_s == pytest.approx(0.13)
    engine.settle()
    assert engine.due_s == pytest.approx(0.14)
    assert engine.settle().finished == [late]


def test_one_behind_a_head_that_does_not_fit_changes_nothing():
    engine = LeapingEngine(SIZES)
    for number in range(2):
        engine.add(Sequence(number, 700, 100), 0.0)
    engine.settle()
    engine.settle()
    engine.add(Sequence(2, 700, 100), 0.2)
    engine.settle()
    due_s = engine.due_s
    engine.add(Sequence(3, 1, 1), 0.21)
    assert engine.due_s == due_s


def test_an_idle_engine_has_nothing_due_and_begins_at_once():
    engine = LeapingEngine(SIZES)
    assert engine.due_s == NEVER_S
    engine.add(Sequence(0, 1, 1), 7.0)
    assert 7.0 < engine.due_s < 7.1
    assert [one.generated for one in engine.settle().finished] == [1]
    assert engine.due_s == NEVER_S


@pytest.mark.parametrize("make", [LeapingEngine, SteppingEngine])
def test_an_aborted_one_says_how_far_it_came(make: type[LeapingEngine | SteppingEngine]):
    engine = make(replace(SIZES, profile=StepProfile("x", 0.01)))
    gone, other = Sequence(0, 10, 500), Sequence(1, 10, 3)
    engine.add(gone, 0.0)
    while engine.due_s < 0.2:
        engine.settle()
    engine.abort(gone, 0.2)
    engine.settle()
    assert gone.generated == 20
    engine.add(other, 5.0)
    while engine.due_s < NEVER_S:
        engine.settle()
    assert (other.generated, engine.preemptions) == (3, 0)


def test_more_sequences_than_tokens_in_a_step_are_refused():
    with pytest.raises(ValueError, match="take the engine model itself"):
        LeapingEngine(replace(SIZES, max_num_batched_tokens=64))


def advance(
    engine: LeapingEngine | SteppingEngine, jobs: list[tuple[float, Sequence]], until_s: float
) -> None:
    while True:
        if jobs and jobs[0][0] <= min(engine.due_s, until_s):
            at_s, sequence = jobs.pop(0)
            engine.add(sequence, at_s)
        elif engine.due_s <= until_s:
            engine.settle()
        else:
            return


def test_tokens_are_counted_at_any_time():
    for seed in range(12):
        sizes, jobs, _ = random_case(seed)
        both = [
            (engine, [(at_s, Sequence(0, prompt, target)) for at_s, prompt, target in jobs])
            for engine in (LeapingEngine(sizes), SteppingEngine(sizes))
        ]
        sequences = [[sequence for _, sequence in todo] for _, todo in both]
        for tick in range(1, 60):
            now_s = tick * 0.037123456  # at which no step ends
            seen: list[list[int]] = []
            for (engine, todo), mine in zip(both, sequences, strict=True):
                advance(engine, todo, now_s)
                seen.append([engine.generated(sequence, now_s) for sequence in mine[: len(jobs) - len(todo)]])
            assert seen[0] == seen[1], (seed, now_s)
