"""The planner counts blocks as vLLM does: whole engines, and its grouping of layers case by case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvgate_policies.capacity import make_plan
from kvgate_policies.capacity_groups import Page, Serving, blocks_bound, group_layers
from kvgate_policies.capacity_setup import Setup
from kvgate_policies.model_shape import Kind
from kvgate_policies.model_shape_read import read_model
from vllm import environment, server
from vllm.model import CONFIG, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

RUN_S_MAX = 500.0
"""Importing vLLM takes 5 s on a quiet machine and minutes on a busy one; an engine of this size 2 s more."""
WINDOW = 1024

TINY = [
    # KV heads (of 8), head size, dtype, block size, bytes for the cache
    pytest.param(8, 32, "float32", 32, 50_000_000, id="MHA"),
    pytest.param(2, 32, "float32", 32, 50_000_000, id="GQA"),
    pytest.param(1, 32, "float32", 32, 33_554_431, id="MQA, a byte short of a block"),
    pytest.param(2, 64, "float32", 32, 33_554_432, id="another head size"),
    pytest.param(2, 32, "bfloat16", 32, 50_000_000, id="another dtype"),
    pytest.param(4, 64, "bfloat16", 96, 77_777_777, id="another block size"),
]


def inside(script: str, *arguments: str, given: object) -> str:
    """Run a script of this folder with vLLM's own Python; its standard output."""
    home = environment.home()
    if environment.state(home) is not environment.State.COMPLETE:
        pytest.skip(f"no vLLM environment at {home}: `make test-vllm` builds it")
    # The recipe's bound on the CPU's cache would win over the bytes that are given.
    recipe = {name: value for name, value in server.RECIPE.items() if name != "VLLM_CPU_KVCACHE_SPACE"}
    environ = {**os.environ, **recipe, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [str(environment.python(home)), "-P", str(Path(__file__).with_name(script)), *arguments],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        timeout=RUN_S_MAX,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def tiny_config(kv_heads: int, head_dim: int, dtype: str) -> dict[str, Any]:
    return CONFIG | {"num_key_value_heads": kv_heads, "head_dim": head_dim, "torch_dtype": dtype}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int]]:
    """What six engines made of their memory."""
    folder = tmp_path_factory.mktemp("plan")
    arguments: list[dict[str, object]] = []
    for number, case in enumerate(TINY):
        kv_heads, head_dim, dtype, block_size, memory = case.values
        model = folder / str(number)
        write_model(model)
        (model / "config.json").write_text(json.dumps(tiny_config(kv_heads, head_dim, dtype)))  # type: ignore[arg-type]
        options = {"dtype": dtype, "block_size": block_size, "kv_cache_memory_bytes": memory}
        arguments.append({"model": str(model), "max_model_len": WINDOW, **options})
    result = folder / "blocks.json"
    inside("kvblocks.py", str(result), given=arguments)
    found: list[dict[str, int]] = json.loads(result.read_text())
    return found


@pytest.mark.parametrize(("kv_heads", "head_dim", "dtype", "block_size", "memory"), TINY)
def test_an_engine_has_exactly_the_planned_blocks(
    engines: list[dict[str, int]],
    kv_heads: int,
    head_dim: int,
    dtype: str,
    block_size: int,
    memory: int,
) -> None:
    [place] = [
        number
        for number, case in enumerate(TINY)
        if case.values == (kv_heads, head_dim, dtype, block_size, memory)
    ]
    shape = read_model(tiny_config(kv_heads, head_dim, dtype))
    plan = make_plan(Setup(shape, memory, WINDOW, dtype=dtype, block_size=block_size))
    assert engines[place] == {"num_gpu_blocks": plan.num_gpu_blocks, "block_size": plan.block_size}


def test_the_plan_of_a_running_server_agrees_with_it(engine: server.Engine, tmp_path: Path) -> None:
    """Its block count was given, so the memory follows from it; the ceiling is its own log line less one block."""
    write_model(tmp_path)
    command = [sys.executable, "-m", "kvgate", "plan", "--model", str(tmp_path), "--dtype", "fp32", "--json"]
    done = subprocess.run(
        [*command, "--backend", engine.url], capture_output=True, text=True, check=True, timeout=60
    )
    answer = json.loads(done.stdout)
    assert answer["num_gpu_blocks"] == answer["backend"]["num_gpu_blocks"] == server.BLOCKS
    assert answer["block_size"] == server.BLOCK_SIZE
    assert answer["tokens_per_sequence"] == server.MAX_MODEL_LEN
    assert answer["max_sequences_engine"] == (server.BLOCKS - 1) // (
        server.MAX_MODEL_LEN // server.BLOCK_SIZE
    )


