from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.config.settings import Settings
from kvgate.engines.capacity import discover
from kvgate.engines.metrics import CacheConfig
from kvgate_policies.kv_groups import KVGroup
from kvgate_policies.model_shape import Kind, ModelShape
from kvgate_policies.model_shape_read import read_model
from kvgate_policies.types import EngineLimits, EngineShape

MODELS = Path(__file__).parents[1] / "policies/models"


def settings(**given: Any) -> Settings:
    return Settings(backends=("http://a",), **given)


def cache(**given: Any) -> CacheConfig:
    base = {"num_gpu_blocks": 121, "block_size": 32, "kv_cache_max_concurrency": 121 / 64}
    return CacheConfig(ranks=("0",), **{**base, **given})


def test_a_plain_model() -> None:
    found = discover(cache(enable_prefix_caching=True), 2048, settings())
    assert found.shape == EngineShape(block_size=32, max_model_len=2048, prefix_caching=True)
    assert (found.blocks, found.seqs, found.prefill_tokens) == (120, 256, 8192)
    assert found.warnings == found.missing == ()
    assert found.sources == {
        "num_gpu_blocks": "121 from vllm:cache_config_info in /metrics",
        "block_size": "32 from vllm:cache_config_info in /metrics",
        "max_model_len": "2048 from /v1/models",
        "max_num_seqs": "256, the default: compare it with the engine's",
    }


def test_what_the_ledger_is_told() -> None:
    found = discover(cache(), 2048, settings(max_num_seqs=7, prefill_tokens_max=99))
    assert found.shape is not None
    assert found.limits("e", accepting=False) == EngineLimits("e", found.shape, 120, 7, 99, accepting=False)
    assert found.limits("e", accepting=True, prefill_tokens=1).prefill_tokens == 1


@pytest.mark.parametrize(("watermark", "blocks"), [(0.0, 1000), (0.01, 990), (0.0101, 990), (0.5, 500)])
def test_the_watermark_is_taken_off_as_vllm_rounds_it(watermark, blocks) -> None:
    found = discover(cache(num_gpu_blocks=1001), 2048, settings(watermark=watermark))
    assert found.blocks == blocks == 1001 - 1 - math.floor(watermark * 1001)


def test_everything_by_hand_needs_nothing_from_the_backend() -> None:
    found = discover(None, None, settings(num_gpu_blocks=100, block_size=16, max_model_len=4096))
    assert found.shape == EngineShape(block_size=16, max_model_len=4096)
    assert found.blocks == 99
    assert found.warnings == found.missing == ()
    assert found.sources["num_gpu_blocks"] == "100 from --num-gpu-blocks"


def test_by_hand_wins() -> None:
    found = discover(cache(), 2048, settings(num_gpu_blocks=50, max_model_len=1024))
    assert found.shape is not None
    assert (found.blocks, found.shape.max_model_len, found.shape.block_size) == (49, 1024, 32)


@pytest.mark.parametrize(
    ("scraped", "window", "options"),
    [
        (None, None, ["--num-gpu-blocks", "--block-size", "--max-model-len"]),
        (None, 2048, ["--num-gpu-blocks", "--block-size"]),
        (cache(num_gpu_blocks=None), 2048, ["--num-gpu-blocks"]),
        (cache(), None, ["--max-model-len"]),
    ],
)
def test_what_is_missing_is_named_with_its_option(scraped, window, options) -> None:
    found = discover(scraped, window, settings())
    assert found.shape is None
    assert [text.rpartition("set ")[2] for text in found.missing] == options
    with pytest.raises(ValueError, match=options[0]):
        found.limits("e", accepting=True)


def test_a_single_block_is_the_null_block() -> None:
    found = discover(cache(num_gpu_blocks=1), 2048, settings())
    assert found.shape is None
    assert "null block" in found.missing[0]


