"""Prices of models with several KV groups, against the blocks that vLLM's own KV cache manager held.

The rows were counted with vLLM 0.32 (prefix cache off, 8,192 tokens in a batch). The price is never below, and at most
one block for each group above.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.kv_cost import blocks_decoding, blocks_of, price, price_pooling
from kvgate_policies.kv_cost_groups import described_groups, fitted, full_sequence_blocks, in_words
from kvgate_policies.kv_groups import KVGroup
from kvgate_policies.model_shape import Kind, layers_in_words
from kvgate_policies.types import EngineShape
from unit.policies.kv_replay import Held, replay
from unit.policies.made import load

BATCH = 8192
FLYING = 2 * BATCH


def engine(name: str, block_size: int, max_model_len: int) -> EngineShape:
    shape = EngineShape(block_size, max_model_len, prefix_caching=True, in_flight_tokens=FLYING)
    return replace(shape, groups=described_groups(load(name), shape))


ENGINES = {
    "llama": engine("llama-3.1-8b", 16, 131_072),
    "gpt-oss": engine("gpt-oss-20b", 16, 131_072),
    "gemma": engine("gemma-3-27b", 16, 131_072),
    "qwen": engine("qwen3-next-80b", 544, 262_144),
}

ALONE = [  # prompt, output; wanted at admission, held after the prefill, at the peak, at the end
    ("llama", 16, 1, (1, 1, 1, 1)),
    ("llama", 17, 16, (2, 2, 2, 2)),
    ("llama", 1000, 200, (63, 63, 75, 75)),
    ("gpt-oss", 100, 50, (14, 14, 19, 19)),
    ("gpt-oss", 1000, 200, (126, 126, 126, 84)),
    ("gpt-oss", 4000, 500, (500, 500, 500, 291)),
    ("gpt-oss", 20000, 500, (2283, 1484, 1544, 1291)),
    ("gemma", 100, 50, (49, 49, 70, 70)),
    ("gemma", 1000, 200, (441, 441, 465, 465)),
    ("gemma", 4000, 500, (1750, 1750, 1750, 672)),
    ("gemma", 20000, 500, (7784, 2990, 4480, 1672)),
    ("qwen", 20, 5, (4, 4, 4, 4)),
    ("qwen", 500, 100, (4, 4, 8, 5)),
    ("qwen", 20000, 300, (40, 43, 44, 41)),
]
IN_FLIGHT = [  # the same with a step in flight; until the first token, and from it on
    ("gpt-oss", 100, 50, (14, 19)),
    ("gpt-oss", 1000, 200, (126, 84)),
    ("gpt-oss", 4000, 500, (502, 291)),
    ("gpt-oss", 20000, 500, (2048, 1291)),
    ("gemma", 4000, 500, (1757, 672)),
    ("gemma", 20000, 500, (7168, 1672)),
    ("qwen", 500, 100, (4, 8)),
    ("qwen", 20000, 300, (46, 44)),
]


def group_count(shape: EngineShape) -> int:
    return sum(group.count for group in shape.groups)


def alone(name: str, prompt: int, output: int, in_flight: int) -> Held:
    return replay(ENGINES[name], prompt, output, lambda: BATCH, in_flight=in_flight)


@pytest.mark.parametrize(("name", "prompt", "output", "blocks"), ALONE)
def test_the_replay_counts_as_vllm_does(name: str, prompt: int, output: int, blocks: tuple[int, ...]) -> None:
    held = alone(name, prompt, output, 0)
    assert (held.gate, held.after_prefill, held.peak, held.end) == blocks


@pytest.mark.parametrize(("name", "prompt", "output", "blocks"), IN_FLIGHT)
def test_so_it_does_with_a_step_in_flight(
    name: str, prompt: int, output: int, blocks: tuple[int, int]
) -> None:
    held = alone(name, prompt, output, 1)
    assert (held.reading, held.decoding) == blocks


@pytest.mark.parametrize(("name", "prompt", "output", "blocks"), ALONE)
def test_the_price_is_what_vllm_wants_and_holds(
    name: str, prompt: int, output: int, blocks: tuple[int, ...]
) -> None:
    shape, (gate, _, peak, end) = ENGINES[name], blocks
    reserved = price(shape, [prompt], output, 1).blocks
    assert 0 <= reserved - max(gate, peak) <= group_count(shape)
    left = blocks_decoding(shape, [prompt], output, 1)
    assert 0 <= left - max(end, alone(name, prompt, output, 0).decoding) <= group_count(shape)


def test_windows_are_given_back_at_the_first_token() -> None:
    gemma = ENGINES["gemma"]
    assert price(gemma, [4000], 500, 1).blocks == 7 * 251
    assert blocks_decoding(gemma, [4000], 500, 1) == 282 + 6 * 66


def test_of_several_sequences_nothing_is_given_back_at_the_first_token() -> None:
    """Others may still be reading."""
    gemma = ENGINES["gemma"]
    for prompts, n in (([4000], 2), ([4000, 10], 1)):
        assert blocks_decoding(gemma, prompts, 500, n) == price(gemma, prompts, 500, n).blocks


def test_one_state_short_of_a_block_is_one_block_and_a_hit_on_a_part_of_one_another() -> None:
    assert price(ENGINES["qwen"], [20], 5, 1).blocks == 1 + 3 * 2
    assert blocks_decoding(ENGINES["qwen"], [20], 5, 1) == 1 + 3
    without = replace(ENGINES["qwen"], prefix_caching=False)
    assert price(without, [20_000], 300, 1).blocks == 38 + 3


def test_drafts_take_a_state_each() -> None:
    drafting = replace(ENGINES["qwen"], speculative_tokens=2)
    assert blocks_decoding(drafting, [20], 5, 1) == 2 + 3 * (1 + 2)


def test_cross_attention_is_the_same_for_every_length() -> None:
    whisper = EngineShape(16, 448, groups=(KVGroup(Kind.FULL), KVGroup(Kind.CROSS, window=1500)))
    assert price(whisper, [4], 13, 1).blocks == 1 + 94
    assert price(whisper, [4], 400, 1).blocks == 26 + 94


def test_pooling_costs_what_reading_takes() -> None:
    assert price_pooling(ENGINES["gemma"], [4000]).blocks == 7 * 250


def test_groups_that_all_keep_everything_share_a_prompt_and_others_do_not() -> None:
    two = EngineShape(16, 4096, prefix_caching=True, groups=(KVGroup(count=2),))
    assert price(two, [33], 1, 3).blocks == 2 * (2 + 3 * 1)
    windowed = replace(two, groups=(KVGroup(), KVGroup(Kind.SLIDING, window=1024)))
    assert price(windowed, [33], 1, 3).blocks == 3 * 2 * 3


# A description and an engine ------------------------------------------------------------------------------


def test_groups_come_from_the_description() -> None:
    sliding = KVGroup(Kind.SLIDING, 16, 1024, count=6)
    assert set(ENGINES["gemma"].groups) == {sliding, KVGroup(Kind.FULL, 16)}
    assert set(ENGINES["qwen"].groups) == {KVGroup(Kind.STATE, 544, count=3), KVGroup(Kind.FULL, 544)}
    assert ENGINES["llama"].groups == (KVGroup(Kind.FULL, 16),)
    assert in_words(ENGINES["gemma"]) == "6 sliding window of 1,024, 1 full attention"
    assert layers_in_words(load("gpt-oss-20b")) == (
        "12 layers of sliding window (128), 12 layers of full attention"
    )


@pytest.mark.parametrize(("name", "full"), [("gpt-oss", 9225), ("gemma", 8192 + 6 * 1089)])
def test_the_tokens_in_flight_come_from_the_engines_own_count(name: str, full: int) -> None:
    found = fitted(ENGINES[name], full, 0.5)
    assert found is not None
    assert FLYING <= found.in_flight_tokens < FLYING + 16
    assert full_sequence_blocks(found) == full


def test_one_block_more_or_less_is_another_model() -> None:
    for full in (8192 + 6 * 1089 + 1, 8192 + 6 * 1089 - 1, 8192, 8192 * 8):
        assert fitted(ENGINES["gemma"], full, 0.5) is None


def test_a_checkpoint_of_states_shows_in_the_count() -> None:
    qwen = ENGINES["qwen"]
    for full, checkpoints in ((482 + 3 * 2, 0), (482 + 3 * 3, 1)):
        found = fitted(qwen, full, 0.5)
        assert found is not None
        assert {group.checkpoints for group in found.groups if group.kind is Kind.STATE} == {checkpoints}
    assert fitted(qwen, 482 + 3 * 4, 0.5) is None


@given(st.sampled_from(["gpt-oss", "gemma"]), st.integers(1, 200_000), st.integers(1000, 200_000))
def test_what_an_engine_counts_is_found_again_and_never_less(name: str, flying: int, window: int) -> None:
    shape = replace(ENGINES[name], in_flight_tokens=flying, max_model_len=window)
    found = fitted(shape, full_sequence_blocks(shape), 0.5)
    assert found is not None
    assert found.in_flight_tokens >= min(flying, window)
    prompt = window - 1
    assert 0 <= blocks_of(found, prompt) - blocks_of(shape, prompt) <= group_count(shape)


# Any model ------------------------------------------------------------------------------------------------

tokens_kept = st.sampled_from([Kind.FULL, Kind.LATENT, Kind.SLIDING, Kind.CHUNKED])
of_tokens = st.builds(
    KVGroup, kind=tokens_kept, block_size=st.sampled_from([1, 4, 16, 48]), window=st.integers(1, 300), count=st.integers(1, 3)
)  # fmt: skip
of_states = st.builds(
    KVGroup, kind=st.just(Kind.STATE), block_size=st.sampled_from([16, 48, 544]), count=st.integers(1, 3)
)
groups = st.lists(st.one_of(of_tokens, of_states), min_size=1, max_size=3)


@given(
    groups,
    st.integers(1, 700),
    st.integers(1, 150),
    st.sampled_from([8, 32, 128, 512]),
    st.sampled_from([0, 1]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_never_below_what_an_engine_wants_or_holds(
    made: list[KVGroup], prompt: int, output: int, batch: int, in_flight: int, caching: bool, seed: int
) -> None:
    shape = EngineShape(16, 750, caching, groups=tuple(made), in_flight_tokens=(in_flight + 1) * batch)
    rng = Random(seed)
    held = replay(shape, prompt, output, lambda: rng.randint(1, batch), in_flight=in_flight)
    reserved = price(shape, [prompt], output, 1).blocks
    assert reserved >= max(held.gate, held.peak)
    assert blocks_decoding(shape, [prompt], output, 1) >= held.decoding


attention = st.builds(
    KVGroup, kind=st.sampled_from([Kind.FULL, Kind.SLIDING]), block_size=st.sampled_from([4, 16]), window=st.integers(1, 200)
)  # fmt: skip


@given(
    st.lists(attention, min_size=1, max_size=3), st.integers(1, 400), st.integers(1, 90), st.integers(1, 6)
)
def test_nor_with_drafts(made: list[KVGroup], prompt: int, output: int, drafts: int) -> None:
    shape = EngineShape(16, 500, speculative_tokens=drafts, groups=tuple(made), in_flight_tokens=128)
    held = replay(shape, prompt, output, lambda: 64, in_flight=1)
    assert price(shape, [prompt], output, 1).blocks >= max(held.gate, held.peak)
    assert blocks_decoding(shape, [prompt], output, 1) >= held.decoding


@given(
    groups, st.integers(0, 800), st.integers(1, 800), st.booleans(), st.integers(0, 3), st.integers(0, 600)
)
def test_monotone_in_prompt_and_output(
    made: list[KVGroup], prompt: int, output: int, caching: bool, drafts: int, flying: int
) -> None:
    shape = EngineShape(16, 750, caching, drafts, groups=tuple(made), in_flight_tokens=flying)
    blocks, left = price(shape, [prompt], output, 1).blocks, blocks_decoding(shape, [prompt], output, 1)
    assert left <= blocks
    for longer in (price(shape, [prompt + 1], output, 1), price(shape, [prompt], output + 1, 1)):
        assert longer.blocks >= blocks
    assert blocks_decoding(shape, [prompt + 1], output, 1) >= left
    assert blocks_decoding(shape, [prompt], output + 1, 1) >= left


@given(
    st.sampled_from([1, 7, 16, 32]), st.integers(2, 500), st.booleans(), st.integers(0, 5),
    st.lists(st.integers(0, 600), max_size=3), st.integers(-1, 600), st.integers(1, 4),
    st.sampled_from([Kind.FULL, Kind.LATENT, Kind.INDEX]),
)  # fmt: skip
def test_one_group_that_keeps_everything_is_the_plain_price(
    size: int, window: int, caching: bool, drafts: int, prompts: list[int], output: int, n: int, kind: Kind
) -> None:
    plain = EngineShape(size, window, caching, drafts)
    described = replace(plain, groups=(KVGroup(kind, size),), in_flight_tokens=17)
    assert price(described, prompts, output, n) == price(plain, prompts, output, n)
