"""From a `config.json` to KV layers: every family's way of saying it, and what is said of mistakes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvgate_policies.model_shape import Kind, KVLayer, ModelShape, ModelShapeError, State, typed_model
from kvgate_policies.model_shape_read import read_model

MODELS = Path(__file__).with_name("models")

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}


def load(name: str) -> ModelShape:
    return read_model(json.loads((MODELS / f"{name}.json").read_text()))


def kinds(shape: ModelShape) -> str:
    """A letter for each KV layer, in order."""
    letters = {
        Kind.FULL: "F", Kind.SLIDING: "S", Kind.CHUNKED: "K", Kind.STATE: "M", Kind.LATENT: "L",
        Kind.INDEX: "I", Kind.CROSS: "C",
    }  # fmt: skip
    return "".join(letters[layer.kind] for layer in shape.layers)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-2-7b", {Kind.FULL: 32}),
        ("llama-3.1-70b", {Kind.FULL: 80}),
        ("qwen2.5-72b", {Kind.FULL: 80}),
        ("deepseek-v3", {Kind.LATENT: 61}),
        ("deepseek-v3.2", {Kind.LATENT: 61, Kind.INDEX: 61}),
        ("gpt-oss-20b", {Kind.FULL: 12, Kind.SLIDING: 12}),
        ("gemma-3-27b", {Kind.FULL: 10, Kind.SLIDING: 52}),
        ("qwen3-next-80b", {Kind.FULL: 12, Kind.STATE: 36}),
        ("llama-4-scout", {Kind.FULL: 12, Kind.CHUNKED: 36}),
        ("mistral-7b-v0.1", {Kind.SLIDING: 32}),
        ("falcon-7b", {Kind.FULL: 32}),
    ],
)
def test_kinds_of_layers(name: str, expected: dict[Kind, int]) -> None:
    assert load(name).kinds() == expected


@pytest.mark.parametrize(
    ("name", "heads", "size"),
    [
        ("llama-2-7b", 32, 128),
        ("llama-3.1-8b", 8, 128),
        ("qwen3-30b-a3b", 4, 128),  # not 2048 / 32 = 64
        ("gemma-3-27b", 16, 128),  # not 5376 / 32 = 168
        ("gpt-oss-20b", 8, 64),  # not 2880 / 64 = 45
        ("deepseek-v3", 1, 576),  # not its num_key_value_heads of 128
        ("qwen3-next-80b", 2, 256),
        ("falcon-7b", 1, 64),
    ],
)
def test_heads(name: str, heads: int, size: int) -> None:
    attention = {
        (layer.kv_heads, layer.head_dim)
        for layer in load(name).layers
        if layer.kind not in {Kind.STATE, Kind.INDEX}
    }
    assert attention == {(heads, size)}


def test_what_the_model_says_of_itself() -> None:
    shape = load("gemma-3-27b")
    assert (shape.depth, shape.dtype, shape.max_model_len) == (62, "bfloat16", 131072)
    assert shape.attention_heads == 32


def test_a_layer_keeps_its_place_among_all() -> None:
    shape = load("qwen3-next-80b")
    full = [layer.index for layer in shape.layers if layer.kind is Kind.FULL]
    assert full == list(range(3, 48, 4))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "FFFFFFFF"),
        ({"sliding_window": 64}, "SSSSSSSS"),
        ({"sliding_window": 0}, "FFFFFFFF"),
        ({"sliding_window": None}, "FFFFFFFF"),
        ({"sliding_window": 64, "use_sliding_window": False}, "FFFFFFFF"),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 6}, "FFFFFFSS"),
        ({"sliding_window": 64, "sliding_window_pattern": 4}, "SSSFSSSF"),
        ({"sliding_window": 64, "sliding_window_pattern": "LLG"}, "SSFSSFSS"),
        ({"model_type": "gemma2", "sliding_window": 64}, "SFSFSFSF"),
        ({"model_type": "gemma3n", "sliding_window": 64, "num_kv_shared_layers": 3}, "SSSSF"),
        ({"layer_types": ["sliding_attention", "full_attention"] * 4, "sliding_window": 64}, "SFSFSFSF"),
        ({"layer_types": ["sliding_attention", "full_attention"] * 4}, "FFFFFFFF"),
        ({"attention_chunk_size": 32, "no_rope_layers": [1, 1, 1, 0] * 2}, "KKKFKKKF"),
        ({"attention_chunk_size": 32, "no_rope_layer_interval": 2}, "KFKFKFKF"),
        ({"num_kv_shared_layers": 5}, "FFF"),
    ],
)
def test_windows_and_chunks(changes: dict[str, object], expected: str) -> None:
    assert kinds(read_model(LLAMA | changes)) == expected


MAMBA_2 = {
    "mamba_n_heads": 16,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
}
JAMBA = {"mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4}
NEMOTRON = {
    "mamba_num_heads": 16, "mamba_head_dim": 32, "n_groups": 8, "ssm_state_size": 16, "conv_kernel": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected", "state"),
    [
        (
            {"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 1, **JAMBA},
            "MFMMMFMM",
            State(channels=512, taps=3, heads=512, head_elements=16),
        ),
        (
            {"layer_types": ["mamba"] * 7 + ["attention"], "mamba_expand": 2, **MAMBA_2},
            "MMMMMMMF",
            State(512, 3, 16, 512, groups=1, group_channels=32, drafts_add_taps=True),
        ),
        (
            {"model_type": "falcon_h1", "mamba_d_ssm": 384, "mamba_expand": 2, **MAMBA_2},
            "MF" * 8,
            State(384, 3, 16, 512, groups=1, group_channels=32, drafts_add_taps=True),
        ),
        (
            {"hybrid_override_pattern": "M-M*-MEM", **NEMOTRON},
            "MMFMM",
            State(512, 3, 16, 512, 8, 32, head_dtype="float32", drafts_add_taps=True),
        ),
        (
            {"full_attn_idxs": [2, 5], "conv_L_cache": 3, "conv_dim": 256},
            "MMFMMFMM",
            State(channels=256, taps=2),
        ),
    ],
)
def test_recurrent_states(changes: dict[str, object], expected: str, state: State) -> None:
    shape = read_model(LLAMA | changes)
    assert kinds(shape) == expected
    assert {layer.state for layer in shape.layers if layer.kind is Kind.STATE} == {state}


def test_zamba_has_attention_and_a_state_in_its_hybrid_layers() -> None:
    types = ["mamba", "mamba", "hybrid", "mamba"] * 2
    zamba = {"model_type": "zamba2", "layers_block_type": types, "n_mamba_heads": 8, "mamba_headdim": 64}
    shape = read_model(
        LLAMA | zamba | {"mamba_ngroups": 1, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
    )
    assert kinds(shape) == "MMMFM" * 2
    assert {layer.head_dim for layer in shape.layers if layer.kind is Kind.FULL} == {2 * 256 // 8}


def test_kimi_linear_counts_its_layers_from_one() -> None:
    linear = {"kda_layers": [1, 2, 3, 5, 6, 7], "full_attn_layers": [4, 8], "num_heads": 8, "head_dim": 32}
    latent = {"model_type": "kimi_linear", "kv_lora_rank": 64, "qk_rope_head_dim": 16}
    shape = read_model(LLAMA | latent | {"linear_attn_config": linear})
    assert kinds(shape) == "MMMLMMML"
    [state] = {layer.state for layer in shape.layers if layer.state is not None}
    assert state == State(3 * 256, 3, 8, 32 * 32, head_dtype="float32", drafts_add_taps=True)


def test_a_model_without_attention() -> None:
    mamba = {"model_type": "mamba", "num_hidden_layers": 4, "intermediate_size": 128, "state_size": 16}
    shape = read_model(mamba | {"conv_kernel": 4, "hidden_size": 64})
    assert kinds(shape) == "MMMM"


def test_state_elements_are_split_and_groups_copied() -> None:
    state = State(512, 3, 16, 512, groups=1, group_channels=32)
    assert state.elements(1) == ((512 + 32) * 3, 16 * 512)
    assert state.elements(4) == ((512 + 4 * 32) // 4 * 3, 4 * 512)
    with pytest.raises(ModelShapeError, match="16 state heads do not divide by 32 GPUs"):
        state.elements(32)


def test_draft_tokens_lengthen_the_convolution_where_vllm_keeps_them() -> None:
    assert State(64, 3, drafts_add_taps=True).elements(1, 2) == (64 * 5, 0)
    assert State(64, 3).elements(1, 2) == (64 * 3, 0)


def test_draft_layers_count_only_with_speculative_decoding() -> None:
    shape = load("deepseek-v3.2")
    assert Counter(layer.kind for layer in shape.draft_layers) == {Kind.LATENT: 1, Kind.INDEX: 1}
    assert shape.with_drafts().kinds() == {Kind.LATENT: 62, Kind.INDEX: 62}


@pytest.mark.parametrize(
    "nested",
    [
        {"text_config": LLAMA},
        {"llm_config": LLAMA},
        {"thinker_config": {"text_config": LLAMA, "audio_config": {"num_hidden_layers": 2}}},
    ],
)
def test_multimodal_models_nest_it(nested: dict[str, object]) -> None:
    assert read_model({"model_type": "some_vl", "dtype": "bfloat16"} | nested).kinds() == {Kind.FULL: 8}


def test_gemma_4_has_other_heads_where_attention_is_full() -> None:
    gemma = LLAMA | {
        "model_type": "gemma4_text",
        "num_hidden_layers": 6,
        "head_dim": 256,
        "sliding_window": 64,
    }
    shape = read_model(
        gemma | {"global_head_dim": 512, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
    )
    assert kinds(shape) == "SSSSSF"
    assert [(layer.kv_heads, layer.head_dim) for layer in shape.layers[-2:]] == [(2, 256), (1, 512)]


def test_cohere_sees_one_token_more_than_it_says() -> None:
    cohere = read_model(LLAMA | {"model_type": "cohere2", "sliding_window": 64})
    assert {layer.window for layer in cohere.layers} == {65, None}


def test_layers_without_attention_have_no_cache() -> None:
    attention = [{"no_op": True}, {"n_heads_in_group": 4}, {"n_heads_in_group": 8}, {"no_op": True}] * 2
    shape = read_model(LLAMA | {"block_configs": [{"attention": one} for one in attention]})
    assert [(layer.index, layer.kv_heads) for layer in shape.layers] == [(1, 2), (2, 1), (5, 2), (6, 1)]


def test_an_encoder_decoder_has_two_caches_in_each_layer() -> None:
    whisper = {
        "is_encoder_decoder": True, "decoder_layers": 2, "decoder_attention_heads": 4, "d_model": 64,
        "max_source_positions": 1500, "max_target_positions": 448,
    }  # fmt: skip
    shape = read_model(whisper)
    assert kinds(shape) == "FCFC"
    assert shape.layers[1] == KVLayer(0, Kind.CROSS, 4, 16, 16, 1500)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_scheme": None}, None),
        ({"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "awq"}, None),
    ],
)
def test_a_checkpoint_may_ask_for_a_cache_dtype(
    quantization: dict[str, object], expected: str | None
) -> None:
    assert read_model(LLAMA | {"quantization_config": quantization}).kv_dtype == expected


def test_sparse_attention_packs_its_cache_by_default() -> None:
    assert load("deepseek-v3.2").kv_dtype == "fp8_ds_mla"
    assert load("deepseek-v3").kv_dtype is None


def test_a_float32_checkpoint_is_loaded_in_16_bits() -> None:
    assert read_model(LLAMA | {"torch_dtype": "float32"}).dtype == "bfloat16"


def test_a_new_type_of_latent_attention_is_told_of() -> None:
    shape = read_model(LLAMA | {"model_type": "deepseek_v9", "kv_lora_rank": 512, "qk_rope_head_dim": 64})
    assert shape.kinds() == {Kind.LATENT: 8}
    assert "deepseek_v9" in shape.notes[0]


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in LLAMA.items() if name not in names}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (without("num_hidden_layers"), "num_hidden_layers: is missing"),
        (without("num_attention_heads", "num_key_value_heads"), "is missing"),
        (LLAMA | {"num_hidden_layers": "8"}, "num_hidden_layers: is '8'; allowed: a whole number from 1"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers: is 0; allowed: a whole number from 1"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers: is True"),
        (LLAMA | {"num_key_value_heads": -2}, "num_key_value_heads: is -2; allowed: a whole number from"),
        (LLAMA | {"hidden_size": 250}, "hidden_size: is 250, which 8 heads do not divide"),
        (LLAMA | {"head_dim": 1.5}, "head_dim: is 1.5"),
        (
            LLAMA | {"layer_types": ["full_attention"] * 7},
            "layer_types: has 7 layers, num_hidden_layers is 8",
        ),
        (
            LLAMA | {"layer_types": ["full_attention"] * 7 + ["ring"]},
            "layer_types[7]: is 'ring'; allowed: full_att",
        ),
        (LLAMA | {"layer_types": "full"}, "layer_types: is 'full'; allowed: a list of texts"),
        (
            LLAMA | {"hybrid_override_pattern": "M*X"},
            "hybrid_override_pattern: has 'X' at 2; allowed: *, M, -, E",
        ),
        (LLAMA | {"layer_types": ["mamba"] * 8}, "keep a recurrent state, and no field says of which size"),
        (LLAMA | {"num_kv_shared_layers": 8}, "num_kv_shared_layers: is 8; allowed: fewer than the 8 layers"),
        (LLAMA | {"compress_ratios": [4]}, "compress_ratios: is set"),
        (LLAMA | {"use_sliding_window": "no"}, "use_sliding_window: is 'no'; allowed: true or false"),
        ({"text_config": LLAMA | {"num_hidden_layers": None}}, "text_config.num_hidden_layers: is missing"),
        (LLAMA | {"block_configs": [{}]}, "block_configs: has 1 blocks; allowed: one for each of 8 layers"),
        (LLAMA | {"linear_attn_config": 3}, "linear_attn_config: is 3; allowed: an object"),
        ({}, "num_hidden_layers: is missing"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(config: dict[str, object], said: str) -> None:
    with pytest.raises(ModelShapeError) as caught:
        read_model(config)
    assert said in str(caught.value)


def test_typed_dimensions() -> None:
    shape = typed_model(32, 8, 128)
    assert shape.kinds() == {Kind.FULL: 32}
    assert shape.layers[5] == KVLayer(5, Kind.FULL, 8, 128, 128)
    with pytest.raises(ModelShapeError, match="kv_heads: 0 is not allowed"):
        typed_model(32, 0, 128)