# The grouping of layers, by vLLM's own code.

FULL = {"kind": Kind.FULL, "kv_heads": 8, "head_dim": 64, "window": None}
SMALL = FULL | {"kv_heads": 4}
WIDE = FULL | {"head_dim": 128}
ODD = FULL | {"head_dim": 48}
SLIDING = FULL | {"kind": Kind.SLIDING, "window": 128}
LONGER = SLIDING | {"window": 1024}
NARROW = SLIDING | {"kv_heads": 2}
ODD_SLIDING = SLIDING | {"head_dim": 48}
LATENT = {"kind": Kind.LATENT, "kv_heads": 1, "head_dim": 576, "window": None}
STATE = {"kind": Kind.STATE, "kv_heads": 1, "head_dim": 0, "window": None, "state_bytes": 10_000}

GROUPINGS: dict[str, list[dict[str, Any]]] = {
    "one kind": [FULL] * 4,
    "two sizes of one kind": [FULL, SMALL, WIDE] * 3,
    "one window": [SLIDING] * 5,
    "every second layer": [SLIDING, FULL] * 12,
    "five windows to one": ([SLIDING] * 5 + [FULL]) * 10 + [SLIDING] * 2,
    "nearly as many": [FULL] * 13 + [SLIDING] * 12,
    "just not nearly": [FULL] * 6 + [SLIDING] * 4,
    "two windows": [SLIDING, LONGER, LONGER] * 4,
    "two windows and full": [SLIDING, LONGER, FULL] * 4,
    "a smaller page": [NARROW, NARROW, FULL] * 4,
    "a page that does not divide": [ODD_SLIDING, FULL] * 4,
    "a larger page with a window": [SLIDING | {"head_dim": 256}, FULL, FULL] * 3,
    "latent": [LATENT] * 6,
    "states among attention": [STATE, STATE, STATE, FULL] * 6,
    "states among latent attention": [STATE, STATE, LATENT] * 4,
    "states, windows and attention": [STATE, SLIDING, FULL] * 4,
}
MEMORY = 10**11 + 7


def case_of(layers: list[dict[str, Any]], *, align: bool, batched_tokens: int) -> dict[str, Any]:
    page_bytes = max((token_bytes(layer) * 16 for layer in layers), default=0)
    return {
        "layers": [layer | {"page_bytes": page_bytes} for layer in layers],
        "block_size": 16,
        "max_model_len": 8192,
        "batched_tokens": batched_tokens,
        "align": align,
        "hybrid": True,
        "memory": MEMORY,
    }


def token_bytes(layer: dict[str, Any]) -> int:
    sides = {Kind.LATENT: 1, Kind.STATE: 0}.get(layer["kind"], 2)
    return sides * int(layer["kv_heads"]) * int(layer["head_dim"]) * 2


def ours(case: dict[str, Any]) -> dict[str, Any]:
    pages = [
        Page(
            layer["kind"],
            token_bytes(layer) * 16 or layer["page_bytes"],
            0 if layer["kind"] is Kind.STATE else 16,
            layer["window"],
        )
        for layer in case["layers"]
    ]
    made, groups = group_layers(pages)
    serving = Serving(case["max_model_len"], 2 * case["batched_tokens"], prefix_caching=case["align"])
    return {
        "groups": [list(group.members) for group in groups],
        "num_blocks": MEMORY // max(sum(made[member].bytes for member in group.members) for group in groups),
        "per_sequence": float(sum(blocks_bound(group, serving) for group in groups)),
    }


def test_layers_are_grouped_as_vllm_groups_them() -> None:
    cases = {
        f"{name}, {'aligned' if align else 'not aligned'}, {batched}": case_of(
            layers, align=align, batched_tokens=batched
        )
        for name, layers in GROUPINGS.items()
        for align in (True, False)
        for batched in (256, 8192)
    }
    theirs = dict(zip(cases, json.loads(inside("kvgroups.py", given=list(cases.values()))), strict=True))
    for name, case in cases.items():
        found = theirs[name]
        found.pop("tokens")
        assert ours(case) == found, name
