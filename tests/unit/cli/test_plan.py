"""`kvgate plan`: its JSON, its options, and a line for every mistake."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvgate.cli import app

MODELS = Path(__file__).parents[1] / "policies" / "models"
CASE = (
    "--layers 32 --kv-heads 32 --head-dim 128 --dtype fp16 --kv-dtype auto --gpu-memory 80GiB "
    "--gpu-memory-utilization 0.85 --weights 16GiB --overhead 4GiB --max-model-len 8192 --block-size 16"
)


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"})


def asked(runner: CliRunner, args: str) -> dict[str, Any]:
    result = runner.invoke(app, ["plan", *shlex.split(args), "--json"])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_the_case(runner: CliRunner) -> None:
    answer = asked(runner, CASE)
    keys = ("bytes_per_token", "bytes_per_block", "bytes_per_sequence", "pool_bytes", "num_gpu_blocks")
    assert [answer[key] for key in keys] == [524_288, 8_388_608, 4 * 1024**3, 48 * 1024**3, 6144]
    assert (answer["max_sequences"], answer["max_sequences_engine"]) == (12, 11)
    assert answer["max_sequences_other_unit"] == 11


def test_at_8000_tokens_the_engine_fits_twelve(runner: CliRunner) -> None:
    assert asked(runner, CASE.replace("8192", "8000"))["max_sequences_engine"] == 12


def test_in_gb_it_is_eleven(runner: CliRunner) -> None:
    answer = asked(runner, CASE.replace("GiB", "GB"))
    assert (answer["max_sequences"], answer["max_sequences_other_unit"]) == (11, 12)


def test_options_have_their_risk_cost_and_precondition(runner: CliRunner) -> None:
    options = {option["name"]: option for option in asked(runner, CASE)["options"]}
    assert {name: options[name]["max_sequences"] for name in ("fp8 KV cache", "TP 2", "fp8 KV cache + TP 2")} == {
        "fp8 KV cache": 24, "TP 2": 28, "fp8 KV cache + TP 2": 56,
    }  # fmt: skip
    assert options["TP 2"]["factor"] == 2.33
    assert options["TP 2"]["claimed_factor"] == 4.0
    assert options["TP 2"]["trades"] == ["money"]
    assert options["fp8 KV cache"]["trades"] == ["quality of answers"]
    for option in options.values():
        assert option["risk"] in {"none", "small", "moderate", "high"}
        assert option["cost"]
        assert option["precondition"]


def test_the_target_names_its_ways(runner: CliRunner) -> None:
    answer = asked(runner, f"{CASE} --target 8x")
    assert answer["ways_to_target"][0] == "fp8 KV cache + max_model_len 4096 + TP 2"
    assert "--tensor-parallel-size 2" in answer["recommended"]["vllm"]


@pytest.mark.parametrize(
    "args",
    [
        CASE,
        f"{CASE} --target 8x",
        f"--model {MODELS / 'deepseek-v3.json'} --kv-cache-memory-bytes 100GiB --tp 8 --dp 2 --speculative-tokens 1",
    ],
)
def test_the_recommended_policy_is_valid(runner: CliRunner, tmp_path: Path, args: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(asked(runner, args)["recommended"]["kvgate_policy"])
    result = runner.invoke(app, ["policy", "check", str(file)])
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_model_from_its_folder(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((MODELS / "llama-3.1-8b.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 4096)
    answer = asked(runner, f"--model {tmp_path} --gpu-memory 80GiB --max-model-len 8192")
    assert answer["bytes_per_token"] == 131_072
    assert any("safetensors" in sentence for sentence in answer["assumed"])
    assert answer["recommended"]["vllm"].startswith(f"vllm serve {tmp_path} --max-model-len 8192")


def test_bytes_given_directly(runner: CliRunner) -> None:
    model = "--layers 32 --kv-heads 32 --head-dim 128 --max-model-len 8192"
    for size in ("48GiB", "51539607552", "51539607552B"):
        answer = asked(runner, f"{model} --kv-cache-memory-bytes {size}")
        assert (answer["num_gpu_blocks"], answer["max_sequences"]) == (6144, 12), size
        assert {one["name"] for one in answer["unavailable"]} >= {"TP × 2", "gpu_memory_utilization 0.95"}


def test_every_option_reaches_the_setup(runner: CliRunner) -> None:
    model = MODELS / "qwen3-next-80b.json"
    base = f"--model {model} --kv-cache-memory-bytes 100GiB --max-model-len 262144"
    assert asked(runner, f"{base} --no-prefix-caching")["blocks_per_sequence"] == 482 + 3
    assert asked(runner, base)["blocks_per_sequence"] == 482 + 6
    oss = f"--model {MODELS / 'gpt-oss-20b.json'} --kv-cache-memory-bytes 100GiB --max-model-len 131072"
    assert asked(runner, f"{oss} --max-num-batched-tokens 2048")["blocks_per_sequence"] == 8192 + 265
    assert asked(runner, f"{CASE} --pp 2")["bytes_per_token"] == 262_144
    assert asked(runner, f"{CASE} --dp 2")["max_sequences"] == 24
    assert asked(runner, f"{CASE} --kv-dtype nvfp4")["bytes_per_token"] == 147_456
    few = CASE.replace("--kv-heads 32", "--kv-heads 2")
    dealt = asked(runner, f"{few} --tp 4 --dcp 2")
    assert dealt["blocks_per_sequence"] == asked(runner, f"{few} --tp 4")["blocks_per_sequence"] // 2


def test_no_word_of_a_table_is_cut_off_at_the_width_of_a_pipe(runner: CliRunner) -> None:
    result = runner.invoke(app, ["plan", *CASE.split(), "--target", "8x"])
    told = " ".join(result.output.split())
    assert "small: answers can change a little" in told
    tables = result.output.partition("What makes it more")[2].partition("Only if")[0]
    assert {"failed", "little;", "KV", "server"} <= set(tables.split())


def test_a_plot(runner: CliRunner, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "ceiling.svg"
    result = runner.invoke(app, ["plan", *CASE.split(), "--plot", str(file)])
    assert result.exit_code == 0, result.output
    assert b"<svg" in file.read_bytes()


def test_the_help_names_every_option_and_has_an_example(runner: CliRunner) -> None:
    result = runner.invoke(app, ["plan", "--help"])
    assert "Example: kvgate plan --layers 32" in result.output
    for parameter in typer.main.get_group(app).commands["plan"].params:
        assert parameter.opts[0] in result.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("", "the model is not described: give --model CONFIG_JSON, or --layers, --kv-heads, --head-dim"),
        ("--layers 32", "or --kv-heads, --head-dim"),
        ("--layers 32 --model x", "--layers: not together with --model"),
        ("--model /nowhere/config.json", "--model: /nowhere/config.json cannot be read: No such file"),
        (CASE.replace("80GiB", "80"), "--gpu-memory: '80' is not allowed; allowed: a size with its unit"),
        (CASE.replace("80GiB", "80G"), "--gpu-memory: '80G' is not allowed; allowed: a size with its unit"),
        (CASE.replace("80GiB", "-80GiB"), "--gpu-memory: '-80GiB' is not allowed"),
        (CASE.replace("16GiB", "16 Gib it"), "--weights: '16 Gib it' is not allowed"),
        (
            CASE.replace("0.85", "1.2"),
            "--gpu-memory-utilization: '1.2' is not allowed; allowed: above 0 and at most 1",
        ),
        (CASE.replace("0.85", "85%"), "--gpu-memory-utilization: '85%' is not allowed"),
        (CASE.replace("0.85", "0"), "--gpu-memory-utilization: '0' is not allowed"),
        (CASE.replace("0.85", "nan"), "--gpu-memory-utilization: 'nan' is not allowed"),
        (
            CASE.replace("16GiB", "160GiB"),
            "no memory is left for KV cache: the weights and the overhead take 96 GiB",
        ),
        (CASE.replace("--layers 32", "--layers -1"), "Invalid value for '--layers'"),
        (CASE.replace("8192", "0"), "Invalid value for '--max-model-len'"),
        (f"{CASE} --tp 3", "--tp 3: does not go with 32 KV heads; allowed: a number that divides them"),
        (
            CASE.replace("fp16", "fp12"),
            "--dtype: 'fp12' is not allowed; allowed: auto, float16, bfloat16, float32",
        ),
        (
            CASE.replace("--kv-dtype auto", "--kv-dtype fp7"),
            "--kv-dtype: 'fp7' is not allowed; allowed: auto",
        ),
        (f"{CASE} --target 1x", "--target: '1x' is not allowed; allowed: how many times as many, such as 8x"),
        (f"{CASE} --target lots", "--target: 'lots' is not allowed"),
        (f"{CASE} --plot a.pdf", "--plot: a.pdf is not allowed; allowed: a file that ends in .png or .svg"),
        (f"{CASE} --kv-cache-memory-bytes 1GiB", "--kv-cache-memory-bytes: not together with --gpu-memory"),
        ("--layers 1 --kv-heads 1 --head-dim 8", "--gpu-memory: is missing; allowed: the memory of one GPU"),
        ("--layers 1 --kv-heads 1 --head-dim 8 --gpu-memory 8GiB", "--weights: is missing"),
        (CASE.replace("--max-model-len 8192", ""), "--max-model-len: is missing"),
        (f"{CASE} --backend ftp://a", "--backend: ftp://a/metrics gave no answer"),
    ],
)
def test_a_mistake_is_a_line_and_exit_code_2(runner: CliRunner, args: str, said: str) -> None:
    words = shlex.split(args) if "Gib it" not in args else _with_spaces(args)
    result = runner.invoke(app, ["plan", *words])
    assert result.exit_code == 2, result.output
    assert not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvgate: ")
    assert said in line


def _with_spaces(args: str) -> list[str]:
    return [word.replace("_", " ") for word in args.replace("16 Gib it", "16_Gib_it").split()]


def test_a_wrong_config_names_its_field(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"num_hidden_layers": "many"}')
    result = runner.invoke(app, ["plan", "--model", str(file)])
    assert result.exit_code == 2
    assert f"--model: {file}: num_hidden_layers: is 'many'; allowed: a whole number from 1" in result.stderr


def test_what_is_to_be_typed_is_what_was_planned(runner: CliRunner, tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    fields = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(fields))
    more = "--max-num-batched-tokens 2048 --no-prefix-caching --speculative-tokens 3 --kv-cache-memory-bytes 8GiB"
    typed = asked(runner, f"--model {shlex.quote(str(folder))} {more}")["recommended"]["vllm"]
    words = shlex.split(typed)
    assert words[:3] == ["vllm", "serve", str(folder)]
    assert words[words.index("--max-num-batched-tokens") + 1] == "2048"
    assert json.loads(words[words.index("--speculative-config") + 1])["num_speculative_tokens"] == 3
    assert words[-1] == "--no-enable-prefix-caching"
    assert "prefix" not in asked(runner, CASE)["recommended"]["vllm"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--target 1e9", "at most 1000x"),
        (f"--target {'9' * 400}", "at most 1000x"),
        ("--gpu-memory-utilization 1e-99999999", "above 0 and at most 1"),
        (f"--gpu-memory {'9' * 30}GB", "at most 1024TiB"),
        (f"--gpu-memory {'9' * 5000}GB", "a size with its unit"),
        ("--layers 20000000", "less than or equal to 4096"),
        (f"--head-dim {'9' * 400}", "less than or equal to 1000000000"),
        (f"--max-model-len {'9' * 400}", "less than or equal to 1000000000"),
        (f"--tp {'9' * 400}", "less than or equal to 1000000000"),
    ],
)
def test_no_number_makes_the_sum_run_away(runner: CliRunner, more: str, said: str) -> None:
    result = runner.invoke(app, ["plan", *shlex.split(f"{CASE} {more}")])
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


def test_no_configuration_makes_the_sum_run_away(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    memory = "--kv-cache-memory-bytes 8GiB --max-model-len 4096"
    for layers, said in ((5000, "at most 4096"), (10**23, "at most 1,000,000,000")):
        path.write_text(
            json.dumps({"num_hidden_layers": layers, "hidden_size": 64, "num_attention_heads": 2})
        )
        result = runner.invoke(app, ["plan", "--model", str(path), *memory.split()])
        assert result.exit_code == 2
        assert said in result.output


def test_a_picture_that_can_not_be_written_is_told_first(runner: CliRunner, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = runner.invoke(app, ["plan", *CASE.split(), "--plot", str(tmp_path / "none" / "p.png")])
    assert result.exit_code == 2
    assert "cannot be written" in result.output
    assert not result.stdout
