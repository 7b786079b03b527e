"""Drives an engine alone: jobs that arrive, some that are aborted, and when each began and ended."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kvgate.replay.engine_base import NEVER_S, Engine, EngineSizes, Sequence
from kvgate_policies.engine_model import StepProfile

Job = tuple[float, int, int]
"""Arrival, prompt, target."""


@dataclass
class Story:
    first_s: dict[int, float] = field(default_factory=dict)
    ended_s: dict[int, float] = field(default_factory=dict)
    generated: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    held_block_s: float = 0.0
    settled: int = 0


def drive(engine: Engine, jobs: list[Job], aborts: dict[int, float]) -> Story:
    story = Story()
    sequences = [Sequence(number, prompt, target) for number, (_, prompt, target) in enumerate(jobs)]
    events = [(at_s, False, number) for number, (at_s, _, _) in enumerate(jobs)]
    events += [(at_s, True, number) for number, at_s in aborts.items()]
    events.sort(reverse=True)
    while events or engine.due_s < NEVER_S:
        if events and events[-1][0] <= engine.due_s:
            at_s, is_abort, number = events.pop()
            act: Callable[[Sequence, float], None] = engine.abort if is_abort else engine.add
            act(sequences[number], at_s)
            continue
        now_s = engine.due_s
        settled = engine.settle()
        story.settled += 1
        for sequence in settled.started:
            story.first_s.setdefault(int(str(sequence.key)), now_s)
        for sequence in settled.finished:
            story.ended_s[int(str(sequence.key))] = now_s
    story.generated = [sequence.generated for sequence in sequences]
    story.preempted = [sequence.preempted for sequence in sequences]
    story.held_block_s = engine.held_block_s(NEVER_S)
    return story


def random_case(seed: int) -> tuple[EngineSizes, list[Job], dict[int, float]]:
    """An engine that may be too small or roomy, and jobs that come one by one or in crowds."""
    rng = random.Random(seed)
    block_size, window = rng.choice([1, 4, 16, 32]), rng.choice([64, 300, 1000])
    least = -(-window // block_size)
    profile = StepProfile(
        "x",
        rng.choice([0.01, 0.002]),
        rng.choice([0, 3e-4]),
        rng.choice([0, 1e-6, 1e-4]),
        rng.choice([0, 1e-4]),
    )
    sizes = EngineSizes(
        least + 1 + rng.randint(0, 4 * least), block_size, window, rng.choice([2, 8, 60]), rng.choice([64, 100, 512]),
        profile, watermark=rng.choice([0, 0, 0.1]),
    )  # fmt: skip
    now_s, jobs = 0.0, []
    for _ in range(rng.randint(1, 80)):
        now_s += rng.expovariate(rng.choice([2, 20, 200]))
        prompt = rng.randint(1, window // 2)
        jobs.append((now_s, prompt, max(1, min(int(rng.lognormvariate(3.5, 1)), window - prompt))))
    aborts = {number: job[0] + rng.expovariate(1) for number, job in enumerate(jobs) if rng.random() < 0.1}
    return sizes, jobs, aborts