def test_a_hybrid_is_charged_a_whole_sequence_and_says_so() -> None:
    """gpt-oss-like: a full-attention group of 64 blocks and a window group of 10."""
    found = discover(cache(num_gpu_blocks=1000, kv_cache_max_concurrency=1000 / 74), 2048, settings())
    assert found.shape is not None
    assert found.shape.blocks_opaque == 74
    assert "74" in found.warnings[0]
    assert "64" in found.warnings[0]


def test_a_model_of_windows_only_is_charged_less_than_full_attention() -> None:
    found = discover(cache(num_gpu_blocks=1000, kv_cache_max_concurrency=100.0), 2048, settings())
    assert found.shape is not None
    assert found.shape.blocks_opaque == 10


def test_one_extra_block_is_a_second_group() -> None:
    found = discover(cache(num_gpu_blocks=1000, kv_cache_max_concurrency=1000 / 65), 2048, settings())
    assert found.shape is not None
    assert found.shape.blocks_opaque == 65


@given(
    blocks=st.integers(100, 2_000_000), window=st.integers(16, 1_000_000), size=st.sampled_from([16, 64, 544])
)
def test_a_plain_model_is_never_taken_for_a_hybrid(blocks, window, size) -> None:
    """Whether the concurrency comes as a float or rounded to two digits, as older logs have it."""
    exact = blocks / math.ceil(window / size)
    for concurrency, error in ((exact, 0.0), (round(exact, 2), 0.005)):
        if concurrency > 0:
            scraped = cache(
                num_gpu_blocks=blocks,
                block_size=size,
                kv_cache_max_concurrency=concurrency,
                concurrency_error=error,
            )
            if exact >= 1:  # vLLM does not start otherwise
                found = discover(scraped, window, settings())
                assert found.shape is not None
                assert found.shape.blocks_opaque is None
                assert found.warnings == ()


def test_a_backend_that_does_not_tell_its_groups_is_taken_for_plain_with_a_warning() -> None:
    found = discover(cache(kv_cache_max_concurrency=None), 2048, settings())
    assert found.shape is not None
    assert found.shape.blocks_opaque is None
    assert "kv_cache_max_concurrency" in found.warnings[0]


def model(name: str) -> ModelShape:
    return read_model(json.loads((MODELS / f"{name}.json").read_text()))


def scraped(full: float, block_size: int = 16, **given: Any) -> CacheConfig:
    """Of an engine that counts `full` blocks for a sequence of its whole window."""
    return cache(
        num_gpu_blocks=50_000, block_size=block_size, kv_cache_max_concurrency=50_000 / full, **given
    )


GPT_OSS_FULL = 8192 + 1033
"""Of 131,072 tokens, with two batches of 8,192 in flight."""


def test_without_a_description_the_warning_says_what_to_set() -> None:
    [warning] = discover(scraped(GPT_OSS_FULL), 131_072, settings()).warnings
    assert "model_config in the pool's section" in warning
    assert "--model-config" in warning


def test_a_described_model_has_its_groups_and_the_engines_tokens_in_flight() -> None:
    found = discover(scraped(GPT_OSS_FULL), 131_072, settings(kv_model=model("gpt-oss-20b")))
    assert found.shape is not None
    assert found.shape.groups == (KVGroup(Kind.SLIDING, 16, 128), KVGroup(Kind.FULL, 16))
    assert 16_384 <= found.shape.in_flight_tokens < 16_400
    assert found.shape.blocks_opaque is None
    assert found.warnings == ()
    assert found.sources["kv_groups"] == (
        "1 sliding window of 128, 1 full attention, 16,385 tokens in flight, from model_config; "
        "the engine counts the same"
    )


def test_a_rounded_concurrency_will_do() -> None:
    """As in older logs: two digits."""
    rounded = scraped(GPT_OSS_FULL, concurrency_error=0.005)
    rounded = replace(rounded, kv_cache_max_concurrency=round(50_000 / GPT_OSS_FULL, 2))
    found = discover(rounded, 131_072, settings(kv_model=model("gpt-oss-20b")))
    assert found.shape is not None
    assert found.shape.groups
    assert found.shape.in_flight_tokens >= 16_384


