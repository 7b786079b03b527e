"""The report for people: every sum filled in, every word explained, quality and money kept apart."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from kvgate.planner import Answer, Question, Reported, make_answer, print_report
from kvgate.planner.glossary import GLOSSARY, words_in
from kvgate.planner.recommend import policy_file
from kvgate.planner.sizes import read_size

MODELS = Path(__file__).parents[1] / "policies" / "models"
CASE = Question(
    layers=32, kv_heads=32, head_dim=128, dtype="fp16", gpu_memory=read_size("80GiB"), weights=read_size("16GiB"),
    overhead=read_size("4GiB"), max_model_len=8192, block_size=16, target=8.0,
)  # fmt: skip


def case(**changes: object) -> Question:
    return replace(CASE, utilization=Fraction("0.85"), **changes)  # type: ignore[arg-type]


def of_model(name: str, **changes: object) -> Question:
    plain = Question(model=MODELS / f"{name}.json", gpu_memory=read_size("80GiB"), weights=read_size("10GiB"))
    return replace(plain, max_model_len=32768, **changes)  # type: ignore[arg-type]


def printed(question: Question, reported: Reported | None = None) -> str:
    """The report, its lines joined: where they wrap is no matter."""
    return " ".join(raw(make_answer(question, reported)).split())


def raw(answer: Answer) -> str:
    file = io.StringIO()
    print_report(answer, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "said",
    [
        "How many sessions of 8,192 tokens fit at once? 12 by the memory, 11 in vLLM's blocks.",
        "2 (key and value) × 32 layers × 32 heads × 128 elements × 2 bytes (float16) = 524,288 bytes = 512 KiB",
        "524,288 bytes × 16 tokens = 8,388,608 bytes = 8 MiB",
        "524,288 bytes × 8,192 tokens = 4,294,967,296 bytes = 4 GiB",
        "80 GiB × 0.85 − 16 GiB (weights) − 4 GiB (overhead) = 48 GiB",
        "48 GiB / 4 GiB, rounded down = 12 sessions",
        "48 GiB / 8 MiB, rounded down = 6,144, one of them the null block",
        "6,143 usable / 512 for a session, rounded down = 11 sessions",
        "The two differ because vLLM deals in whole blocks",
        "All 12 fit while each stays within 8,176 tokens.",
        "Had the same numbers been 80 GB, 16 GB, 4 GB, then 44.7 GiB would be left: 11 sessions",
        "TP 2 is often said to give 4×. It gives 2.3×: 2 × (68 − 8 − 4) GiB = 112 GiB; / 4 GiB = 28 sessions.",
        "2 GPUs: fp8 KV cache + max_model_len 4096 + TP 2 112 sessions by the memory, 9.3×",
        "4 GPUs: fp8 KV cache + TP 4 120 sessions",
        "8 GPUs: TP 8 124 sessions by the memory, 10.3×",
        "vllm serve MODEL --max-model-len 4096 --dtype float16 --kv-cache-dtype fp8",
    ],
)
def test_the_case_is_told_with_its_sums(said: str) -> None:
    assert said in printed(case())


def test_read_in_gb_the_unit_is_named_in_both() -> None:
    sizes = {"gpu_memory": read_size("80GB"), "weights": read_size("16GB"), "overhead": read_size("4GB")}
    text = printed(case(**sizes))
    assert "80 GB × 0.85 − 16 GB (weights) − 4 GB (overhead) = 48 GB = 44.7 GiB" in text
    assert "11 by the memory" in text
    assert "been 80 GiB, 16 GiB, 4 GiB, then 48 GiB would be left: 12 sessions" in text


def test_an_assumed_size_has_no_other_reading() -> None:
    text = printed(case(overhead=None))
    assert "been 80 GB, 16 GB, then" in text
    assert "--overhead 4 GiB: a usual figure" in text


def test_money_and_quality_are_in_different_lists() -> None:
    text = raw(make_answer(case(target=None)))
    part = r"  {}\n(.*?)\n\n"
    [money] = re.findall(
        part.format("More GPUs: paid for with money, answers stay as they are"), text, re.DOTALL
    )
    [other] = re.findall(part.format("No more GPUs: [^\n]*"), text, re.DOTALL)
    assert "TP 2" in money
    assert "fp8" not in money
    assert "max_model_len" not in money
    assert "fp8" in other
    assert "TP" not in other
    assert "copies" not in other


QUESTIONS = {
    "the case": case(),
    "without a target": case(target=None),
    "fp8": case(kv_dtype="fp8"),
    "packed": case(kv_dtype="int8_per_token_head"),
    "stages": case(pipeline_parallel=3, data_parallel=2),
    "windows": of_model("gemma-3-27b"),
    "states": of_model("qwen3-next-80b", tensor_parallel=2),
    "latent": of_model("deepseek-v3.2", weights=read_size("600GB"), tensor_parallel=16),
    "chunks": of_model("llama-4-scout"),
    "bytes given": replace(case(gpu_memory=None), kv_cache_memory=read_size("48GiB")),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_abbreviation_is_left_unexplained(name: str) -> None:
    text = raw(make_answer(QUESTIONS[name]))
    explained = {word for spellings, _ in GLOSSARY for spelling in spellings for word in spelling.split()}
    known = {"GPU", "GPUs", "MODEL", "FILE"}
    seen = set(re.findall(r"\b(?:[A-Z]{2,}s?|[KMGT]i?B|n?v?fp\d+|bf16|b?float\d+)\b", text))
    assert seen <= explained | known
    glossary = text[text.index("\nWords\n") :]
    for word, meaning in words_in(text[: text.index("\nWords\n")]):
        assert f"{word}: {meaning}" in " ".join(glossary.split())


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_setup_can_be_told(name: str) -> None:
    text = printed(QUESTIONS[name])
    assert "None" not in text
    assert "sessions" in text


def test_windows_are_told_twice() -> None:
    text = printed(of_model("gemma-3-27b"))
    assert "7 share one pool of blocks" in text
    assert "once they answer" in text


def test_chunked_attention_is_said_to_be_counted_whole() -> None:
    assert "counted as full attention" in printed(of_model("llama-4-scout"))


def test_a_pool_too_small_for_one_session() -> None:
    text = printed(replace(case(gpu_memory=None), kv_cache_memory=read_size("1GiB")))
    assert "vLLM would not start like this" in text
    assert "Not to be had here" in text


def test_a_target_out_of_reach() -> None:
    assert "Nothing here does. The most is" in printed(case(target=500.0))


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (6144, "They agree exactly."),
        (6100, "44 fewer than planned, 352 MiB of each GPU"),
        (6150, "6 more than planned, 48 MiB of each GPU"),
    ],
)
def test_a_running_server_is_compared(blocks: int, said: str) -> None:
    assert said in printed(case(), Reported("http://a:1", num_gpu_blocks=blocks))


def test_blocks_are_not_compared_with_themselves() -> None:
    without = replace(case(), gpu_memory=None, weights=None)
    text = printed(without, Reported("http://a:1", num_gpu_blocks=6100))
    assert "the memory was worked out from them" in text
    assert "agree" not in text


def test_the_models_are_read_without_a_window_of_their_own_being_lost() -> None:
    config = json.loads((MODELS / "llama-2-7b.json").read_text())
    question = replace(of_model("llama-2-7b"), max_model_len=None)
    assert make_answer(question).plan.setup.max_model_len == config["max_position_embeddings"]


def test_a_unit_is_explained_by_its_own_number() -> None:
    assert dict(words_in("80 GB, 48 GiB")) == {
        "GiB": "1024³ = 1,073,741,824 bytes", "GB": "1000³ = 1,000,000,000 bytes",
    }  # fmt: skip


def test_the_policy_of_a_server_with_an_ipv6_address_can_be_read() -> None:
    reported = Reported("http://[::1]:8000", num_gpu_blocks=6000, block_size=16)
    answer = make_answer(
        replace(CASE, gpu_memory=None, weights=None, overhead=None, backend=reported.url), reported
    )
    policy = yaml.safe_load(policy_file(answer.recommended, answer.understood.question))
    assert policy["pools"]["planned"]["backends"] == ["http://[::1]:8000"]
