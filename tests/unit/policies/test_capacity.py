"""The planner's arithmetic: the case it was born from, the published models, groups, parallelism, options."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.capacity import Plan, make_plan
from kvgate_policies.capacity_dtypes import DTYPES, KV_DTYPES, CapacityError, dtype_named
from kvgate_policies.capacity_groups import Page, group_layers, hybrid_block_tokens
from kvgate_policies.capacity_mitigations import Risk, Trade
from kvgate_policies.capacity_options import Option, combinations, singles, ways_to
from kvgate_policies.capacity_setup import Memory, Setup
from kvgate_policies.model_shape import Kind, ModelShape, typed_model
from unit.policies.made import load

GIB = 1024**3
GB = 1000**3


def card(unit: int, utilization: str = "0.85") -> Memory:
    return Memory(Fraction(80 * unit), Fraction(utilization), Fraction(16 * unit), Fraction(4 * unit))


CASE = Setup(typed_model(32, 32, 128), card(GIB), max_model_len=8192, dtype="float16", block_size=16)
"""32 layers, 32 KV heads of 128, fp16, on an 80 GiB card."""


def planned(**changes: Any) -> Plan:
    return make_plan(replace(CASE, **changes))


# The case.


def test_the_case() -> None:
    plan = planned()
    assert plan.bytes_per_token == 2 * 32 * 32 * 128 * 2 == 524_288 == 512 * 1024
    assert plan.bytes_per_block == 8_388_608
    assert plan.bytes_per_sequence == 4 * GIB
    assert plan.pool_bytes == 48 * GIB
    assert plan.num_gpu_blocks == 6144
    assert plan.max_sequences == 12


def test_the_engine_fits_eleven_of_the_whole_window_and_twelve_of_8000_tokens() -> None:
    plan = planned()
    assert plan.max_sequences_engine == plan.sequences(8192) == 11
    assert plan.sequences(8000) == 12
    assert (plan.blocks(8192), plan.blocks(8000)) == (512, 500)
    assert planned(max_model_len=8000).max_sequences_engine == 12


def test_read_in_gb_it_is_eleven() -> None:
    plan = planned(memory=card(GB))
    assert plan.pool_bytes == 48 * GB
    assert round(plan.pool_bytes / GIB, 1) == 44.7
    assert plan.max_sequences == 11


def test_with_a_quarter_of_the_kv_heads_four_times_as_many_fit() -> None:
    assert planned(shape=typed_model(32, 8, 128)).max_sequences == 4 * 12


@pytest.mark.parametrize(
    ("changes", "sequences", "factor"),
    [
        ({"kv_dtype": "fp8"}, 24, 2.0),
        ({"max_model_len": 4096}, 24, 2.0),
        ({"memory": card(GIB, "0.95")}, 14, 1.2),
        ({}, 12, 1.0),
        ({"tensor_parallel": 2}, 28, 2.3),
        ({"kv_dtype": "fp8", "tensor_parallel": 2}, 56, 4.7),
        ({"kv_dtype": "fp8", "tensor_parallel": 2, "max_model_len": 4096}, 112, 9.3),
    ],
)
def test_what_each_mitigation_gives(changes: dict[str, Any], sequences: int, factor: float) -> None:
    plan = planned(**changes)
    assert plan.max_sequences == sequences
    assert round(plan.max_sequences / planned().max_sequences, 1) == factor


def test_two_gpus_together_have_112_gib() -> None:
    assert 2 * planned(tensor_parallel=2).pool_bytes == 2 * (68 - 8 - 4) * GIB == 112 * GIB


# The published models. Bytes of a token and of a block, in bfloat16 unless said otherwise, on one GPU.

PUBLISHED = [
    ("llama-2-7b", None, 524_288, 16, 8_388_608),
    ("llama-3.1-8b", None, 131_072, 16, 2_097_152),
    ("llama-3.1-70b", None, 327_680, 16, 5_242_880),
    ("qwen2.5-72b", None, 327_680, 16, 5_242_880),
    ("qwen3-30b-a3b", None, 98_304, 16, 1_572_864),
    ("deepseek-v3", None, 70_272, 64, 4_497_408),
    ("deepseek-v3", "fp8", 35_136, 64, 2_248_704),
    ("deepseek-v3", "fp8_ds_mla", 40_016, 64, 2_561_024),
    ("deepseek-v3.2", None, 48_068, 64, 3_076_352),
    ("gpt-oss-20b", None, 49_152, 16, 393_216),
    ("gemma-3-27b", None, 507_904, 16, 1_310_720),
    ("qwen3-next-80b", None, 24_576, 544, 13_369_344),
    ("llama-4-scout", None, 196_608, 16, 3_145_728),
    ("mistral-7b-v0.1", None, 131_072, 16, 2_097_152),
    ("falcon-7b", None, 8_192, 16, 131_072),
]


@pytest.mark.parametrize(("name", "kv_dtype", "token", "block_size", "block"), PUBLISHED)
def test_bytes_of_published_models(
    name: str, kv_dtype: str | None, token: int, block_size: int, block: int
) -> None:
    plan = make_plan(Setup(load(name), 100 * GIB, 8192, kv_dtype=kv_dtype or "auto"))
    assert (plan.bytes_per_token, plan.block_size, plan.bytes_per_block) == (token, block_size, block)


@pytest.mark.parametrize(
    ("name", "beyond"),
    [("gpt-oss-20b", 24_576), ("gemma-3-27b", 81_920), ("qwen3-next-80b", 24_576), ("llama-2-7b", 524_288)],
)
def test_bytes_of_a_token_beyond_all_windows(name: str, beyond: int) -> None:
    assert make_plan(Setup(load(name), 100 * GIB, 8192)).bytes_per_token_long == beyond


def test_a_short_session_of_gemma_pays_for_the_padding_of_its_seven_groups() -> None:
    plan = make_plan(Setup(load("gemma-3-27b"), 100 * GIB, 131072))
    assert [len(group.members) for group in plan.groups] == [9, 9, 9, 9, 8, 8, 10]
    assert len(plan.groups) * plan.bytes_per_block // plan.block_size == 573_440


def test_seventy_billion_over_eight_gpus_and_over_more_than_it_has_heads() -> None:
    shape = load("llama-3.1-70b")
    for parallel in (8, 16):
        plan = make_plan(Setup(shape, 100 * GIB, 8192, tensor_parallel=parallel))
        assert plan.bytes_per_token == 40_960, parallel


def test_latent_attention_is_whole_on_every_gpu() -> None:
    assert make_plan(Setup(load("deepseek-v3"), 100 * GIB, 8192, tensor_parallel=8)).bytes_per_token == 70_272


# Blocks in 100 GiB, and the maximum concurrency that vLLM computes of them. The numbers for Qwen3-Next are those
# without prefix caching, where a recurrent state takes one block; with it (vLLM's default) it takes two.


@pytest.mark.parametrize(
    ("name", "window", "caching", "blocks", "concurrency", "logged_tokens"),
    [
        ("llama-3.1-8b", 131_072, True, 51_200, 6.25, 819_200),
        ("qwen3-30b-a3b", 40_960, True, 68_266, 26.67, 1_092_256),
        ("deepseek-v3", 163_840, True, 23_874, 9.33, 1_527_936),
        ("gpt-oss-20b", 131_072, True, 273_066, 29.60, 3_879_816),
        ("gemma-3-27b", 131_072, True, 81_920, 5.56, 729_146),
        ("qwen3-next-80b", 262_144, False, 8_031, 16.56, 4_340_780),
        ("qwen3-next-80b", 262_144, True, 8_031, 16.46, None),
    ],
)
def test_blocks_in_100_gib(
    name: str, window: int, caching: bool, blocks: int, concurrency: float, logged_tokens: int | None
) -> None:
    plan = make_plan(Setup(load(name), 100 * GIB, window, prefix_caching=caching))
    assert plan.num_gpu_blocks == blocks
    assert round(float(plan.concurrency), 2) == concurrency
    if logged_tokens is not None:
        assert int(plan.concurrency * window) == logged_tokens


def test_the_blocks_of_a_window_model_are_bounded_by_the_window_and_a_batch() -> None:
    plan = make_plan(Setup(load("gpt-oss-20b"), 100 * GIB, 131_072))
    assert plan.blocks_per_sequence == 8192 + 1033
    assert plan.blocks(16) == 2
    assert plan.blocks(32_768) == 2048 + 1033


def test_windows_shrink_to_themselves_once_the_prompt_is_read() -> None:
    plan = make_plan(Setup(load("gpt-oss-20b"), 100 * GIB, 131_072))
    assert plan.steady_blocks(32_768) == 2048 + (8 + 2)
    assert plan.steady_blocks(32) == plan.blocks(32) == 4
    assert planned().steady_blocks(8192) == 512


def test_a_short_session_of_a_hybrid_model_takes_its_states_whole() -> None:
    plan = make_plan(Setup(load("qwen3-next-80b"), 100 * GIB, 262_144))
    assert plan.blocks(20) == 1 + 3 * 2
    assert make_plan(replace(plan.setup, prefix_caching=False)).blocks(20) == 1 + 3


# Groups.


def page(kind: Kind, size: int, window: int | None = None) -> Page:
    return Page(kind, size, 16, window)


FULL, SLIDING = page(Kind.FULL, 1024), page(Kind.SLIDING, 1024, 128)


@pytest.mark.parametrize(
    ("pages", "sizes"),
    [
        ([FULL] * 4, [4]),
        ([FULL, page(Kind.FULL, 2048)] * 2, [4]),
        ([page(Kind.LATENT, 1024), page(Kind.INDEX, 132)] * 3, [6]),
        ([FULL, SLIDING] * 6, [6, 6]),
        ([FULL] + [SLIDING] * 5, [1, 1, 1, 1, 1, 1]),
        ([FULL] * 13 + [SLIDING] * 12, [13, 12]),  # padded: 13 is less than half as much again as 12
        ([FULL] * 4 + [SLIDING] * 6, [4, 3, 3]),
        ([SLIDING, page(Kind.SLIDING, 1024, 256)] * 2, [2, 2]),
        ([page(Kind.CHUNKED, 1024, 64)] * 3 + [FULL], [4]),
        ([page(Kind.CHUNKED, 1024, 64)] * 3, [3]),
    ],
)
def test_layers_per_group(pages: list[Page], sizes: list[int]) -> None:
    _, groups = group_layers(pages)
    assert [len(group.members) for group in groups] == sizes
    assert sorted(member for group in groups for member in group.members) == list(range(len(pages)))


def test_smaller_pages_take_more_tokens_or_are_padded() -> None:
    pages, groups = group_layers([page(Kind.FULL, 4096), page(Kind.SLIDING, 1024, 128)])
    assert [one.bytes for one in pages] == [4096, 4096]
    assert [group.page.tokens for group in groups] == [16, 64]
    pages, groups = group_layers([page(Kind.FULL, 4096), page(Kind.SLIDING, 1000, 128)])
    assert [one.bytes for one in pages] == [4096, 4096]
    assert [group.page.tokens for group in groups] == [16, 16]


def test_latent_attention_is_never_padded() -> None:
    with pytest.raises(CapacityError, match=r"vLLM 0\.32 refuses this model"):
        group_layers([page(Kind.LATENT, 1000), page(Kind.SLIDING, 1024, 128)])


def test_a_block_grows_until_a_page_of_attention_holds_a_state() -> None:
    state = 8192 * 3 * 2 + 32 * 128 * 128 * 2
    assert hybrid_block_tokens(16, 2048, state, latent=False) == 544
    assert hybrid_block_tokens(1024, 2048, state, latent=False) == 1024
    assert hybrid_block_tokens(16, 1152, 100_000, latent=True) == 128
    assert hybrid_block_tokens(16, 2048, 0, latent=False) == 16


# Dtypes.


@pytest.mark.parametrize(
    ("kv_dtype", "token"),
    [
        ("auto", 2 * 8 * 128 * 2),
        ("float16", 2 * 8 * 128 * 2),
        ("float32", 2 * 8 * 128 * 4),
        ("fp8", 2 * 8 * 128),
        ("fp8_e5m2", 2 * 8 * 128),
        ("int8_per_token_head", 8 * (256 + 8)),
        ("int4_per_token_head", 8 * (128 + 8)),
        ("nvfp4", 8 * 2 * (64 + 8)),
    ],
)
def test_bytes_of_dtypes(kv_dtype: str, token: int) -> None:
    assert planned(shape=typed_model(1, 8, 128), kv_dtype=kv_dtype).bytes_per_token == token


def test_nvfp4_is_nine_sixteenths_of_a_byte() -> None:
    plan = planned(kv_dtype="nvfp4")
    assert Fraction(plan.bytes_per_token, 2 * 32 * 32 * 128) == Fraction(9, 16)


def test_short_names_of_dtypes() -> None:
    assert dtype_named("FP16", DTYPES, "--dtype") == "float16"
    assert dtype_named("bf16", KV_DTYPES, "--kv-dtype") == "bfloat16"
    with pytest.raises(CapacityError, match="--kv-dtype: 'fp6' is not allowed; allowed: auto, float32"):
        dtype_named("fp6", KV_DTYPES, "--kv-dtype")


# Parallelism.


def test_a_stage_with_more_layers_decides() -> None:
    """30 layers over 4 stages: 7, 8, 8, 7, as vLLM splits them."""
    plan = planned(shape=typed_model(30, 8, 128), memory=100 * GIB, pipeline_parallel=4)
    assert plan.bytes_per_token == 8 * 2 * 8 * 128 * 2


def test_stages_hold_parts_of_the_groups() -> None:
    shape = load("gpt-oss-20b")
    whole = make_plan(Setup(shape, 100 * GIB, 8192))
    halves = make_plan(Setup(shape, 100 * GIB, 8192, pipeline_parallel=2))
    assert halves.bytes_per_block == whole.bytes_per_block // 2
    assert halves.num_gpu_blocks == 2 * whole.num_gpu_blocks + 1  # rounded down once, not twice


def test_copies_multiply_and_do_not_pool() -> None:
    plan = planned(data_parallel=3)
    assert (plan.max_sequences, plan.max_sequences_engine) == (36, 33)
    assert plan.num_gpu_blocks == 6144


def test_context_parallelism_deals_a_session_out() -> None:
    shape = typed_model(32, 2, 128)
    base = planned(shape=shape, memory=10 * GIB, tensor_parallel=8)
    dealt = planned(shape=shape, memory=10 * GIB, tensor_parallel=8, context_parallel=4)
    assert dealt.num_gpu_blocks == base.num_gpu_blocks
    assert dealt.blocks_per_sequence == base.blocks_per_sequence // 4
    assert dealt.max_sequences == 4 * base.max_sequences


def test_speculative_decoding_adds_its_layers_and_its_look_ahead() -> None:
    shape = load("deepseek-v3")
    plan = make_plan(Setup(shape, 100 * GIB, 163_840, draft_tokens=2))
    assert plan.bytes_per_token == 70_272 // 61 * 62
    assert plan.blocks(6400) == 100 + 1
    assert plan.blocks_per_sequence == 163_840 // 64, "never above the whole window"


# Mistakes.


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensor_parallel": 3}, "--tp 3: does not go with 32 KV heads"),
        (
            {"shape": load("llama-3.1-8b"), "tensor_parallel": 64},
            "--tp 64: does not divide the model's 32 attention",
        ),
        ({"pipeline_parallel": 33}, "--pp 33: more stages than the model's 32 layers"),
        ({"context_parallel": 2}, "--dcp 2: is taken from the GPUs of --tp 1"),
        ({"context_parallel": 2, "tensor_parallel": 2}, "--dcp 2: it deals out the copies of KV heads"),
        (
            {"shape": load("gpt-oss-20b"), "context_parallel": 2, "tensor_parallel": 16},
            "--dcp 2: vLLM 0.32 has no decode context parallelism with windows",
        ),
        ({"kv_dtype": "fp8_ds_mla"}, "fp8_ds_mla: a layout of DeepSeek's latent attention"),
        ({"shape": load("deepseek-v3"), "kv_dtype": "nvfp4"}, "nvfp4: not for latent attention"),
        ({"shape": typed_model(2, 2, 40), "kv_dtype": "nvfp4"}, "needs a head dimension that 16 divides"),
        ({"memory": replace(card(GIB), weights=Fraction(90 * GIB))}, "no memory is left for KV cache"),
        ({"shape": load("qwen3-next-80b"), "tensor_parallel": 64}, "--tp 64"),
        ({"shape": ModelShape((), 4)}, "no layer of this model has a KV cache"),
    ],
)
def test_what_vllm_would_refuse_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CapacityError) as caught:
        planned(**changes)
    assert said in str(caught.value)


def test_how_much_memory_is_missing_is_said() -> None:
    with pytest.raises(CapacityError, match="take 26 GiB more than the 68 GiB"):
        planned(memory=replace(card(GIB), weights=Fraction(90 * GIB)))


def test_an_engine_too_small_for_one_session_would_not_start() -> None:
    plan = planned(memory=4 * GIB)
    assert (plan.max_sequences, plan.max_sequences_engine, plan.starts) == (1, 0, False)


# Whatever the numbers.

SETUPS = st.builds(
    lambda layers, heads, size, length, block, pool, dtype: Setup(
        typed_model(layers, heads, size * 16), pool, length, kv_dtype=dtype, block_size=block
    ),
    st.integers(1, 64),
    st.integers(1, 16),
    st.integers(1, 8),
    st.integers(1, 20_000),
    st.sampled_from([1, 8, 16, 32, 128]),
    st.integers(GIB // 64, 8 * GIB),
    st.sampled_from(["float16", "fp8", "nvfp4", "int8_per_token_head"]),
)


@given(SETUPS)
def test_blocks_never_promise_more_than_the_memory_has(setup: Setup) -> None:
    plan = make_plan(setup)
    assert plan.num_gpu_blocks * plan.bytes_per_block <= plan.pool_bytes
    assert (plan.num_gpu_blocks + 1) * plan.bytes_per_block > plan.pool_bytes
    assert plan.max_sequences_engine <= plan.max_sequences
    assert plan.max_sequences_engine * plan.blocks_per_sequence <= max(plan.num_gpu_blocks - 1, 0)


@given(SETUPS, st.integers(1, 20_000))
def test_shorter_sessions_are_never_fewer(setup: Setup, tokens: int) -> None:
    plan = make_plan(setup)
    shorter = min(tokens, setup.max_model_len)
    if plan.num_gpu_blocks:
        assert plan.sequences(shorter) >= plan.max_sequences_engine


# Options.


def named(options: tuple[Option, ...], name: str) -> Option:
    [option] = [one for one in options if one.name == name]
    return option


@pytest.mark.parametrize(
    ("name", "sequences", "factor", "trades", "risk"),
    [
        ("fp8 KV cache", 24, 2.0, Trade.QUALITY, Risk.SMALL),
        ("max_model_len 4096", 24, 2.0, Trade.LENGTH, Risk.MODERATE),
        ("gpu_memory_utilization 0.95", 14, 1.2, Trade.SAFETY, Risk.HIGH),
        ("cap max_num_seqs at 12, queue the rest", 12, 1.0, Trade.NOTHING, Risk.NONE),
        ("TP 2", 28, 2.3, Trade.MONEY, Risk.NONE),
        ("2 copies", 24, 2.0, Trade.MONEY, Risk.NONE),
    ],
)
def test_options_alone(name: str, sequences: int, factor: float, trades: Trade, risk: Risk) -> None:
    option = named(singles(CASE), name)
    assert option.max_sequences == sequences
    assert round(option.factor, 1) == factor
    assert (option.trades, option.risk) == ((trades,), risk)
    assert option.precondition


def test_only_the_claim_for_tensor_parallelism_is_overstated() -> None:
    assert [option.name for option in singles(CASE) if option.overstated] == ["TP 2"]
    assert named(singles(CASE), "TP 2").claimed == 4.0


@pytest.mark.parametrize(
    ("name", "sequences", "factor"),
    [
        ("fp8 KV cache + max_model_len 4096", 48, 4.0),
        ("fp8 KV cache + TP 2", 56, 4.7),
        ("fp8 KV cache + max_model_len 4096 + TP 2", 112, 9.3),
    ],
)
def test_options_combined(name: str, sequences: int, factor: float) -> None:
    option = named(combinations(CASE), name)
    assert (option.max_sequences, round(option.factor, 1)) == (sequences, factor)


def test_eight_times_needs_two_gpus_and_both_trades_or_more_gpus_and_fewer() -> None:
    ways = ways_to(8, (*singles(CASE), *combinations(CASE)))
    assert [(way.name, way.gpus, way.max_sequences) for way in ways] == [
        ("fp8 KV cache + max_model_len 4096 + TP 2", 2, 112),
        ("fp8 KV cache + TP 4", 4, 120),
        ("TP 8", 8, 124),
    ]
    assert [way.risk for way in ways] == [Risk.MODERATE, Risk.SMALL, Risk.NONE]


def test_nothing_reaches_a_hundred_times() -> None:
    assert ways_to(100, (*singles(CASE), *combinations(CASE))) == ()


def test_options_are_ranked_by_risk_then_gpus() -> None:
    for options in (singles(CASE), combinations(CASE)):
        ranks = [(option.risk, option.gpus) for option in options]
        assert ranks == sorted(ranks)


def test_combinations_are_sums_of_their_own_and_bounded() -> None:
    options = combinations(CASE)
    assert len(options) == 8 * 7 - 1 - 3 - 6
    for option in options:
        assert option.plan is not None
        assert option.plan == make_plan(option.plan.setup)


@pytest.mark.parametrize(
    ("changes", "label", "why"),
    [
        ({"kv_dtype": "fp8"}, "fp8 KV cache", "fp8 already"),
        ({"max_model_len": 1500}, "half the max_model_len", "less than 1,024"),
        ({"memory": card(GIB, "0.97")}, "gpu_memory_utilization 0.95", "0.97 already"),
        ({"memory": 48 * GIB}, "gpu_memory_utilization 0.95", "given directly"),
        ({"memory": 48 * GIB}, "TP × 2", "how much memory the weights take is not known"),
        ({"shape": typed_model(32, 12, 128)}, "TP × 8", "--tp 8: does not go with 12 KV heads"),
    ],
)
def test_what_cannot_be_had_says_why(changes: dict[str, Any], label: str, why: str) -> None:
    option = named(singles(replace(CASE, **changes)), label)
    assert option.plan is None
    assert why in option.unavailable


def test_options_count_from_nothing_without_dividing_by_it() -> None:
    tiny = replace(CASE, memory=GIB)
    assert {option.factor for option in singles(tiny)} == {0.0}
