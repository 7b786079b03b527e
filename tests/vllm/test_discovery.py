"""What kvgate reads off an engine at its start is really there, under these names."""

from __future__ import annotations

import httpx
import pytest

from vllm import server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

NEEDED = {
    "vllm:cache_config_info",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
}


def test_the_metrics_kvgate_needs_are_exported(engine: server.Engine) -> None:
    assert NEEDED - engine.samples().keys() == set()


def test_the_block_size_and_count_are_on_the_metrics(engine: server.Engine) -> None:
    [(labels, value)] = engine.samples()["vllm:cache_config_info"]
    assert value == 1
    assert labels["block_size"] == str(server.BLOCK_SIZE)
    assert labels["num_gpu_blocks"] == str(server.BLOCKS)
    assert labels["enable_prefix_caching"] == "True"
    per_request = -(-server.MAX_MODEL_LEN // server.BLOCK_SIZE)
    concurrency = float(labels["kv_cache_max_concurrency"])
    assert server.BLOCKS / concurrency == pytest.approx(per_request), "one full-attention group"


def test_the_context_length_is_on_the_models(engine: server.Engine) -> None:
    [card] = httpx.get(engine.url + "/v1/models", timeout=30).json()["data"]
    assert card["id"] == server.MODEL
    assert card["max_model_len"] == server.MAX_MODEL_LEN


def test_one_block_of_the_count_is_not_usable(engine: server.Engine) -> None:
    """A running request of one block moves the usage gauge by 1/120, not by 1/121."""
    usable = server.BLOCKS - 1
    body = {
        "model": server.MODEL,
        "prompt": [400] * 31,
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": True,
    }
    seen: set[float] = set()
    with httpx.stream("POST", engine.url + "/v1/completions", json=body, timeout=60) as answer:
        for _ in zip(range(200), answer.iter_lines(), strict=False):
            [(_, usage)] = engine.samples()["vllm:kv_cache_usage_perc"]
            seen.add(round(usage * usable, 6))
            if seen - {0.0}:  # on a busy machine the gauge follows late
                break
    assert seen - {0.0}
    assert all(blocks == int(blocks) for blocks in seen), seen


def test_the_tokenizer_counts_a_chat(engine: server.Engine) -> None:
    body = {"model": server.MODEL, "messages": [{"role": "user", "content": "a client asks"}]}
    counted = httpx.post(engine.url + "/tokenize", json=body, timeout=30).json()
    answer = httpx.post(engine.url + "/v1/chat/completions", json=body | {"max_tokens": 1}, timeout=60).json()
    assert counted["count"] == answer["usage"]["prompt_tokens"]
    assert counted["max_model_len"] == server.MAX_MODEL_LEN
