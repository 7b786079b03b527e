"""Which KV groups does an engine have, by its model's description and by what the engine itself counts?

The description gives the groups: kinds, windows, how many. What it can't give the engine does: it exports

    full = num_gpu_blocks / kv_cache_max_concurrency = Σ over groups of its blocks for a sequence of max_model_len

(`kv_groups.full_window_blocks`). In that sum the tokens in flight are the only unknown where there are windows, and
the checkpoints of states where there are states. So both are found, not asked for; and a description for which no
value fits the sum is that of another model, or of another way to serve it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate_policies.capacity_layout import lay_out
from kvgate_policies.capacity_setup import Setup
from kvgate_policies.kv_groups import WINDOWED, KVGroup, full_window_blocks
from kvgate_policies.model_shape import Kind

if TYPE_CHECKING:
    from kvgate_policies.model_shape import ModelShape
    from kvgate_policies.types import EngineShape

CHECKPOINTS_MAX = 1
"""Blocks that vLLM 0.32 adds to a cached state, by its kernel: none or one."""


def described_groups(model: ModelShape, engine: EngineShape) -> tuple[KVGroup, ...]:
    """The groups into which vLLM puts the model's layers, those that are alike counted together.

    `engine` has the block size that the engine reports. Raises CapacityError or ModelShapeError for a model that vLLM
    would refuse.
    """
    layout = lay_out(
        Setup(
            model,
            memory=1,  # not asked for how many blocks there are
            max_model_len=engine.max_model_len,
            block_size=engine.block_size,
            draft_tokens=engine.speculative_tokens,
        )
    )
    # A state raises the block size by how it is split over GPUs; the engine knows that, and says the result.
    found = Counter(
        KVGroup(
            group.kind,
            (group.page.tokens or layout.block_size) * engine.block_size // layout.block_size,
            group.page.window or 0,
        )
        for group in layout.groups
    )
    return tuple(replace(group, count=count) for group, count in found.items())


def fitted(engine: EngineShape, full_blocks: float, tolerance: float) -> EngineShape | None:
    """The engine with what its own count of `full_blocks` says of tokens in flight and checkpoints.

    The most tokens in flight that fit, since fewer would be priced too low. None when nothing fits.
    """
    for checkpoints in range(CHECKPOINTS_MAX + 1):
        groups = tuple(
            replace(group, checkpoints=checkpoints) if group.kind is Kind.STATE else group
            for group in engine.groups
        )
        found = _with_most_in_flight(replace(engine, groups=groups), full_blocks + tolerance)
        if abs(full_sequence_blocks(found) - full_blocks) <= tolerance:
            return found
    return None


def full_sequence_blocks(engine: EngineShape) -> int:
    """What the engine counts for one sequence of its whole window."""
    return sum(group.count * full_window_blocks(group, engine) for group in engine.groups)


def in_words(engine: EngineShape) -> str:
    """The groups, for people: "1 full attention, 6 sliding window of 1024"."""
    return ", ".join(
        f"{group.count} {group.kind}" + (f" of {group.window:,}" if group.window else "")
        for group in engine.groups or (KVGroup(),)
    )


def _with_most_in_flight(engine: EngineShape, blocks_max: float) -> EngineShape:
    """By bisection, the sum being monotone; 0 where even that is too much. Beyond the window nothing changes."""
    low, high = 0, engine.max_model_len
    if not any(group.kind in WINDOWED for group in engine.groups):
        return engine
    while low < high:
        middle = (low + high + 1) // 2
        if full_sequence_blocks(replace(engine, in_flight_tokens=middle)) <= blocks_max:
            low = middle
        else:
            high = middle - 1
    return replace(engine, in_flight_tokens=low)
