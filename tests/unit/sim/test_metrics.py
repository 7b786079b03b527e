"""`/metrics` against the names, types and labels that a real vLLM 0.32.0 exported."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvgate.sim.engine import SimEngine
from kvgate.sim.metrics import render
from kvgate_policies.engine_model import EngineModel, SimRequest
from support.virtual_loop import LoopClock

ENGINE = {"engine", "model_name"}
VLLM = {
    "vllm:num_requests_running": ("gauge", ENGINE),
    "vllm:num_requests_waiting": ("gauge", ENGINE),
    "vllm:num_requests_waiting_by_reason": ("gauge", ENGINE | {"reason"}),
    "vllm:engine_sleep_state": ("gauge", ENGINE | {"sleep_state"}),
    "vllm:kv_cache_usage_perc": ("gauge", ENGINE),
    "vllm:prefix_cache_queries": ("counter", ENGINE),
    "vllm:prefix_cache_hits": ("counter", ENGINE),
    "vllm:num_preemptions": ("counter", ENGINE),
    "vllm:prompt_tokens": ("counter", ENGINE),
    "vllm:generation_tokens": ("counter", ENGINE),
    "vllm:request_success": ("counter", ENGINE | {"finished_reason"}),
    "vllm:admission_rejections": ("counter", {"model_name", "reason"}),
    "vllm:iteration_tokens_total": ("histogram", ENGINE),
    "vllm:time_to_first_token_seconds": ("histogram", ENGINE),
    "vllm:inter_token_latency_seconds": ("histogram", ENGINE),
    "vllm:e2e_request_latency_seconds": ("histogram", ENGINE),
    "vllm:request_queue_time_seconds": ("histogram", ENGINE),
    "vllm:request_prompt_tokens": ("histogram", ENGINE),
    "vllm:request_generation_tokens": ("histogram", ENGINE),
    "vllm:request_params_max_tokens": ("histogram", ENGINE),
    "process_start_time_seconds": ("gauge", set()),
}


@pytest.fixture
def engine() -> SimEngine:
    engine = SimEngine(
        lambda: EngineModel(num_gpu_blocks=121, block_size=32, max_model_len=2048, max_num_seqs=2),
        LoopClock(),
    )
    for name in "abc":
        engine.model.add(SimRequest(name, 33, 2))
    engine.model.step()
    return engine


def families(engine: SimEngine) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(render(engine, "tiny"))}


def value(found: dict[str, Metric], name: str, **labels) -> Any:
    family = name.removesuffix("_total") if name.removesuffix("_total") in found else name
    (sample,) = [
        sample
        for sample in found[family].samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sample.value


def test_names_types_and_labels_are_those_of_vllm(engine):
    found = families(engine)
    for name, (kind, labels) in VLLM.items():
        assert found[name].type == kind, name
        for sample in found[name].samples:
            assert set(sample.labels) - {"le"} == labels, sample


def test_values(engine):
    found = families(engine)
    assert value(found, "vllm:num_requests_running") == 2
    assert value(found, "vllm:num_requests_waiting") == 1
    assert value(found, "vllm:num_requests_waiting_by_reason", reason="capacity") == 1
    assert value(found, "vllm:kv_cache_usage_perc") == pytest.approx(4 / 120)
    assert value(found, "vllm:prompt_tokens_total") == 66
    assert value(found, "vllm:generation_tokens_total") == 2
    assert value(found, "process_start_time_seconds") == engine.stats.started_at


def test_cache_config_info_counts_the_null_block_and_has_no_model_name(engine):
    (sample,) = families(engine)["vllm:cache_config_info"].samples
    expected = {
        "block_size": "32",
        "num_gpu_blocks": "121",
        "kv_cache_size_tokens": "3872",
        "kv_cache_max_concurrency": "1.890625",
        "enable_prefix_caching": "True",
        "cache_dtype": "auto",
        "engine": "0",
        "sliding_window": "None",
    }
    assert expected.items() <= sample.labels.items()
    assert "model_name" not in sample.labels
    assert sample.value == 1


def test_buckets_are_cumulative_and_have_the_edges_of_vllm(engine):
    for seconds in (0.003, 0.003, 3.0, 9999.0):
        engine.stats.ttft.observe(seconds)
    samples = families(engine)["vllm:time_to_first_token_seconds"].samples
    buckets = {sample.labels["le"]: sample.value for sample in samples if "le" in sample.labels}
    assert list(buckets)[:4] == ["0.001", "0.005", "0.01", "0.02"]
    assert len(buckets) == 23
    assert (buckets["0.001"], buckets["0.005"], buckets["5.0"], buckets["2560.0"], buckets["+Inf"]) == (
        0,
        2,
        3,
        3,
        4,
    )


def test_refusals_are_counted_by_reason(engine):
    engine.stats.rejections = 4
    found = families(engine)
    assert value(found, "vllm:admission_rejections_total", reason="max_num_queued_reqs") == 4
    assert value(found, "vllm:admission_rejections_total", reason="max_num_queued_tokens") == 0
