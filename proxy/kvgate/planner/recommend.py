"""The command line of vLLM and the policy file of kvgate that a plan comes to. Pure."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from kvgate_policies.capacity_setup import UTILIZATION_DEFAULT, Memory

if TYPE_CHECKING:
    from kvgate.planner.question import Question
    from kvgate_policies.capacity import Plan

SEQUENCES_LEAST = 256
"""Sequence slots: kvgate's default. Shorter sessions take fewer blocks, so more of them fit than of the longest."""
BACKEND = "http://127.0.0.1:8000"
DRAFT_MODEL = "DRAFT_MODEL"
"""Which model drafts is not asked; a word to put it in the place of, as MODEL is."""
_PLAIN = re.compile(r"[\w.:/~%+-]+")
"""What needs no quotes in a YAML list in one line; an IPv6 address does."""


def sequence_slots(plan: Plan) -> int:
    """For vLLM's `--max-num-seqs` and kvgate's setting of the same name, of one engine."""
    return max(SEQUENCES_LEAST, plan.max_sequences_engine // plan.setup.data_parallel)


def vllm_command(plan: Plan, question: Question) -> str:
    """`vllm serve …`. What is vLLM's own default is left out."""
    setup = plan.setup
    model = (
        shlex.quote(str(question.model.parent if question.model.is_file() else question.model))
        if question.model
        else "MODEL"
    )
    options: dict[str, object] = {"--max-model-len": setup.max_model_len}
    if question.dtype != "auto":
        options["--dtype"] = setup.dtype
    if setup.kv_dtype != "auto":
        options["--kv-cache-dtype"] = setup.kv_dtype
    if isinstance(setup.memory, Memory):
        if setup.memory.utilization != UTILIZATION_DEFAULT:
            options["--gpu-memory-utilization"] = f"{float(setup.memory.utilization):g}"
    elif question.kv_cache_memory is not None:
        options["--kv-cache-memory-bytes"] = setup.memory
    if question.block_size is not None:
        options["--block-size"] = question.block_size
    options |= _parallel(plan)
    if question.batched_tokens is not None:
        options["--max-num-batched-tokens"] = question.batched_tokens
    if setup.draft_tokens:
        drafts = {"model": DRAFT_MODEL, "num_speculative_tokens": setup.draft_tokens}
        options["--speculative-config"] = shlex.quote(json.dumps(drafts))
    options["--max-num-seqs"] = sequence_slots(plan)
    caching = {None: [], True: ["--enable-prefix-caching"], False: ["--no-enable-prefix-caching"]}
    valued = (f"{name} {value}" for name, value in options.items())
    return " ".join(["vllm serve", model, *valued, *caching[question.prefix_caching]])


def _parallel(plan: Plan) -> dict[str, object]:
    setup = plan.setup
    numbers = {
        "--tensor-parallel-size": setup.tensor_parallel,
        "--pipeline-parallel-size": setup.pipeline_parallel,
        "--data-parallel-size": setup.data_parallel,
        "--decode-context-parallel-size": setup.context_parallel,
    }
    return {name: number for name, number in numbers.items() if number > 1}


def policy_file(plan: Plan, question: Question) -> str:
    """A policy for `kvgate serve --policy`, valid for `kvgate policy check`."""
    backend = (question.backend or BACKEND).rstrip("/").removesuffix("/v1")
    lines = [
        "version: 1",
        "pools:",
        "  planned:",
        f"    backends: [{backend if _PLAIN.fullmatch(backend) else json.dumps(backend)}]",
        f"    max_num_seqs: {sequence_slots(plan)}",
    ]
    if plan.setup.draft_tokens:
        lines.append(f"    speculative_tokens: {plan.setup.draft_tokens}")
    lines += ["defaults:", "  queue: {depth: 200, wait: 30s}"]
    return "\n".join(lines) + "\n"
