"""`GET /metrics` in vLLM 0.32's names, labels and types: the series that proxies and dashboards use.

As there, counters come with a `_created` gauge, `kv_cache_usage_perc` is the fraction of usable blocks that
live requests hold, and `cache_config_info` counts the null block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate.sim.engine import SimEngine
    from kvgate.sim.stats import Histogram

Labels = dict[str, str]


def render(engine: SimEngine, model_name: str) -> str:
    """The Prometheus text format, version 0.0.4."""
    labels = {"engine": "0", "model_name": model_name}
    lines: list[str] = []
    page = _Page(lines, engine.stats.started_at, labels)
    _process(page, engine.stats.started_at)
    _gauges(page, engine)
    _counters(page, engine)
    _histograms(page, engine)
    _cache_config(page, engine)
    return "\n".join(lines) + "\n"


class _Page:
    def __init__(self, lines: list[str], created_at: float, labels: Labels) -> None:
        self._lines = lines
        self._created_at = created_at
        self.labels = labels

    def head(self, name: str, kind: str, text: str) -> None:
        self._lines += (f"# HELP {name} {text}", f"# TYPE {name} {kind}")

    def value(self, name: str, labels: Mapping[str, str], value: float) -> None:
        inner = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
        self._lines.append(f"{name}{{{inner}}} {float(value)}" if inner else f"{name} {float(value)}")

    def gauge(self, name: str, text: str, value: float) -> None:
        self.head(f"vllm:{name}", "gauge", text)
        self.value(f"vllm:{name}", self.labels, value)

    def counter(self, name: str, text: str, value: float) -> None:
        self.counters(name, text, [(self.labels, value)])

    def counters(self, name: str, text: str, values: Iterable[tuple[Labels, float]]) -> None:
        pairs = list(values)
        self.head(f"vllm:{name}_total", "counter", text)
        for labels, value in pairs:
            self.value(f"vllm:{name}_total", labels, value)
        self.head(f"vllm:{name}_created", "gauge", text)
        for labels, _ in pairs:
            self.value(f"vllm:{name}_created", labels, self._created_at)

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        self.head(f"vllm:{name}", "histogram", text)
        total = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            total += count
            edge = "+Inf" if bound == float("inf") else str(bound)
            self.value(f"vllm:{name}_bucket", {**self.labels, "le": edge}, total)
        self.value(f"vllm:{name}_count", self.labels, total)
        self.value(f"vllm:{name}_sum", self.labels, histogram.sum)
        self.head(f"vllm:{name}_created", "gauge", text)
        self.value(f"vllm:{name}_created", self.labels, self._created_at)


def _process(page: _Page, started_at: float) -> None:
    name = "process_start_time_seconds"
    page.head(name, "gauge", "Start time of the process since unix epoch in seconds.")
    page.value(name, {}, started_at)


def _gauges(page: _Page, engine: SimEngine) -> None:
    model = engine.model
    page.gauge("num_requests_running", "Number of requests in model execution batches.", model.running)
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", model.waiting)
    name = "vllm:num_requests_waiting_by_reason"
    page.head(name, "gauge", "Number of waiting requests by reason.")
    page.value(name, {**page.labels, "reason": "capacity"}, model.waiting)
    page.value(name, {**page.labels, "reason": "deferred"}, 0)
    name = "vllm:engine_sleep_state"
    page.head(name, "gauge", "Engine sleep state; awake = 0 means engine is sleeping.")
    for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
        page.value(name, {**page.labels, "sleep_state": state}, value)
    usage = model.kv_used / model.usable_blocks
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage)


def _counters(page: _Page, engine: SimEngine) -> None:
    counters = engine.model.counters
    queried = "Prefix cache queries, in terms of number of queried tokens."
    page.counter("prefix_cache_queries", queried, counters.prefix_queries)
    page.counter(
        "prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", counters.prefix_hits
    )
    page.counter("num_preemptions", "Cumulative number of preemption from the engine.", counters.preemptions)
    page.counter("prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens)
    page.counter("generation_tokens", "Number of generation tokens processed.", counters.generation_tokens)
    ended = [({**page.labels, "finished_reason": reason}, n) for reason, n in engine.stats.ended.items()]
    page.counters("request_success", "Count of successfully processed requests.", ended)
    name = {"model_name": page.labels["model_name"]}
    refused = [
        ({**name, "reason": "max_num_queued_reqs"}, engine.stats.rejections),
        ({**name, "reason": "max_num_queued_tokens"}, 0),
    ]
    text = "Number of admission attempts rejected by a queue limit, by reason."
    page.counters("admission_rejections", text, refused)


def _histograms(page: _Page, engine: SimEngine) -> None:
    stats = engine.stats
    tokens = "Histogram of number of tokens per engine_step."
    page.histogram("iteration_tokens_total", tokens, stats.iteration_tokens)
    ttft = "Histogram of time to first token in seconds."
    page.histogram("time_to_first_token_seconds", ttft, stats.ttft)
    itl = "Histogram of inter-token latency in seconds."
    page.histogram("inter_token_latency_seconds", itl, stats.itl)
    e2e = "Histogram of e2e request latency in seconds."
    page.histogram("e2e_request_latency_seconds", e2e, stats.e2e)
    prefill = "Number of prefill tokens processed."
    page.histogram("request_prompt_tokens", prefill, stats.prompt_tokens)
    page.histogram(
        "request_generation_tokens", "Number of generation tokens processed.", stats.generation_tokens
    )
    limit = "Histogram of the max_tokens request parameter."
    page.histogram("request_params_max_tokens", limit, stats.max_tokens)
    queue = "Histogram of time spent in WAITING phase for request."
    page.histogram("request_queue_time_seconds", queue, stats.queue)


def _cache_config(page: _Page, engine: SimEngine) -> None:
    model = engine.model
    per_sequence = -(-model.max_model_len // model.block_size)
    concurrency = model.num_gpu_blocks / per_sequence
    labels = {
        "_block_size_resolved": "True",
        "block_size": str(model.block_size),
        "cache_dtype": "auto",
        "effective_attention_block_size": str(model.block_size),
        "enable_prefix_caching": str(model.prefix_caching),
        "engine": "0",
        "gpu_memory_utilization": "0.92",
        "hash_block_size": "None",
        "is_attention_free": "False",
        "kv_cache_max_concurrency": str(concurrency),
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": str(int(concurrency * model.max_model_len)),
        "mamba_block_size": "None",
        "mamba_cache_mode": "none",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(model.num_gpu_blocks),
        "num_gpu_blocks_override": str(model.num_gpu_blocks),
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
        "user_specified_block_size": "True",
    }
    page.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
    page.value("vllm:cache_config_info", labels, 1)
