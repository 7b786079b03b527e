"""`kvgate traffic` and `kvgate plan --traffic`: their options, and a line for every mistake."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvgate.cli import app

CASE = (
    "plan --layers 32 --kv-heads 32 --head-dim 128 --gpu-memory 80GiB --gpu-memory-utilization 0.85 --weights 16GiB "
    "--overhead 4GiB --max-model-len 8192"
)


def line(prompt: int, output: int, **more: Any) -> str:
    known = {
        "arrived": 1.0,
        "tenant": "t",
        "endpoint": "chat",
        "outcome": "served",
        "total_s": 1.0,
        "queue_s": 0.0,
    }
    return json.dumps(known | {"prompt_tokens": prompt, "completion_tokens": output} | more)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    lines = [line(900, 100)] * 90 + [line(3900, 100)] * 9 + [line(6000, 1000, pool="b", tenant="u")]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"})


def told(runner: CliRunner, args: str) -> dict[str, Any]:
    result = runner.invoke(app, [*shlex.split(args), "--json"])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_of_a_log(runner: CliRunner, log: Path) -> None:
    answer = told(runner, f"traffic {log} --max-model-len 4096 --max-model-len 2048 --max-tokens 512")
    assert (answer["requests"], answer["total"]["p50"], answer["total"]["p99"]) == (100, 1000, 4000)
    assert [(cut["limit"], cut["cut"]) for cut in answer["max_model_len"]] == [(2048, 0.1), (4096, 0.01)]
    assert [(cut["limit"], cut["cut"]) for cut in answer["max_tokens"]] == [(512, 0.01)]
    assert told(runner, f"traffic {log} --pool b")["requests"] == 1
    assert told(runner, f"traffic {log} --tenant t")["requests"] == 99


def test_for_people(runner: CliRunner, log: Path) -> None:
    result = runner.invoke(app, ["traffic", str(log)])
    assert result.exit_code == 0
    assert "100 requests" in result.stdout
    assert "a max_model_len of" in result.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("", "either a request log, or --from-metrics URL"),
        ("LOG --from-metrics http://127.0.0.1:9", "either a request log, or --from-metrics URL"),
        ("--from-metrics nonsense", "--from-metrics: 'nonsense' is not allowed"),
        (
            "--from-metrics http://127.0.0.1:9 --tenant t",
            "--pool, --tenant: a server's histograms know of neither",
        ),
        ("no-such-file", "no-such-file cannot be read"),
        ("LOG --tenant nobody", "no request of tenant 'nobody'"),
        ("LOG --pool none", "no request of pool 'none'"),
        ("LOG --max-model-len 0", "--max-model-len"),
        ("LOG --max-tokens none", "--max-tokens"),
    ],
)
def test_mistakes(runner: CliRunner, log: Path, args: str, said: str) -> None:
    result = runner.invoke(app, ["traffic", *shlex.split(args.replace("LOG", str(log)))])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.startswith("kvgate: ")
    assert result.stdout == ""


def test_the_plan_at_average_and_worst_case_lengths(runner: CliRunner, log: Path) -> None:
    answer = told(runner, f"{CASE} --traffic {log}")
    rows = {
        row["name"]: (row["tokens"], row["max_sequences_engine"]) for row in answer["traffic"]["at_lengths"]
    }
    # 6,143 usable blocks of 16 tokens
    assert rows == {
        "the average": (1330, 6143 // 84),
        "the 90th percentile": (1000, 6143 // 63),
        "the 99th percentile": (4000, 6143 // 250),
        "the whole length": (8192, 11),
    }
    assert answer["traffic"]["cuts"] == [{"option": "max_model_len 4096", "max_model_len": 4096, "cut": 0.01}]


def test_the_plan_says_whom_the_present_window_cuts_too(runner: CliRunner, log: Path) -> None:
    answer = told(runner, f"{CASE.replace('8192', '4000')} --traffic {log}")
    assert [(cut["option"], cut["cut"]) for cut in answer["traffic"]["cuts"]] == [
        ("max_model_len 4000, as it is", 0.01),
        ("max_model_len 2000", 0.1),
    ]
    text = runner.invoke(app, shlex.split(f"{CASE} --traffic {log}")).stdout
    assert "max_model_len 4096: would cut 1.0% of these requests" in text
    assert "Your traffic: 100 requests" in text


def test_without_traffic_there_is_nothing_about_it(runner: CliRunner) -> None:
    assert told(runner, CASE)["traffic"] is None
    assert "Your traffic" not in runner.invoke(app, shlex.split(CASE)).stdout


def test_a_plan_without_a_length(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "refused"
    path.write_text(line(1, 1, outcome="rejected_queue_full") + "\n")
    result = runner.invoke(app, shlex.split(f"{CASE} --traffic {path}"))
    assert (result.exit_code, "none of its 1 requests ran to its end" in result.stderr) == (2, True)
    result = runner.invoke(app, shlex.split(f"{CASE} --traffic no-such-file"))
    assert (result.exit_code, "no-such-file cannot be read" in result.stderr) == (2, True)
