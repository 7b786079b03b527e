"""A model's KV layers from its parsed `config.json`. Contract and words: `model_shape`.

Sources, all of vLLM 0.32: the precedence of fields (`ModelArchConfigConvertor`), the models that latent
attention is used for, the layers that own no cache (`num_kv_shared_layers`), and what checkpoints say of the
KV cache's dtype (`resolve_kv_cache_dtype_string`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvgate_policies.model_shape import Kind, KVLayer, ModelShape
from kvgate_policies.model_shape_fields import Fields, text_part
from kvgate_policies.model_shape_kinds import Does, layer_kinds
from kvgate_policies.model_shape_state import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LATENT_TYPES = frozenset(
    [
        "axk1",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_mtp",
        "glm_moe_dsa",
        "glm4_moe_lite",
        "kimi_k2",
        "kimi_linear",
        "longcat_flash",
        "pangu_ultra_moe",
        "bailing_hybrid",
    ]
)
"""The `model_type`s that vLLM serves with latent attention, of those that say their `kv_lora_rank`."""
_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length",
)  # fmt: skip
_DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_INDEX_DIM = 128
_INDEX_SCALE_BYTES = 4
"""One float32 scale for each 128 fp8 elements of an index key."""
_DTYPES = {"float32": "bfloat16"}
"""vLLM's `--dtype auto` loads a float32 checkpoint in 16 bits."""
_UNKNOWN_LAYOUTS = {
    "compress_ratios": "its KV cache is compressed layer by layer (DeepSeek-V4)",
    "rswa_window": "it keeps a window of what it generated only",
    "per_layer_config": "its layers are described one by one",
    "hybrid_layer_pattern": "its windowed layers have other heads (MiMo-V2)",
    "attention_other_setting": "its windowed layers have other heads (Step-3.5)",
}


def read_model(config: Mapping[str, object]) -> ModelShape:
    """The shape of the model that `config` describes. Raises ModelShapeError."""
    fields = text_part(config)
    _refuse_unknown_layouts(fields)
    if fields.flag("is_encoder_decoder"):
        return _encoder_decoder(fields)
    return _decoder(fields, Fields(config))


def _refuse_unknown_layouts(fields: Fields) -> None:
    for name, why in _UNKNOWN_LAYOUTS.items():
        if fields.has(name):
            raise fields.error(name, f"is set: {why}", "a model whose layout this planner knows, without it")


@dataclass(frozen=True, slots=True)
class _Attention:
    """The attention of one decoder layer."""

    kind: Kind
    kv_heads: int
    head_dim: int
    head_dim_v: int
    index_bytes: int = 0

    def layers(self, index: int, kind: Kind, window: int | None) -> Iterator[KVLayer]:
        mine = self.kind if kind is Kind.FULL else kind
        yield KVLayer(index, mine, self.kv_heads, self.head_dim, self.head_dim_v, window)
        if self.index_bytes:
            yield KVLayer(index, Kind.INDEX, head_dim=self.index_bytes)


def _decoder(fields: Fields, top: Fields) -> ModelShape:
    kinds = layer_kinds(fields)
    shared = fields.optional("num_kv_shared_layers") or 0
    if shared >= len(kinds):
        raise fields.error("num_kv_shared_layers", f"is {shared}", f"fewer than the {len(kinds)} layers")
    owning = kinds[: len(kinds) - shared]
    layers = tuple(_layers(fields, owning))
    drafts = _drafts(fields, layers, len(kinds))
    sparse = any(layer.kind is Kind.INDEX for layer in layers)
    return ModelShape(
        layers=layers,
        depth=len(kinds),
        dtype=_dtype(fields, top),
        kv_dtype=_checkpoint_kv_dtype(fields, top) or ("fp8_ds_mla" if sparse else None),
        attention_heads=fields.optional(*_HEADS, least=1),
        max_model_len=min((n for name in _LENGTHS if (n := fields.optional(name, least=1))), default=None),
        name=top.text("_name_or_path") or fields.text("model_type"),
        draft_layers=drafts,
        notes=tuple(_notes(fields, kinds, shared)),
    )


