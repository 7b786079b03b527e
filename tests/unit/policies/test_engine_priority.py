"""Who pays when forecasts are too low: by priority the forecast requests alone, first come first served anyone.

An engine is filled with guaranteed requests, whose peaks are reserved, and with forecast ones that hold three times
what is expected of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from kvgate_policies.engine_model import EngineModel, SchedulingPolicy, SimRequest

BLOCK_SIZE, BLOCKS = 16, 400
OPTIMISM = 3
"""A forecast request comes to hold that many times what is reserved for it."""
LONG = os.environ.get("KVGATE_SOAK") == "1"
GUARANTEED, FORECAST = 0, 1


@dataclass
class Pool:
    """One engine, and a ledger as simple as can be: sums of blocks, back at the end."""

    policy: SchedulingPolicy
    seed: int = 1
    reserved: dict[str, int] = field(default_factory=dict)
    preempted: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.engine = EngineModel(
            num_gpu_blocks=BLOCKS + 1,
            block_size=BLOCK_SIZE,
            max_model_len=1024,
            max_num_seqs=256,
            policy=self.policy,
        )
        self.sent = 0

    def run(self, guaranteed: int) -> None:
        """Until so many guaranteed requests have ended."""
        while self.ended["guaranteed"] < guaranteed:
            self.fill()
            result = self.engine.step()
            self.preempted.update(name.partition(" ")[0] for name in result.preempted)
            for name, _ in result.finished:
                self.ended[name.partition(" ")[0]] += 1
                del self.reserved[name]

    def fill(self) -> None:
        while True:
            kind, priority = self.random.choice([("guaranteed", GUARANTEED), ("forecast", FORECAST)])
            prompt, output = self.random.randint(16, 200), self.random.randint(16, 300)
            peak = -(-(prompt + output - 1) // BLOCK_SIZE)
            cost = peak if kind == "guaranteed" else -(-peak // OPTIMISM)
            if sum(self.reserved.values()) + cost > BLOCKS:
                return
            self.sent += 1
            name = f"{kind} {self.sent}"
            self.reserved[name] = cost
            assert self.engine.add(SimRequest(name, prompt, output, priority=priority))


@pytest.mark.timeout(900)
@pytest.mark.soak
def test_by_priority_no_guaranteed_request_is_ever_preempted() -> None:
    pool = Pool(SchedulingPolicy.PRIORITY)
    pool.run(10_000 if LONG else 200)
    assert pool.preempted["guaranteed"] == 0
    assert pool.preempted["forecast"] > pool.ended["forecast"] / 4, "forecasts were far too low"


def test_first_come_first_served_they_are() -> None:
    pool = Pool(SchedulingPolicy.FCFS)
    pool.run(200)
    assert pool.preempted["guaranteed"] > 10
