"""What a running vLLM (or simulator) says of its KV cache, read once for the planner.

`/metrics` has the block count and size and the settings it was started with, `/v1/models` the window. What it
does not export is None: the planner then asks for it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvgate.engines.metrics import CACHE_CONFIG, read_metrics
from kvgate.engines.models import read_models, window
from kvgate.errors import ConfigError
from kvgate.planner.sizes import read_share

ANSWER_S_MAX = 10.0
"""A scrape takes milliseconds; a server that is starting or hung is told apart from a slow one by this."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A server's own account."""

    url: str
    ranks: tuple[str, ...] = ("0",)
    """Its data-parallel engines."""
    num_gpu_blocks: int | None = None
    """Of one engine, the null block included."""
    block_size: int | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    """Sequences of the whole window, as vLLM counts them in its log."""
    prefix_caching: bool | None = None
    kv_dtype: str | None = None
    utilization: Fraction | None = None
    pool_bytes: int | None = None
    """Of the KV cache, where the server was given them; None where it found them out or was given blocks."""


def ask_backend(url: str) -> Reported:
    """Look at a server. Raises ConfigError when it can't be reached or says nothing of its cache."""
    base = url.rstrip("/").removesuffix("/v1")
    metrics, models = _get(base, "/metrics"), _get(base, "/v1/models")
    try:
        return read_reported(base, metrics.text, models.content)
    except ValueError as error:
        raise ConfigError(f"--backend: {base}: {error}") from error


def read_reported(url: str, metrics: str, models: bytes) -> Reported:
    """Read the two answers. Raises ValueError when there is nothing about a KV cache in them."""
    cache = read_metrics(metrics).cache
    if cache is None or cache.num_gpu_blocks is None:
        raise ValueError(f"{CACHE_CONFIG} is not in its /metrics: is this a vLLM server, and has it started?")
    labels = _labels(metrics)
    return Reported(
        url=url,
        ranks=cache.ranks,
        num_gpu_blocks=cache.num_gpu_blocks,
        block_size=cache.block_size,
        max_model_len=window(read_models(models)),
        max_concurrency=cache.kv_cache_max_concurrency,
        prefix_caching=cache.enable_prefix_caching,
        kv_dtype=labels.get("cache_dtype"),
        utilization=read_share(labels.get("gpu_memory_utilization", "")),
        pool_bytes=_pool_bytes(labels),
    )


def _get(base: str, path: str) -> httpx.Response:
    try:
        answer = httpx.get(base + path, timeout=ANSWER_S_MAX)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"--backend: {base}{path} gave no answer: {error}") from error
    return answer


def _labels(metrics: str) -> dict[str, str]:
    """The settings on `vllm:cache_config_info`, of the first engine."""
    lines = [line for line in metrics.splitlines() if line.startswith(CACHE_CONFIG + "{")]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            return dict(sample.labels)
    return {}


def _pool_bytes(labels: dict[str, str]) -> int | None:
    given, override = labels.get("kv_cache_memory_bytes", ""), labels.get("num_gpu_blocks_override", "None")
    return int(given) if given.isdecimal() and int(given) and override == "None" else None
