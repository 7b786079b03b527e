"""What the benches of the ledgers put on them: the engine, and three loads of requests."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvgate_policies.forecast_occupancy import blocks_of_request, forecast_occupancy
from kvgate_policies.forecast_survival import prior
from kvgate_policies.types import EngineLimits, EngineShape, KVCost

SHAPE = EngineShape(block_size=16, max_model_len=32768)
CAPACITY = EngineLimits("?", SHAPE, blocks=10_000, seqs=256, prefill_tokens=1_000_000)
Costs = Callable[[], KVCost]


def equal_sizes() -> Costs:
    return lambda: KVCost(CAPACITY.blocks // 50, 1, 500)


def mixed_sizes() -> Costs:
    rng = random.Random(7)
    return lambda: KVCost(int(CAPACITY.blocks * min(0.6, rng.lognormvariate(-3.5, 1.0))), 1, 500)


def forecasts() -> Costs:
    rng = random.Random(7)

    def cost() -> KVCost:
        tokens = int(SHAPE.max_model_len * min(0.6, rng.lognormvariate(-3.5, 1.0)))
        blocks = blocks_of_request(SHAPE, tokens, 1)
        expected = forecast_occupancy(prior(), blocks, generated=0, limit=4096)
        return KVCost(blocks(4096), 1, 500, expected)

    drawn = [cost() for _ in range(512)]
    return lambda: rng.choice(drawn)


LOADS = {"equal sizes": equal_sizes, "mixed sizes": mixed_sizes, "forecasts": forecasts}
