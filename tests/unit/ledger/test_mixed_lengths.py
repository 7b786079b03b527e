"""Known lengths fill an engine without one preemption: ledger and engine model, step by step.

48 requests with prompts and outputs of 32 to 512 tokens are offered at once to an engine of 120 blocks of 32 tokens. All
that differs is what is reserved: nothing, the peak to the end, or the future as far as it is known.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import pytest

from kvgate.ledger.base import Ask, Grant
from kvgate.ledger.core import LedgerCore
from kvgate_policies.engine_model import EngineModel, SimRequest
from kvgate_policies.forecast_occupancy import blocks_of_request, forecast_occupancy
from kvgate_policies.forecast_survival import never_ends
from kvgate_policies.types import EngineLimits, EngineShape, KVCost

SHAPE = EngineShape(block_size=32, max_model_len=2048, prefix_caching=True)
BLOCKS = 120
SEEDS = range(1, 17)
"""Steps of one seed are worth little: how the last requests happen to come together is a twentieth of them."""
REFRESHED_EVERY = 3
"""Steps of 20 ms between two looks while requests wait."""
LAG_TOKENS = 6
"""What a vector covers then (`kvgate.forecasting.pace`)."""


@dataclass(frozen=True)
class Run:
    steps: int
    preemptions: int
    kv_use: float


class Drive:
    """The requests of one seed; `peaks` reserves them, otherwise it is the future."""

    def __init__(self, seed: int, *, peaks: bool) -> None:
        rng = random.Random(seed)
        self.sizes = {f"r{i}": (rng.randint(32, 512), rng.randint(32, 512)) for i in range(48)}
        self.peaks = peaks
        self.engine = EngineModel(
            num_gpu_blocks=BLOCKS + 1, block_size=SHAPE.block_size, max_model_len=2048, max_num_seqs=256
        )
        self.generated: dict[str, int] = {}

    def cost(self, request_id: str, generated: int) -> KVCost:
        prompt, output = self.sizes[request_id]
        blocks = blocks_of_request(SHAPE, prompt, 1)
        if self.peaks:
            return KVCost(blocks(output), 1, 0)
        known = forecast_occupancy(
            never_ends(), blocks, generated=generated, limit=output, lag_tokens=LAG_TOKENS
        )
        return KVCost(blocks(output), 1, 0, known)

    def send(self, request_id: str) -> None:
        self.engine.add(SimRequest(request_id, *self.sizes[request_id]))
        self.generated[request_id] = 0

    def through_a_ledger(self) -> Run:
        core = LedgerCore(bypass_max=8, scan_depth=4, grants_max=1000, tie=0)
        core.observe(EngineLimits("e", SHAPE, BLOCKS, 256, 8192))
        for request_id in self.sizes:
            core.reserve(Ask(request_id, "t", {SHAPE: self.cost(request_id, 0)}, 1000), 0.0)
        return self._run(core)

    def direct(self) -> Run:
        for request_id in self.sizes:
            self.send(request_id)
        return self._run(None)

    def _run(self, core: LedgerCore | None) -> Run:
        used: list[int] = []
        preemptions, left = 0, len(self.sizes)
        while left:
            if core is not None:
                for request_id, decision in core.take_decisions():
                    assert isinstance(decision, Grant)
                    self.send(request_id)
            step = self.engine.step()
            used.append(step.kv_used)
            preemptions += len(step.preempted)
            for request_id in step.tokens:
                self.generated[request_id] += 1
            for request_id, _ in step.finished:
                left -= 1
                del self.generated[request_id]
                if core is not None:
                    core.end(request_id)
            if core is not None and len(used) % REFRESHED_EVERY == 0:
                core.renew_many({each: self.cost(each, done) for each, done in self.generated.items()})
        return Run(len(used), preemptions, sum(used) / len(used) / BLOCKS)


@cache
def runs(kind: str) -> list[Run]:
    return [
        Drive(seed, peaks=False).direct()
        if kind == "direct"
        else Drive(seed, peaks=kind == "peaks").through_a_ledger()
        for seed in SEEDS
    ]


def mean_use(kind: str) -> float:
    return sum(run.kv_use for run in runs(kind)) / len(SEEDS)


def steps_to_direct(kind: str) -> float:
    pairs = zip(runs(kind), runs("direct"), strict=True)
    return sum(run.steps / direct.steps for run, direct in pairs) / len(SEEDS)


def test_without_a_ledger_the_engine_preempts():
    assert all(run.preemptions > 15 for run in runs("direct"))


@pytest.mark.parametrize("kind", ["peaks", "future"])
def test_with_one_it_never_does(kind: str):
    assert [run.preemptions for run in runs(kind)] == [0] * len(SEEDS)


def test_the_known_future_fills_the_engine_and_peaks_leave_a_third_of_it_idle():
    assert mean_use("peaks") < 0.68
    assert mean_use("future") > 0.79


def test_it_takes_hardly_more_steps_than_no_limit_at_all():
    assert steps_to_direct("peaks") > 1.25
    assert steps_to_direct("future") < 1.09
