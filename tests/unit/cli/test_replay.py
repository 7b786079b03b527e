"""`kvgate replay` as a command: its answer, its options, and what it says of mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvgate.cli import app

SMALL = "synthetic:chat?rate=2&hours=0.05&daily=0%25"
ENGINE = ("--engines", "1", "--num-gpu-blocks", "601", "--max-model-len", "8192", "--profile", "8b-80gb")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["replay", *words])


def test_without_a_policy_it_is_with_and_without_kvgate():
    shown = run(SMALL, *ENGINE, "--json")
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.stdout)
    assert [one["policy"] for one in answer["policies"]] == ["direct", "default"]
    assert answer["seed"] == 1
    assert shown.stdout == run(SMALL, *ENGINE, "--json").stdout


def test_it_prints_a_table_and_draws(tmp_path: Path):
    pytest.importorskip("matplotlib")
    shown = run(SMALL, *ENGINE, "--plot", str(tmp_path / "r.svg"), "--policy", "default", "--speed", "2")
    assert shown.exit_code == 0, shown.output
    assert "wait p50 / p90 / p99" in shown.stdout
    assert "in 90 s" in shown.stdout
    assert (tmp_path / "r.svg").exists()


def test_another_seed_and_every_step():
    exact = run(SMALL, *ENGINE, "--exact", "--json", "--duration", "60s", "--policy", "default")
    fast = run(SMALL, *ENGINE, "--json", "--duration", "60s", "--policy", "default")
    other = run(SMALL, *ENGINE, "--json", "--duration", "60s", "--policy", "default", "--seed", "2")
    [one], [two], [three] = (json.loads(shown.stdout)["policies"] for shown in (exact, fast, other))
    assert one["outcomes"] == two["outcomes"]
    assert one["offered"] != three["offered"] or one["ttft_s"] != three["ttft_s"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.jsonl",), "none.jsonl cannot be read"),
        (("synthetic:none",), "no workload 'none'"),
        ((SMALL, "--policy", "none.yaml"), "there is no none.yaml"),
        ((SMALL, "--policy", "forecast"), "direct (no admission control), default (forecasts), or guaranteed"),
        ((SMALL, "--policy", "."), ".: cannot be read"),
        ((SMALL, *(("--policy", "direct") * 9)), "at most 8 side by side; there are 9"),
        ((SMALL, "--speed", "0"), "--speed: 0 is not allowed"),
        ((SMALL, "--speed", "nan"), "--speed: nan is not allowed"),
        ((SMALL, "--duration", "5"), "--duration: '5' is not allowed"),
        ((SMALL, "--slo-ttft", "fast"), "--slo-ttft: 'fast' is not allowed"),
        ((SMALL, "--tenant", "chat"), "--tenant: 'chat' is not allowed"),
        ((SMALL, "--tenant", "a:1", "--tenant", "a:2"), "each name once"),
        ((SMALL, "--tenant", "a:1"), "says itself whose its requests are"),
        ((SMALL, "--plot", "x.gif"), "--plot: x.gif is not allowed"),
        ((SMALL, "--num-gpu-blocks", "5"), "but only 4 are usable"),
    ],
)  # fmt: skip
def test_mistakes_are_lines_of_their_own(words: tuple[str, ...], said: str):
    shown = run(*words)
    assert shown.exit_code == 2
    assert said in shown.output
    assert "Traceback" not in shown.output


def test_one_request_alone(tmp_path: Path):
    trace = tmp_path / "one.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,40,10\n")
    shown = run(str(trace), *ENGINE, "--json")
    assert shown.exit_code == 0, shown.output
    assert [one["served"] for one in json.loads(shown.stdout)["policies"]] == [1, 1]
    assert run(str(trace), *ENGINE).exit_code == 0


def test_a_time_far_away_is_a_slip_in_the_file(tmp_path: Path):
    trace = tmp_path / "far.csv"
    trace.write_text("Timestamp,Request tokens,Response tokens\n5,40,10\n9e10,40,10\n")
    shown = run(str(trace), *ENGINE)
    assert shown.exit_code == 2
    assert "over 1,041,667 days; allowed: 366" in shown.output
    assert run(str(trace), *ENGINE, "--duration", "1h").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--speed", "1e-300"), "--speed: 1e-300 is not allowed; allowed: 0.001 to 1000"),
        (("--speed", "0.001", "--duration", "50h"), "allowed: 366"),
        (("--num-gpu-blocks", "99999999999"), "--num-gpu-blocks: 99999999999 is not allowed"),
        (("--block-size", "99999999999999999999"), "--block-size: 99999999999999999999 is not allowed"),
    ],
)
def test_what_would_take_for_ever(words: tuple[str, ...], said: str):
    shown = run("synthetic:chat?hours=70&rate=0.1", *words)
    assert shown.exit_code == 2, shown.output
    assert said in " ".join(shown.output.split())


def test_a_picture_that_can_not_be_written_is_told_before_the_replay(tmp_path: Path):
    pytest.importorskip("matplotlib")
    shown = run("none.jsonl", "--plot", str(tmp_path / "none" / "r.svg"))
    assert shown.exit_code == 2
    assert "--plot" in shown.output
    assert "cannot be written" in " ".join(shown.output.split())
