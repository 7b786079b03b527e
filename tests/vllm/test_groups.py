"""Models with several KV groups: the price against the blocks that vLLM's own KV cache manager holds, step by step."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from kvgate_policies.kv_cost import blocks_decoding, price
from kvgate_policies.kv_groups import KVGroup
from kvgate_policies.model_shape import Kind
from kvgate_policies.types import EngineShape
from vllm.test_plan import inside

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

MODELS = {
    "gpt-oss-20b": (KVGroup(), KVGroup(Kind.SLIDING, window=128)),
    "Gemma-3-27B": (KVGroup(), KVGroup(Kind.SLIDING, window=1024, count=6)),
    "two windows": (KVGroup(Kind.SLIDING, window=100), KVGroup(Kind.SLIDING, window=1000)),
    "chunks": (KVGroup(Kind.CHUNKED, window=512),),
    "Qwen3-Next": (KVGroup(block_size=544), KVGroup(Kind.STATE, 544, count=3)),
}
WINDOW = 12_000
RANDOM_CASES = 80


def case_of(
    groups: tuple[KVGroup, ...], chunks: list[int], output: int, batch: int, in_flight: int
) -> dict[str, Any]:
    each = [group for group in groups for _ in range(group.count)]
    return {
        "groups": [{"kind": g.kind, "block_size": g.block_size, "window": g.window} for g in each],
        "max_model_len": WINDOW,
        "in_flight_tokens": (in_flight + 1) * batch,
        "chunks": chunks,
        "output": output,
        "in_flight": in_flight,
    }


def chunked(rng: Random, prompt: int, batch: int) -> list[int]:
    """Whole batches half of the time; else whatever others leave of them."""
    alone, left, chunks = rng.random() < 0.5, prompt, list[int]()
    while left:
        chunks.append(min(left, batch if alone else rng.randint(1, batch)))
        left -= chunks[-1]
    return chunks


def test_the_price_is_never_below_what_is_wanted_and_held_and_seldom_above() -> None:
    rng = Random(11)
    asked: list[tuple[EngineShape, dict[str, Any]]] = []
    for number in range(RANDOM_CASES):
        groups = list(MODELS.values())[number % len(MODELS)]
        batch, in_flight = rng.choice([64, 512, 2048, 8192]), rng.choice([0, 1])
        case = case_of(
            groups, chunked(rng, rng.randint(1, 10_000), batch), rng.randint(1, 900), batch, in_flight
        )
        size = groups[0].block_size
        shape = EngineShape(size, WINDOW, True, groups=groups, in_flight_tokens=case["in_flight_tokens"])
        asked.append((shape, case))
    held = json.loads(inside("kvheld.py", given=[case for _, case in asked]))
    for (shape, case), found in zip(asked, held, strict=True):
        prompt, output = sum(case["chunks"]), case["output"]
        reserved, left = price(shape, [prompt], output, 1).blocks, blocks_decoding(shape, [prompt], output, 1)
        most = max(found["wanted"], found["reading"], found["decoding"])
        assert reserved - most >= 0, (case, found)
        assert left - found["decoding"] >= 0, (case, found)
        # Above it by a block or two of each group: a window that begins within a block, a state's copy.
        assert reserved - most <= 2 * len(case["groups"]), (case, found)
