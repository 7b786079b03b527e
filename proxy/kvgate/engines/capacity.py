"""How much fits an engine, and where each number came from. Pure: scraped values in, a finding out.

    usable blocks = num_gpu_blocks − 1 − floor(watermark · num_gpu_blocks)

Block 0 is vLLM's null block and never holds KV. A value given by hand wins over a discovered one. Whatever is
missing is named together with the option that supplies it; nothing is guessed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvgate.engines.kv_groups import grouped
from kvgate_policies.types import EngineLimits, EngineShape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.config.settings import Settings
    from kvgate.engines.metrics import CacheConfig

_OPTIONS = {
    "num_gpu_blocks": "--num-gpu-blocks",
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
}
_PLACES = {
    "num_gpu_blocks": "vllm:cache_config_info in /metrics",
    "block_size": "vllm:cache_config_info in /metrics",
    "max_model_len": "/v1/models",
}


@dataclass(frozen=True, slots=True)
class Discovered:
    """The capacity of each engine of one backend. `shape` is None exactly when something is `missing`."""

    shape: EngineShape | None
    blocks: int
    """Usable KV blocks."""
    seqs: int
    prefill_tokens: int
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each value came from, by name: "16 from --block-size"."""
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """One sentence each: what is unknown and which option supplies it."""

    def limits(self, engine_id: str, *, accepting: bool, prefill_tokens: int | None = None) -> EngineLimits:
        """What the ledger is told. Raises ValueError while something is missing."""
        if self.shape is None:
            raise ValueError("; ".join(self.missing))
        prefill = self.prefill_tokens if prefill_tokens is None else prefill_tokens
        return EngineLimits(engine_id, self.shape, self.blocks, self.seqs, prefill, accepting=accepting)


def discover(cache: CacheConfig | None, max_model_len: int | None, settings: Settings) -> Discovered:
    """Settle what an engine holds.

    `cache` and `max_model_len` are what the backend says, None where it says nothing.
    """
    found = {
        "num_gpu_blocks": cache.num_gpu_blocks if cache else None,
        "block_size": cache.block_size if cache else None,
        "max_model_len": max_model_len,
    }
    by_hand = {name: getattr(settings, name) for name in _OPTIONS}
    values = {name: by_hand[name] or found[name] for name in _OPTIONS}
    missing = [_missing(name) for name, value in values.items() if value is None]
    blocks = _usable(values["num_gpu_blocks"] or 0, settings.watermark)
    if values["num_gpu_blocks"] is not None and blocks < 1:
        missing.append(
            f"no usable KV block: num_gpu_blocks is {values['num_gpu_blocks']}, one of them is the null block"
        )
    found_groups = grouped(_shape(values, cache, settings), cache, max_model_len, settings.kv_model)
    sources = {name: _source(name, value, by_hand[name]) for name, value in values.items() if value}
    if found_groups.source and not missing:
        sources["kv_groups"] = found_groups.source
    return Discovered(
        shape=None if missing else found_groups.shape,
        blocks=max(blocks, 0),
        seqs=settings.max_num_seqs,
        prefill_tokens=settings.prefill_tokens_max,
        sources=sources | {"max_num_seqs": _seqs_source(settings)},
        warnings=found_groups.warnings,
        missing=tuple(missing),
    )


def _usable(num_gpu_blocks: int, watermark: float) -> int:
    return num_gpu_blocks - 1 - math.floor(watermark * num_gpu_blocks)


def _missing(name: str) -> str:
    return f"{name} is unknown: not found in {_PLACES[name]}; set {_OPTIONS[name]}"


def _source(name: str, value: int, by_hand: int | None) -> str:
    return f"{value} from {_OPTIONS[name] if by_hand else _PLACES[name]}"


def _seqs_source(settings: Settings) -> str:
    """Of the one number that no engine tells."""
    if settings.max_num_seqs == type(settings).model_fields["max_num_seqs"].default:
        return f"{settings.max_num_seqs}, the default: compare it with the engine's"
    return f"{settings.max_num_seqs} from --max-num-seqs or max_num_seqs"


def _shape(values: Mapping[str, int | None], cache: CacheConfig | None, settings: Settings) -> EngineShape:
    """Without its groups. Sizes that are missing are 1: such a shape is not used."""
    return EngineShape(
        block_size=values["block_size"] or 1,
        max_model_len=values["max_model_len"] or 1,
        prefix_caching=bool(cache and cache.enable_prefix_caching),
        speculative_tokens=settings.speculative_tokens,
    )