def _layers(fields: Fields, kinds: tuple[Does, ...]) -> Iterator[KVLayer]:
    attends = any(kind not in {Does.STATE, Does.NOTHING} for kind in kinds)
    attention = _attention(fields) if attends else None
    state = state_of(fields) if any(kind in {Does.STATE, Does.BOTH} for kind in kinds) else None
    window, chunk = _window(fields), fields.optional("attention_chunk_size", least=1)
    own = _own_heads(fields, len(kinds))
    for index, kind in enumerate(kinds):
        if state is not None and kind in {Does.STATE, Does.BOTH}:
            yield KVLayer(index, Kind.STATE, state=state)
        if attention is None or kind in {Does.STATE, Does.NOTHING} or own.get(index) == 0:
            continue
        mine = replace(attention, kv_heads=own[index]) if index in own else attention
        if kind is Does.SLIDING:
            yield from mine.layers(index, Kind.SLIDING, window)
        elif kind is Does.CHUNKED:
            yield from mine.layers(index, Kind.CHUNKED, chunk)
        else:
            yield from _global(fields, mine).layers(index, Kind.FULL, None)


def _attention(fields: Fields) -> _Attention:
    if _is_latent(fields):
        stored = fields.count("kv_lora_rank") + (fields.optional("qk_rope_head_dim") or 0)
        return _Attention(Kind.LATENT, 1, stored, 0, _index_bytes(fields))
    size = _head_dim(fields)
    return _Attention(Kind.FULL, _kv_heads(fields), size, size)


def _is_latent(fields: Fields) -> bool:
    """Latent attention where vLLM has it; a model type it doesn't list is taken at its field's word."""
    return fields.has("kv_lora_rank") and fields.text("model_type") != "minicpm3"


def _index_bytes(fields: Fields) -> int:
    if not fields.has("index_topk"):
        return 0
    size = fields.count("index_head_dim", default=_INDEX_DIM)
    return size + size // _INDEX_DIM * _INDEX_SCALE_BYTES


def _kv_heads(fields: Fields) -> int:
    if fields.text("model_type") == "falcon" and not fields.flag("new_decoder_architecture"):
        return 1 if fields.values.get("multi_query", True) else fields.count(*_HEADS)
    if fields.text("model_type") == "gpt_bigcode" and fields.values.get("multi_query", True):
        return 1
    nested = fields.inner("attn_config")  # MPT, DBRX
    if nested is not None and nested.has("kv_n_heads"):
        return nested.count("kv_n_heads")
    return fields.count(*_KV_HEADS, *_HEADS)


def _head_dim(fields: Fields) -> int:
    """The size that is given, else the hidden size by the heads."""
    if fields.text("model_type") == "minicpm3":
        return fields.count("qk_nope_head_dim") + fields.count("qk_rope_head_dim")
    if fields.text("model_type") == "zamba2":
        return 2 * fields.count(*_HIDDEN) // fields.count(*_HEADS)
    if given := fields.optional("head_dim", "hidden_size_per_head"):
        return given
    hidden, heads = fields.count(*_HIDDEN), fields.count(*_HEADS)
    if hidden % heads:
        name = fields.first(*_HIDDEN) or _HIDDEN[0]
        raise fields.error(name, f"is {hidden}, which {heads} heads do not divide", "a multiple, or head_dim")
    return hidden // heads


def _global(fields: Fields, attention: _Attention) -> _Attention:
    """Gemma 4 has other heads where attention is full."""
    if not (fields.text("model_type") or "").startswith("gemma4"):
        return attention
    size = fields.count("global_head_dim", default=512)
    heads = (
        fields.optional("num_global_key_value_heads", least=1) if fields.flag("attention_k_eq_v") else None
    )
    return _Attention(attention.kind, heads or attention.kv_heads, size, size)


