"""What one scrape of vLLM's `/metrics` says: the gauges of each engine and the shape of its KV cache.

Only the lines of wanted names reach the parser: a scrape has a thousand lines and ten of them matter. Names
that are missing leave None behind, never a zero: the caller decides what a missing number means. A number that
can't be true (not finite, below zero, a share above 1) is as good as missing, and is named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.samples import Sample

CACHE_CONFIG = "vllm:cache_config_info"
PROCESS_START = "process_start_time_seconds"

_FIELDS: Mapping[str, str] = {
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:gpu_cache_usage_perc": "kv_usage",  # before 0.10
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:iteration_tokens_total_count": "steps",
}
USAGE_MAX = 1 + 1e-6
"""A share, with room for the error of a division; more is a percentage, or another rule for what is whole."""
_WANTED = (*_FIELDS, CACHE_CONFIG, PROCESS_START)
_STARTS = tuple(name + end for name in _WANTED for end in ("{", " "))


@dataclass(frozen=True, slots=True)
class Gauges:
    """One engine at one scrape; None is a number that was not there."""

    kv_usage: float | None = None
    """Share of the usable blocks that live requests hold, 0 to 1 in spite of the metric's name."""
    running: float | None = None
    waiting: float | None = None
    preemptions: float | None = None
    """Counter since the engine's start, as the next three."""
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    """Counted when the whole prompt is computed."""
    steps: float | None = None
    """Steps that ended in tokens."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """`vllm:cache_config_info` of one backend; a label that is absent or "None" is None."""

    ranks: tuple[str, ...]
    """Data-parallel engines behind the URL: the `engine` labels, in order."""
    num_gpu_blocks: int | None = None
    """Of one engine, the null block included. (vLLM prints the sum over all engines on every one of them.)"""
    block_size: int | None = None
    kv_cache_max_concurrency: float | None = None
    """How many sequences of the full window one engine's blocks hold."""
    concurrency_error: float = 0.0
    """How far the printed concurrency may be off: half of its last digit where it was rounded to two."""
    enable_prefix_caching: bool | None = None
    mamba_cache_mode: str | None = None
    """How recurrent states are cached: none, align or all."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """A scrape. `gauges` is keyed by the `engine` label, in the order of the ranks."""

    gauges: Mapping[str, Gauges] = field(default_factory=dict)
    cache: CacheConfig | None = None
    process_start_time_s: float | None = None
    """Unix time. Absent when several API server processes share the metrics."""
    untrue: tuple[str, ...] = ()
    """Names whose numbers can't be true."""


def read_metrics(text: str) -> Metrics:
    """Read the Prometheus text of a vLLM server. Raises ValueError when a wanted line can't be parsed."""
    read = list(_samples(text))
    samples = [sample for sample in read if _can_be_true(sample)]
    untrue = tuple(sorted({sample.name for sample in read if not _can_be_true(sample)}))
    configs = {_engine(sample): sample.labels for sample in samples if sample.name == CACHE_CONFIG}
    starts_s = [sample.value for sample in samples if sample.name == PROCESS_START]
    cache = _cache_config(configs) if configs else None
    return Metrics(_gauges(samples), cache, starts_s[0] if starts_s else None, untrue)


def _can_be_true(sample: Sample) -> bool:
    largest = USAGE_MAX if _FIELDS.get(sample.name) == "kv_usage" else math.inf
    return math.isfinite(sample.value) and 0 <= sample.value <= largest


def _samples(text: str) -> Iterator[Sample]:
    lines = [line for line in text.splitlines() if line.startswith(_STARTS)]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        yield from family.samples


def _engine(sample: Sample) -> str:
    return sample.labels.get("engine", "0")


def _gauges(samples: list[Sample]) -> dict[str, Gauges]:
    found: dict[str, Gauges] = {}
    for sample in samples:
        if (name := _FIELDS.get(sample.name)) is not None:
            found[_engine(sample)] = _with(found.get(_engine(sample), Gauges()), name, sample.value)
    return {engine: found[engine] for engine in sorted(found, key=_rank)}


def _with(gauges: Gauges, name: str, value: float) -> Gauges:
    """Several series of one engine (served under several names) add up; shares of one cache do not."""
    before: float = getattr(gauges, name) or 0.0
    merged = max(before, value) if name == "kv_usage" else before + value
    return replace(gauges, **{name: merged})


def _rank(engine: str) -> tuple[int, str]:
    return (int(engine), "") if engine.isdecimal() else (1 << 30, engine)


def _cache_config(configs: Mapping[str, Mapping[str, str]]) -> CacheConfig:
    labels = next(iter(configs.values()))
    blocks = _number(labels.get("num_gpu_blocks"))
    concurrency = labels.get("kv_cache_max_concurrency")
    block_size = _number(labels.get("block_size"))
    return CacheConfig(
        ranks=tuple(sorted(configs, key=_rank)),
        num_gpu_blocks=None if blocks is None else int(blocks) // len(configs),
        block_size=None if block_size is None else int(block_size),
        kv_cache_max_concurrency=_number(concurrency),
        concurrency_error=_rounding(concurrency or ""),
        enable_prefix_caching=_boolean(labels.get("enable_prefix_caching")),
        mamba_cache_mode=labels.get("mamba_cache_mode"),
    )


def _number(text: str | None) -> float | None:
    """A positive number, or None: "None", absent, and the zero that stands before the cache was set up."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _boolean(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get((text or "").lower())


def _rounding(text: str) -> float:
    return 0.005 if len(text.partition(".")[2]) == 2 else 0.0
