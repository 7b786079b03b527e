"""Pricing against what vLLM was seen to do, and against a simulation that grows block by block."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.kv_cost import (
    blocks_of,
    fits_empty,
    never_fits,
    output_tokens,
    price,
    price_pooling,
)
from kvgate_policies.types import ZERO_COST, EngineLimits, EngineShape, KVCost

SHAPE = EngineShape(block_size=32, max_model_len=2048)
CACHED = dataclasses.replace(SHAPE, prefix_caching=True)


def grown(shape: EngineShape, prompt_tokens: int, max_tokens: int, n: int) -> int:
    """Blocks held at the end by sequences that sample token after token, as the engine does it.

    Every sequence computes a slot for each known token but the last sampled one. Shared are the prompt's full
    blocks, without the one of its last token.
    """
    tables: list[list[object]] = []
    for sequence in range(n):
        table: list[object] = []
        known, computed = prompt_tokens, 0
        while True:
            while computed < known:
                if computed % shape.block_size == 0:
                    block = computed // shape.block_size
                    reusable = (block + 1) * shape.block_size <= prompt_tokens - 1
                    common = shape.prefix_caching and n > 1 and reusable
                    table.append(("prompt", block) if common else (sequence, block))
                computed += 1
            known += 1
            if known - prompt_tokens >= max_tokens or known >= shape.max_model_len:
                break
        tables.append(table)
    return len({block for table in tables for block in table})


@pytest.mark.parametrize(
    ("generated", "blocks"), [(1, 1), (2, 1), (3, 2), (34, 2), (35, 3), (66, 3), (67, 4)]
)
def test_prompt_of_31_takes_its_second_block_with_the_third_token(generated: int, blocks: int) -> None:
    """The token that is sampled last is never written: 31 + 2 tokens are 32 slots."""
    assert price(SHAPE, [31], generated, 1).blocks == blocks


@pytest.mark.parametrize(
    ("prompt", "generated", "blocks"),
    [
        (192, 129, 10),
        (192, 130, 11),
        (193, 128, 10),
        (193, 129, 11),
        (161, 160, 10),
        (1, 320, 10),
        (320, 1, 10),
    ],
)
def test_capacity_table_as_measured(prompt: int, generated: int, blocks: int) -> None:
    """Twelve at once on 120 usable blocks: no preemption at 320 slots, one at 321."""
    cost = price(SHAPE, [prompt], generated, 1)
    assert cost.blocks == blocks
    assert (12 * cost.blocks <= 120) == (prompt + generated - 1 <= 320)


@pytest.mark.parametrize(("generated", "blocks"), [(1, 10), (24, 10), (25, 10), (26, 14), (57, 14), (58, 18)])
def test_four_sequences_share_the_full_prompt_blocks(generated: int, blocks: int) -> None:
    """n=4, P=200: six full blocks are shared; the rest grows by four."""
    assert price(CACHED, [200], generated, 4).blocks == blocks


def test_last_prompt_token_has_a_block_of_its_own() -> None:
    """P=256 shares only 7 of its 8 full blocks."""
    assert price(CACHED, [256], 1, 4).blocks == 7 + 4
    assert price(SHAPE, [256], 1, 4).blocks == 4 * 8


def test_one_more_prompt_token_can_be_cheaper_when_it_fills_a_shared_block() -> None:
    """Why an estimate of P is no upper bound of the price where sequences share: up to n - 1 blocks less."""
    assert price(CACHED, [256], 10, 4).blocks == 7 + 4 * 2
    assert price(CACHED, [257], 10, 4).blocks == 8 + 4 * 1


def test_llama_examples() -> None:
    shape = EngineShape(block_size=16, max_model_len=8192)
    assert [price(shape, [p], m, 1).blocks for p, m in [(16, 1), (17, 16), (1000, 200)]] == [1, 2, 75]


def test_list_of_prompts_adds_up() -> None:
    one, two = price(SHAPE, [100], 50, 2), price(SHAPE, [7], 50, 2)
    assert price(SHAPE, [100, 7], 50, 2) == one + two
    assert price(SHAPE, [100, 7], 50, 2).seqs == 4
    assert price(SHAPE, [100, 7], 50, 2).prefill_tokens == 107
    assert price(SHAPE, [], 50, 1) == ZERO_COST


def test_each_prompt_is_clamped_to_its_own_window() -> None:
    assert price(SHAPE, [2000, 10], 2048, 1).blocks == 64 + 64
    assert price(SHAPE, [2000, 10], 100, 1).blocks == 64 + 4


@pytest.mark.parametrize("prompt", [2048, 2049, 10**9])
def test_prompt_beyond_the_window_is_priced_at_the_full_window(prompt: int) -> None:
    assert price(SHAPE, [prompt], 16, 1).blocks == 64
    assert price(CACHED, [prompt], 16, 3).blocks == 63 + 3


@pytest.mark.parametrize(("asked", "output"), [(-1, 1), (0, 1), (1, 1), (48, 48), (49, 48), (10**12, 48)])
def test_output_is_what_the_window_leaves(asked: int, output: int) -> None:
    assert output_tokens(SHAPE, 2000, asked) == output
    assert price(SHAPE, [2000], asked, 1) == price(SHAPE, [2000], output, 1)


def test_speculative_decoding_needs_one_more_block_but_never_more_than_the_window() -> None:
    drafting = dataclasses.replace(SHAPE, speculative_tokens=5)
    assert blocks_of(drafting, 64) == 2 + 1
    assert blocks_of(dataclasses.replace(SHAPE, speculative_tokens=16), 64) == 2 + 2
    assert blocks_of(drafting, 2048) == 64
    assert price(drafting, [100], 29, 3).blocks == 3 * 5


def test_opaque_groups_cost_the_most_a_sequence_can_hold() -> None:
    opaque = dataclasses.replace(CACHED, blocks_opaque=700, speculative_tokens=3)
    assert price(opaque, [1], 1, 1).blocks == 700
    assert price(opaque, [2000, 3], 1000, 2) == KVCost(blocks=4 * 700, seqs=4, prefill_tokens=2003)


def test_pooling_costs_the_prompt_for_one_pass() -> None:
    assert price_pooling(SHAPE, [32, 33, 5000]) == KVCost(blocks=1 + 2 + 64, seqs=3, prefill_tokens=5065)


def test_nonsense_is_refused_loudly() -> None:
    with pytest.raises(ValueError, match="n is 0"):
        price(SHAPE, [1], 1, 0)
    with pytest.raises(ValueError, match="-1 tokens"):
        price(SHAPE, [-1], 1, 1)


def limits(engine_id: str, blocks: int, seqs: int = 8, shape: EngineShape = SHAPE) -> EngineLimits:
    return EngineLimits(engine_id, shape, blocks=blocks, seqs=seqs, prefill_tokens=100)


def test_never_fits_goes_by_one_engine_and_not_by_the_sum() -> None:
    costs = {SHAPE: KVCost(blocks=70, seqs=1, prefill_tokens=10)}
    assert never_fits(costs, [limits("a", 40), limits("b", 40)])
    assert not never_fits(costs, [limits("a", 40), limits("b", 70)])


def test_never_fits_counts_slots_and_spares_the_prefill_bound() -> None:
    assert never_fits({SHAPE: KVCost(1, 9, 1)}, [limits("a", 40)])
    assert not never_fits({SHAPE: KVCost(1, 8, 10**6)}, [limits("a", 40)])


def test_never_fits_judges_engines_that_are_away_and_skips_those_without_a_price() -> None:
    costs = {SHAPE: KVCost(40, 1, 1)}
    away = dataclasses.replace(limits("a", 40), accepting=False)
    assert not never_fits(costs, [away])
    assert not never_fits(costs, [])
    assert not never_fits(costs, [limits("other", 1, shape=CACHED)])
    assert never_fits(costs, [limits("other", 1000, shape=CACHED), limits("a", 39)])


def test_fits_empty_is_exact_at_the_edge() -> None:
    assert fits_empty(KVCost(40, 8, 1), limits("a", 40))
    assert not fits_empty(KVCost(41, 8, 1), limits("a", 40))
    assert not fits_empty(KVCost(40, 9, 1), limits("a", 40))


shapes = st.builds(
    EngineShape,
    block_size=st.sampled_from([1, 2, 7, 16, 32]),
    max_model_len=st.integers(2, 150),
    prefix_caching=st.booleans(),
)
drafting_shapes = st.builds(
    EngineShape,
    block_size=st.integers(1, 64),
    max_model_len=st.integers(2, 500),
    prefix_caching=st.booleans(),
    speculative_tokens=st.integers(0, 10),
)
counts = st.integers(1, 600)


@given(shapes, st.integers(1, 149), st.integers(1, 200), st.integers(1, 4))
def test_price_is_the_brute_force_growth(shape: EngineShape, prompt: int, max_tokens: int, n: int) -> None:
    prompt = min(prompt, shape.max_model_len - 1)
    assert price(shape, [prompt], max_tokens, n).blocks == grown(shape, prompt, max_tokens, n)


@given(drafting_shapes, counts, counts, st.integers(1, 8))
def test_price_is_monotone(shape: EngineShape, prompt: int, max_tokens: int, n: int) -> None:
    blocks = price(shape, [prompt], max_tokens, n).blocks
    assert price(shape, [prompt], max_tokens + 1, n).blocks >= blocks
    assert price(shape, [prompt], max_tokens, n + 1).blocks >= blocks
    assert price(shape, [prompt + 1], max_tokens, 1).blocks >= price(shape, [prompt], max_tokens, 1).blocks


@given(drafting_shapes, st.lists(counts, max_size=5), counts, st.integers(1, 8))
def test_price_never_exceeds_full_windows(
    shape: EngineShape, prompts: list[int], max_tokens: int, n: int
) -> None:
    cost = price(shape, prompts, max_tokens, n)
    assert cost.blocks <= len(prompts) * n * -(-shape.max_model_len // shape.block_size)
    assert cost.seqs == len(prompts) * n
    assert cost.prefill_tokens == sum(prompts)


@given(drafting_shapes, counts, counts, st.integers(1, 8))
def test_sharing_only_ever_saves(shape: EngineShape, prompt: int, max_tokens: int, n: int) -> None:
    alone = dataclasses.replace(shape, prefix_caching=False)
    one = price(alone, [prompt], max_tokens, 1).blocks
    assert one <= price(shape, [prompt], max_tokens, n).blocks <= price(alone, [prompt], max_tokens, n).blocks
