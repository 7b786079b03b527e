"""The histograms of a running vLLM (or simulator): how long prompts and answers were since it started."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvgate.errors import ConfigError
from kvgate.traffic.lengths import Bucketed

PROMPT, OUTPUT = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
LIMIT, RUNNING = "vllm:request_params_max_tokens", "vllm:num_requests_running"
E2E, QUEUE = "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds"
STARTED = "process_start_time_seconds"
ANSWER_S_MAX = 10.0
"""A scrape takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """One look at a server; all its ranks and models together."""

    url: str
    prompt: Bucketed
    output: Bucketed
    limit: Bucketed | None
    """The `max_tokens` in force."""
    running: float | None
    """At the moment."""
    busy_s: float | None
    """Request-seconds in the engine, its own queue left out, since it started."""
    started: float | None
    """Unix time."""


def scrape(url: str) -> Scraped:
    """Look at a server. Raises ConfigError when it gives no answer, or none with the histograms."""
    base = url.rstrip("/").removesuffix("/v1").removesuffix("/metrics")
    if not base.startswith(("http://", "https://")):
        raise ConfigError(
            f"--from-metrics: {url!r} is not allowed; allowed: a URL such as http://127.0.0.1:8000"
        )
    try:
        answer = httpx.get(base + "/metrics", timeout=ANSWER_S_MAX, trust_env=False)
        answer.raise_for_status()
        return read_histograms(base, answer.text)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"--from-metrics: {base}/metrics gave no answer: {error}") from error
    except ValueError as error:
        raise ConfigError(f"--from-metrics: {base}/metrics: {error}") from error


def read_histograms(url: str, text: str) -> Scraped:
    """Read a metrics page. Raises ValueError when what is needed is not in it."""
    wanted = (PROMPT, OUTPUT, LIMIT, RUNNING, E2E, QUEUE, STARTED)
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    values: dict[str, dict[float, float]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            of = values.setdefault(sample.name, {})
            edge = float(sample.labels.get("le", "nan"))
            key = edge if not math.isnan(edge) else 0.0
            of[key] = of.get(key, 0.0) + sample.value
    prompt, output = _histogram(values, PROMPT), _histogram(values, OUTPUT)
    if prompt is None or output is None:
        raise ValueError(f"{PROMPT} and {OUTPUT} are not in it: is this a vLLM server?")
    if not prompt.count:
        raise ValueError("no request has ended yet since the server started")
    busy, queued = _single(values, E2E + "_sum"), _single(values, QUEUE + "_sum")
    return Scraped(
        url=url,
        prompt=prompt,
        output=output,
        limit=_histogram(values, LIMIT),
        running=_single(values, RUNNING),
        busy_s=None if busy is None or queued is None else max(busy - queued, 0.0),
        started=_single(values, STARTED),
    )


def _histogram(values: dict[str, dict[float, float]], name: str) -> Bucketed | None:
    buckets = sorted(values.get(name + "_bucket", {}).items())
    if not buckets:
        return None
    up_to = [0, *(int(count) for _, count in buckets)]
    counts = [later - earlier for earlier, later in pairwise(up_to)]
    return Bucketed([edge for edge, _ in buckets], counts, values[name + "_sum"][0.0])


def _single(values: dict[str, dict[float, float]], name: str) -> float | None:
    found = values.get(name)
    return None if found is None else found.get(0.0)
