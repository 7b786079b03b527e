"""Which KV groups an engine has: what it counts itself, beside what the policy says of its model. Pure.

vLLM exports no groups. What it exports is how many sequences of the whole window fit its blocks; so

    full = num_gpu_blocks / kv_cache_max_concurrency

are the blocks of one of them. If that is `ceil(max_model_len / block_size)`, there is one group of full attention,
whatever a description says: its layers are charged alike, as when the hybrid cache manager is off. Otherwise the
description gives the groups, if they come to the same sum; else every sequence is charged `full`, and a warning says
what to set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvgate_policies.capacity_dtypes import CapacityError
from kvgate_policies.kv_cost_groups import described_groups, fitted, full_sequence_blocks, in_words
from kvgate_policies.kv_groups import EVERY_TOKEN, WINDOWED
from kvgate_policies.model_shape import Kind, ModelShape, ModelShapeError

if TYPE_CHECKING:
    from kvgate.engines.metrics import CacheConfig
    from kvgate_policies.types import EngineShape

SET_IT = (
    "model_config in the pool's section of the policy file, or --model-config, to the model's config.json"
)
_OPAQUE = (
    "a full sequence takes {needed} KV blocks where one full-attention group would take {plain}: the model "
    "keeps its KV in several groups (sliding window, Mamba, context parallel). {why}. Until then every sequence is "
    "charged {needed} blocks, so far fewer run at once than could"
)
_UNCHECKED = (
    "the backend does not export kv_cache_max_concurrency: taken for a model with one full-attention KV "
    "group; a sliding-window or Mamba model would be priced wrong: set " + SET_IT
)
_UNCONFIRMED = (
    "the backend does not export kv_cache_max_concurrency: model_config can't be compared with it, and while a "
    "prompt is read its windows are charged for all of it"
)
_EVERY_STATE = "all"
"""vLLM's --mamba-cache-mode that keeps a state for each block of tokens."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """The finding."""

    shape: EngineShape
    source: str = ""
    """What the groups are and who says so; empty for one group that nobody described."""
    warnings: tuple[str, ...] = ()


def grouped(
    shape: EngineShape, cache: CacheConfig | None, max_model_len: int | None, model: ModelShape | None
) -> Grouped:
    """`shape` with its KV groups; `max_model_len` is what the backend says, which a setting may differ from."""
    full = _full_blocks(cache)
    if cache is None or cache.block_size is None or max_model_len is None or full is None:
        known = cache is not None and cache.num_gpu_blocks is not None and max_model_len is not None
        return _unconfirmed(shape, model, warn=known)
    plain = math.ceil(max_model_len / cache.block_size)
    tolerance = 0.5 + full * cache.concurrency_error / (cache.kv_cache_max_concurrency or 1)
    if abs(full - plain) <= tolerance:
        return _plain(shape, model)
    found = "Set " + SET_IT
    if model is not None:
        engine = replace(shape, max_model_len=max_model_len)
        described = _described(engine, cache, model, full, tolerance)
        if not isinstance(described, str):
            settled = replace(described, max_model_len=shape.max_model_len)
            return Grouped(settled, f"{_words(described)}, from model_config; the engine counts the same")
        found = described
    needed = math.ceil(full - 1e-6)
    warning = _OPAQUE.format(needed=needed, plain=plain, why=found)
    return Grouped(replace(shape, blocks_opaque=needed), warnings=(warning,))


def _full_blocks(cache: CacheConfig | None) -> float | None:
    """Of a sequence of the whole window, by the engine's own count."""
    if cache is None or cache.num_gpu_blocks is None or cache.kv_cache_max_concurrency is None:
        return None
    return cache.num_gpu_blocks / cache.kv_cache_max_concurrency


def _plain(shape: EngineShape, model: ModelShape | None) -> Grouped:
    """Of a model with several groups the engine then has its hybrid cache manager off, or serves another one."""
    if model is None:
        return Grouped(shape)
    source = "one group that keeps every token, by the engine's own count"
    try:
        described = replace(shape, groups=described_groups(model, shape))
    except (CapacityError, ModelShapeError):
        return Grouped(shape, source)
    if len(described.groups) > 1:
        source += f"; model_config, which describes {in_words(described)}, is not used"
    return Grouped(shape, source)


def _described(
    engine: EngineShape, cache: CacheConfig, model: ModelShape, full: float, tolerance: float
) -> EngineShape | str:
    """The engine with its groups, or why the description is not used."""
    every_state = cache.mamba_cache_mode == _EVERY_STATE
    try:
        groups = described_groups(model, engine)
    except (CapacityError, ModelShapeError) as error:
        return f"model_config can't be used: {error}"
    counted = replace(engine, groups=groups, prefix_caching=engine.prefix_caching and not every_state)
    found = fitted(counted, full, tolerance)
    if found is None:
        said = full_sequence_blocks(replace(counted, in_flight_tokens=0))
        return (
            f"model_config describes {in_words(counted)}, which would take {said} or more, and not {full:.6g}: set it "
            "to the config.json of the model that is served"
        )
    return replace(_states_kept(found) if every_state else found, prefix_caching=engine.prefix_caching)


def _states_kept(engine: EngineShape) -> EngineShape:
    """A state for each block of tokens grows as attention does."""
    return replace(
        engine,
        groups=tuple(
            replace(group, kind=Kind.FULL) if group.kind is Kind.STATE else group for group in engine.groups
        ),
    )


def _unconfirmed(shape: EngineShape, model: ModelShape | None, *, warn: bool) -> Grouped:
    """By the description alone: any number of tokens may be in flight."""
    if model is None:
        return Grouped(shape, warnings=(_UNCHECKED,) if warn else ())
    try:
        groups = described_groups(model, shape)
    except (CapacityError, ModelShapeError) as error:
        return Grouped(shape, warnings=(f"model_config can't be used: {error}",))
    if len(groups) == 1 and groups[0].kind in EVERY_TOKEN and groups[0].count == 1:
        return Grouped(shape, f"{in_words(replace(shape, groups=groups))}, from model_config")
    found = replace(shape, groups=groups, in_flight_tokens=shape.max_model_len)
    return Grouped(found, f"{in_words(found)}, from model_config alone", (_UNCONFIRMED,))


def _words(engine: EngineShape) -> str:
    windowed = any(group.kind in WINDOWED for group in engine.groups)
    return in_words(engine) + (f", {engine.in_flight_tokens:,} tokens in flight" if windowed else "")