def test_a_description_of_another_model_is_not_used_and_named() -> None:
    found = discover(scraped(GPT_OSS_FULL), 131_072, settings(kv_model=model("gemma-3-27b")))
    assert found.shape is not None
    assert found.shape.groups == ()
    assert found.shape.blocks_opaque == GPT_OSS_FULL
    assert "6 sliding window of 1,024, 1 full attention" in found.warnings[0]
    assert "not 9225" in found.warnings[0]
    assert "kv_groups" not in found.sources


def test_a_description_that_cant_be_laid_out_is_not_used_and_named() -> None:
    nothing = ModelShape((), 2)
    found = discover(scraped(GPT_OSS_FULL), 131_072, settings(kv_model=nothing))
    assert found.shape is not None
    assert found.shape.blocks_opaque == GPT_OSS_FULL
    assert "no layer of this model has a KV cache" in found.warnings[0]


def test_an_engine_that_counts_one_group_has_one_whatever_is_described() -> None:
    """As with --disable-hybrid-kv-cache-manager: windows are allocated as full attention."""
    found = discover(scraped(8192), 131_072, settings(kv_model=model("gpt-oss-20b")))
    assert found.shape == EngineShape(16, 131_072)
    assert found.warnings == ()
    assert found.sources["kv_groups"].startswith("one group")
    assert "model_config, which describes" in found.sources["kv_groups"]
    assert found.sources["kv_groups"].endswith("is not used")
    same = discover(scraped(8192), 131_072, settings(kv_model=model("llama-3.1-8b")))
    assert same.sources["kv_groups"] == "one group that keeps every token, by the engine's own count"


def test_the_block_size_of_states_is_the_engines() -> None:
    """It depends on how they are split over GPUs."""
    qwen = settings(kv_model=model("qwen3-next-80b"))
    for size in (144, 544):
        full = math.ceil(262_144 / size) + 3 * 2
        found = discover(scraped(full, size, enable_prefix_caching=True), 262_144, qwen)
        assert found.shape is not None
        assert found.shape.groups == (KVGroup(Kind.STATE, size, count=3), KVGroup(Kind.FULL, size))


def test_states_of_every_block_are_charged_as_attention() -> None:
    said = scraped(482 + 3, 544, enable_prefix_caching=True, mamba_cache_mode="all")
    found = discover(said, 262_144, settings(kv_model=model("qwen3-next-80b")))
    assert found.shape is not None
    assert found.shape.prefix_caching
    assert {group.kind for group in found.shape.groups} == {Kind.FULL}
    assert sum(group.count for group in found.shape.groups) == 4


def test_a_window_set_by_hand_changes_no_group() -> None:
    by_hand = settings(kv_model=model("gpt-oss-20b"), max_model_len=8192)
    found = discover(scraped(GPT_OSS_FULL), 131_072, by_hand)
    assert found.shape is not None
    assert found.shape.max_model_len == 8192
    assert found.shape.groups


def test_a_description_alone_is_used_with_a_warning_and_charges_windows_in_full() -> None:
    given_all = settings(
        kv_model=model("gpt-oss-20b"), num_gpu_blocks=5000, block_size=16, max_model_len=4096
    )
    silent = cache(num_gpu_blocks=5000, block_size=16, kv_cache_max_concurrency=None)
    for said in (None, silent):
        found = discover(said, 4096, given_all)
        assert found.shape is not None
        assert found.shape.in_flight_tokens == 4096
        assert len(found.shape.groups) == 2
        assert "can't be compared" in found.warnings[0]
    plain = discover(silent, 4096, settings(kv_model=model("llama-3.1-8b")))
    assert plain.shape == EngineShape(16, 4096)
    assert plain.warnings == ()
