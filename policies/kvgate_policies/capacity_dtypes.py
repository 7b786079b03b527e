"""How many bytes does a layer write for each token, in each KV cache dtype?

Full attention, for each KV head of one GPU, key size k and value size v in elements:

    16 bits, 32 bits, fp8    (k + v) · bytes of an element      the scales of fp8 are kept elsewhere
    int8 per token and head  (k + v) + 8                         two float32 scales
    int4 per token and head  (k + v) / 2 + 8
    nvfp4                    (k + v) · (1/2 + 1/16)              packed, and a scale for each 16 elements

Latent attention writes one vector of k elements on every GPU; its packed layouts write a fixed number of bytes.
Source: vLLM 0.32, `AttentionSpec`, `MLAAttention.get_kv_cache_spec`, the backends' `customize_spec`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate_policies.model_shape import Kind

if TYPE_CHECKING:
    from kvgate_policies.model_shape import KVLayer, ModelShape


class CapacityError(ValueError):
    """The sum can't be made; the message says what is wrong, where, and what is allowed."""


ELEMENT_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
PACKED_BITS = {"int8_per_token_head": 8, "fp8_per_token_head": 8, "int4_per_token_head": 4}
PACKED_SCALES_BYTES = 8
NVFP4_BLOCK = 16
"""Elements that share a scale byte."""
LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of a token and layer in the packed layouts of DeepSeek's latent vector (512 + 64 elements)."""
LATENT_PACKED_DIM = 576

ALIASES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}
AUTO = "auto"
KV_DTYPES = (AUTO, *ELEMENT_BYTES, *PACKED_BITS, "nvfp4", *LATENT_BYTES)
DTYPES = (AUTO, "float16", "bfloat16", "float32")


def dtype_named(name: str, allowed: tuple[str, ...], option: str) -> str:
    """vLLM's name of a dtype; short names are understood. Raises CapacityError."""
    full = ALIASES.get(name.lower(), name.lower())
    if full not in allowed:
        short = [alias for alias, long in ALIASES.items() if long in allowed]
        raise CapacityError(f"{option}: {name!r} is not allowed; allowed: {', '.join((*allowed, *short))}")
    return full


def resolve_dtype(shape: ModelShape, dtype: str) -> str:
    """The dtype of weights and activations: as given, or else the model's, or else 16 bits."""
    return (shape.dtype or "bfloat16") if dtype == AUTO else dtype


def resolve_kv_dtype(shape: ModelShape, kv_dtype: str, dtype: str) -> str:
    """The KV cache's dtype: as given, or else what the checkpoint asks for, or else the model's own.

    Raises CapacityError for one that this model can't have.
    """
    resolved = kv_dtype if kv_dtype != AUTO else (shape.kv_dtype or resolve_dtype(shape, dtype))
    if resolved not in KV_DTYPES:
        raise CapacityError(f"the model's dtype {resolved!r} is not known; allowed: {', '.join(KV_DTYPES)}")
    for layer in shape.layers:
        _check(layer, resolved)
    return resolved


def _check(layer: KVLayer, dtype: str) -> None:
    if layer.kind in {Kind.STATE, Kind.INDEX}:
        return
    latent = layer.kind is Kind.LATENT
    if dtype in LATENT_BYTES and not (latent and layer.head_dim == LATENT_PACKED_DIM):
        raise CapacityError(
            f"KV cache dtype {dtype}: a layout of DeepSeek's latent attention with {LATENT_PACKED_DIM} elements; "
            f"this model has {layer.kind} with {layer.head_dim}. Take fp8"
        )
    if latent and (dtype in PACKED_BITS or dtype == "nvfp4"):
        raise CapacityError(f"KV cache dtype {dtype}: not for latent attention. Take fp8 or fp8_ds_mla")
    if dtype == "nvfp4" and (layer.head_dim % NVFP4_BLOCK or layer.head_dim != layer.head_dim_v):
        raise CapacityError(
            f"KV cache dtype nvfp4: needs a head dimension that {NVFP4_BLOCK} divides, the same for keys and "
            f"values; here they are {layer.head_dim} and {layer.head_dim_v}"
        )


def heads_on_gpu(kv_heads: int, tensor_parallel: int) -> int:
    """KV heads of one GPU: they are split, and copied where there are more GPUs than heads.

    Raises CapacityError where neither divides the other.
    """
    if kv_heads % tensor_parallel and tensor_parallel % kv_heads:
        raise CapacityError(
            f"--tp {tensor_parallel}: does not go with {kv_heads} KV heads; allowed: a number that divides them, "
            "or a multiple of them"
        )
    return max(1, kv_heads // tensor_parallel)


def token_bytes(layer: KVLayer, kv_dtype: str, tensor_parallel: int) -> int:
    """Bytes that one GPU writes for a token in this layer; 0 for a recurrent state."""
    if layer.kind is Kind.STATE:
        return 0
    if layer.kind is Kind.INDEX:
        return layer.head_dim
    if layer.kind is Kind.LATENT:
        return LATENT_BYTES.get(kv_dtype) or layer.head_dim * ELEMENT_BYTES[kv_dtype]
    return heads_on_gpu(layer.kv_heads, tensor_parallel) * _head_bytes(layer, kv_dtype)


def _head_bytes(layer: KVLayer, kv_dtype: str) -> int:
    elements = layer.head_dim + layer.head_dim_v
    if kv_dtype in PACKED_BITS:
        return elements * PACKED_BITS[kv_dtype] // 8 + PACKED_SCALES_BYTES
    if kv_dtype == "nvfp4":
        return elements // 2 + elements // NVFP4_BLOCK
    return elements * ELEMENT_BYTES[kv_dtype]


def state_bytes(layer: KVLayer, dtype: str, tensor_parallel: int, draft_tokens: int) -> int:
    """Bytes of a recurrent state of one sequence on one GPU; 0 for a layer without one."""
    if layer.state is None:
        return 0
    inputs, matrices = layer.state.elements(tensor_parallel, draft_tokens)
    own = layer.state.head_dtype or dtype
    return inputs * ELEMENT_BYTES[dtype] + matrices * ELEMENT_BYTES[own]
