"""Runs inside vLLM's environment: vLLM's own grouping of KV layers, for cases read from standard input as JSON.

A case has `layers` (kind, KV heads, head size, window, state bytes), `block_size`, `max_model_len`,
`batched_tokens`, `align` (recurrent states with prefix caching), `hybrid` (the hybrid cache manager is on) and
`memory` (bytes). The answer for each: the groups as lists of layer positions, tokens of a block by group,
`num_blocks`, and the blocks of one sequence of the whole window.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import torch  # type: ignore[import-not-found]

from vllm.v1.core import kv_cache_utils  # type: ignore[import-not-found]
from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found]
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout  # type: ignore[import-not-found]


def spec_of(layer, case):
    common = {
        "block_size": case["block_size"],
        "num_kv_heads": layer["kv_heads"],
        "head_size": layer["head_dim"],
        "dtype": torch.bfloat16,
    }
    if layer["kind"] == "sliding window":
        return SlidingWindowSpec(**common, sliding_window=layer["window"])
    if layer["kind"] == "latent attention":
        return MLAAttentionSpec(**common)
    if layer["kind"] == "recurrent state":
        return MambaSpec(
            block_size=case["block_size"] if case["align"] else case["max_model_len"],
            shapes=((layer["state_bytes"],),),
            dtypes=(torch.int8,),
            page_size_padded=layer["page_bytes"],
            mamba_cache_mode="align" if case["align"] else "none",
        )
    return FullAttentionSpec(**common)


def config_of(case):
    layout = KVCacheLayout.LBNHC
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=not case["hybrid"]),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            mamba_cache_mode="align" if case["align"] else "none",
            kv_cache_layout=layout.name,
            get_resolved_kv_cache_layout=lambda: layout,
            prefix_cache_retention_interval=None,
            enable_prefix_caching=True,
        ),
        model_config=SimpleNamespace(
            max_model_len=case["max_model_len"], original_max_model_len=None, hf_config=None
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, tensor_parallel_size=1, pipeline_parallel_size=1
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=2 * case["batched_tokens"],
    )


def answer(case):
    config = config_of(case)
    specs = {f"layer.{place}": spec_of(layer, case) for place, layer in enumerate(case["layers"])}
    [found] = kv_cache_utils.get_kv_cache_configs(config, [specs], [case["memory"]])
    concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, found)
    return {
        "groups": [
            [int(name.split(".")[1]) for name in group.layer_names] for group in found.kv_cache_groups
        ],
        "tokens": [group.kv_cache_spec.block_size for group in found.kv_cache_groups],
        "num_blocks": found.num_blocks,
        "per_sequence": round(found.num_blocks / concurrency, 6),
    }


json.dump([answer(case) for case in json.load(sys.stdin)], sys.stdout)