def _own_heads(fields: Fields, depth: int) -> dict[int, int]:
    """KV heads layer by layer, 0 for a layer without attention (Nemotron-NAS)."""
    if not fields.has("block_configs"):
        return {}
    blocks = fields.inners("block_configs")
    if len(blocks) < depth:
        raise fields.error("block_configs", f"has {len(blocks)} blocks", f"one for each of {depth} layers")
    heads = fields.count(*_HEADS)
    attention = [block.inner("attention") or block for block in blocks[:depth]]
    return {
        index: 0 if one.flag("no_op") else heads // one.count("n_heads_in_group")
        for index, one in enumerate(attention)
    }


def _window(fields: Fields) -> int | None:
    """Tokens that a windowed layer sees, itself included; Cohere's sees one more than it says."""
    window = fields.optional("sliding_window", "sliding_window_size")
    return window + 1 if window and fields.text("model_type") == "cohere2" else window


def _drafts(fields: Fields, layers: tuple[KVLayer, ...], depth: int) -> tuple[KVLayer, ...]:
    """Multi-token-prediction layers: like the last layer that attends."""
    count = fields.optional(*_DRAFTS) or 0
    index = max((one.index for one in layers if one.kind in {Kind.FULL, Kind.LATENT}), default=None)
    last = [one for one in layers if one.index == index and one.kind is not Kind.STATE]
    return tuple(replace(one, index=depth + draft) for draft in range(count) for one in last)


def _dtype(fields: Fields, top: Fields) -> str | None:
    for part in (top, fields):
        if (found := part.text("dtype", "torch_dtype")) is not None:
            name = found.removeprefix("torch.")
            return _DTYPES.get(name, name)
    return None


def _checkpoint_kv_dtype(fields: Fields, top: Fields) -> str | None:
    """What a quantized checkpoint asks for, where vLLM heeds it (ModelOpt, compressed-tensors)."""
    quantization = top.inner("quantization_config") or fields.inner("quantization_config")
    if quantization is None:
        return None
    inside = quantization.inner("quantization") if quantization.has("quantization") else None
    for part in (inside, quantization):
        if part is None:
            continue
        if isinstance(part.values.get("kv_cache_scheme"), dict):
            bits = (part.inner("kv_cache_scheme") or part).optional("num_bits")
            return {8: "fp8", 4: "nvfp4"}.get(bits or 0)
        if part.has("kv_cache_quant_algo"):
            return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(str(part.values["kv_cache_quant_algo"]).lower())
    return None


def _encoder_decoder(fields: Fields) -> ModelShape:
    """Whisper and its like: each decoder layer has its own cache and one of what the encoder heard."""
    depth = fields.count("decoder_layers", "num_hidden_layers")
    heads = fields.count("decoder_attention_heads", *_HEADS)
    size = fields.count(*_HIDDEN) // heads
    heard = fields.count("max_source_positions")
    layers = tuple(
        layer
        for index in range(depth)
        for layer in (
            KVLayer(index, Kind.FULL, heads, size, size),
            KVLayer(index, Kind.CROSS, heads, size, size, heard),
        )
    )
    length = fields.optional("max_target_positions", least=1)
    return ModelShape(
        layers, depth, _dtype(fields, fields), None, heads, length, fields.text("model_type"),
    )  # fmt: skip


def _notes(fields: Fields, kinds: tuple[Does, ...], shared: int) -> Iterator[str]:
    model_type = fields.text("model_type")
    if _is_latent(fields) and model_type not in _LATENT_TYPES:
        yield f"model_type {model_type!r} is new to this planner: taken for latent attention by its kv_lora_rank"
    if Does.CHUNKED in kinds:
        yield "vLLM keeps the whole context for chunked attention unless told otherwise: counted as full attention"
    if shared:
        yield f"the last {shared} layers share the cache of earlier ones and own none"
