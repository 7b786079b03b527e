"""What a running server says, and how it fills in and is compared with a plan."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from fractions import Fraction

import pytest

from kvgate.errors import ConfigError
from kvgate.planner import Question, Reported, ask_backend, make_answer
from kvgate.planner.backend import read_reported
from kvgate.planner.sizes import read_size

LABELS = {
    "block_size": "16",
    "num_gpu_blocks": "6100",
    "enable_prefix_caching": "True",
    "kv_cache_max_concurrency": "11.9140625",
    "cache_dtype": "auto",
    "gpu_memory_utilization": "0.85",
    "kv_cache_memory_bytes": "None",
    "num_gpu_blocks_override": "None",
    "engine": "0",
}
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "max_model_len": 8192}]}).encode()
CASE = Question(layers=32, kv_heads=32, head_dim=128)
MEMORY = replace(CASE, gpu_memory=read_size("80GiB"), weights=read_size("16GiB"), overhead=read_size("4GiB"))


def metrics(*engines: dict[str, str]) -> str:
    lines = ["# TYPE vllm:cache_config_info gauge"]
    for labels in engines:
        pairs = ",".join(f'{name}="{value}"' for name, value in (LABELS | labels).items())
        lines.append(f"vllm:cache_config_info{{{pairs}}} 1.0")
    return "\n".join(lines) + "\n"


def reported(*engines: dict[str, str]) -> Reported:
    return read_reported("http://a:1", metrics(*(engines or ({},))), MODELS)


def test_what_is_read() -> None:
    assert reported() == Reported(
        url="http://a:1",
        ranks=("0",),
        num_gpu_blocks=6100,
        block_size=16,
        max_model_len=8192,
        max_concurrency=11.9140625,
        prefix_caching=True,
        kv_dtype="auto",
        utilization=Fraction(85, 100),
        pool_bytes=None,
    )


def test_several_engines_have_their_share_of_the_printed_sum() -> None:
    both = reported({"num_gpu_blocks": "12200"}, {"num_gpu_blocks": "12200", "engine": "1"})
    assert (both.ranks, both.num_gpu_blocks) == (("0", "1"), 6100)
    assert make_answer(CASE, both).plan.setup.data_parallel == 2


def test_without_memory_figures_the_blocks_say_how_much_there_is() -> None:
    answer = make_answer(CASE, reported())
    assert answer.plan.num_gpu_blocks == 6100
    assert answer.plan.max_sequences_engine == (6100 - 1) // 512
    assert answer.blocks_off is None, "compared with itself"
    assert any("as the server reports" in sentence for sentence in answer.understood.assumed)


def test_with_memory_figures_the_plan_is_compared() -> None:
    answer = make_answer(MEMORY, reported())
    assert answer.plan.num_gpu_blocks == 6144
    assert answer.blocks_off == 44


def test_bytes_that_the_server_was_given_are_compared_too() -> None:
    answer = make_answer(CASE, reported({"kv_cache_memory_bytes": str(48 * 1024**3)}))
    assert (answer.plan.num_gpu_blocks, answer.blocks_off) == (6144, 44)
    overridden = {"kv_cache_memory_bytes": str(48 * 1024**3), "num_gpu_blocks_override": "6100"}
    assert make_answer(CASE, reported(overridden)).blocks_off is None


def test_what_is_typed_wins_over_what_is_reported() -> None:
    typed = replace(MEMORY, max_model_len=4096, block_size=32, utilization=Fraction(1, 2), kv_dtype="fp8")
    setup = make_answer(typed, reported()).plan.setup
    assert (setup.max_model_len, setup.block_size, setup.kv_dtype) == (4096, 32, "fp8")
    assert make_answer(typed, reported()).plan.pool_bytes == (40 - 16 - 4) * 1024**3


def test_what_is_reported_wins_over_defaults() -> None:
    fp8 = reported({"cache_dtype": "fp8", "block_size": "32"})
    plan = make_answer(MEMORY, fp8).plan
    assert (plan.kv_dtype, plan.block_size, plan.setup.max_model_len) == ("fp8", 32, 8192)


def test_no_cache_in_the_metrics() -> None:
    with pytest.raises(ValueError, match="is not in its /metrics: is this a vLLM server"):
        read_reported("http://a:1", "# nothing\n", MODELS)


def test_nobody_answers() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound and not listening: refused
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--backend: http://127.0.0.1:{port}/metrics gave no answer"):
            ask_backend(f"http://127.0.0.1:{port}/v1/")


@pytest.mark.parametrize("share", ["1/0", "1e99999999", "nan", "0", "2"])
def test_a_share_that_is_none(share: str) -> None:
    assert read_reported("u", metrics({"gpu_memory_utilization": share}), MODELS).utilization is None
