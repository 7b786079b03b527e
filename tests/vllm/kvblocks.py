"""Runs inside vLLM's environment: starts one engine after another and says how many KV blocks each made.

Reads a list of arguments for `vllm.LLM` from standard input as JSON, and writes a list of `num_gpu_blocks` and
`block_size` to the file that is its argument (standard output belongs to vLLM's progress bars). In one process,
since importing vLLM takes ten times as long as starting an engine of this size.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vllm import LLM  # type: ignore[attr-defined]
from vllm.distributed import cleanup_dist_env_and_memory  # type: ignore[import-not-found]

found = []
for arguments in json.load(sys.stdin):
    llm = LLM(load_format="dummy", enforce_eager=True, skip_tokenizer_init=True, **arguments)
    cache = llm.llm_engine.vllm_config.cache_config
    found.append({"num_gpu_blocks": cache.num_gpu_blocks, "block_size": cache.block_size})
    del llm
    cleanup_dist_env_and_memory()
Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
