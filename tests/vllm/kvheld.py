"""Runs inside vLLM's environment: the blocks that vLLM's own KV cache manager holds for one sequence, step by step.

A case has `groups` (kind, block size, window, for each group one), `max_model_len`, `in_flight_tokens`, `chunks` (the
tokens of each step that reads the prompt), `output`, and `in_flight` (steps that are not settled when the next one is
scheduled). The answer for each: the blocks wanted at admission, held at the most until the first token is out and the
step after it scheduled (`reading`), held at the most afterwards (`decoding`), and at the end.
"""

from __future__ import annotations

import json
import sys

import torch  # type: ignore[import-not-found]

from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found]
from vllm.v1.core.kv_cache_manager import KVCacheManager  # type: ignore[import-not-found]
from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found]
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request  # type: ignore[import-not-found]

BLOCKS = 40_000


def spec_of(group):
    size = group["block_size"]
    common = {"block_size": size, "num_kv_heads": 1, "head_size": 16, "dtype": torch.bfloat16}
    if group["kind"] == "sliding window":
        return SlidingWindowSpec(**common, sliding_window=group["window"])
    if group["kind"] == "chunked attention":
        return ChunkedLocalAttentionSpec(**common, attention_chunk_size=group["window"])
    if group["kind"] == "recurrent state":
        page = 2 * size * 16 * 2
        return MambaSpec(
            block_size=size,
            shapes=((page,),),
            dtypes=(torch.int8,),
            page_size_padded=page,
            mamba_cache_mode="align",
        )
    return FullAttentionSpec(**common)


class Sequence:
    def __init__(self, case):
        specs = [spec_of(group) for group in case["groups"]]
        groups = [KVCacheGroupSpec([str(place)], spec) for place, spec in enumerate(specs)]
        size = max(spec.block_size for spec in specs)
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups),
            max_model_len=case["max_model_len"],
            scheduler_block_size=size,
            hash_block_size=size,
            max_in_flight_tokens=case["in_flight_tokens"],
            enable_caching=False,
        )
        self.prompt = sum(case["chunks"])
        self.request = Request("r", list(range(self.prompt)), SamplingParams(max_tokens=case["output"]), None)
        self.in_flight, self.flying = case["in_flight"], []

    def wanted(self):
        return self.manager.coordinator.get_num_blocks_to_allocate(
            request_id="r",
            num_tokens=self.prompt,
            new_computed_blocks=self.manager.empty_kv_cache_blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=0,
            num_local_computed_tokens=0,
            num_tokens_main_model=self.prompt,
            apply_admission_cap=True,
        )

    def step(self, tokens):
        self.manager.new_step_starts()
        assert self.manager.allocate_slots(self.request, tokens) is not None
        self.request.num_computed_tokens += tokens
        self.request.num_in_flight_tokens += tokens
        self.flying.append(tokens)
        while len(self.flying) > self.in_flight:
            self.request.num_in_flight_tokens -= self.flying.pop(0)
        pool = self.manager.block_pool
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()


def answer(case):
    sequence = Sequence(case)
    wanted, reading, decoding, held = sequence.wanted(), 0, 0, 0
    for tokens in case["chunks"]:
        held = sequence.step(tokens)
        reading = max(reading, held)
    for generated in range(1, case["output"]):
        sequence.request.append_output_token_ids(7)
        held = sequence.step(1)
        if generated <= case["in_flight"]:
            reading = max(reading, held)
        else:
            decoding = max(decoding, held)
    return {"wanted": wanted, "reading": reading, "decoding": decoding, "end": held}


json.dump([answer(case) for case in json.load(sys.stdin)], sys.stdout)
