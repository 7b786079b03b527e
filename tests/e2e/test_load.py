"""`kvgate load` and `kvgate calibrate` as programs: Ctrl-C, two ways to the same engine, a profile found again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import pytest

from kvgate.demo.plan import plan_for
from kvgate.sim import SimServer
from kvgate.sim.profiles import read_profile
from support.gateway import gateway

pytestmark = pytest.mark.e2e

KNOWN = {"step_ms": 10.0, "decode_ms_per_seq": 2.0, "kv_ms_per_token": 0.004, "prefill_ms_per_token": 0.08}
BAND = 0.25
"""How near each term is found again. On a quiet machine all are within 3 %; this one may be busy."""
WAIT_S = 50.0


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
    return kept | {"NO_COLOR": "1", "TERM": "dumb"}


def kvgate(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kvgate", *words]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def a_sim(*words: str) -> Iterator[str]:
    """A simulated engine in a process of its own."""
    options = ["--blocks", "2001", "--block-size", "16", "--max-model-len", "4096", "--max-num-seqs", "256"]
    child = kvgate("sim-engine", *options, "--port", "0", *words)
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        yield next(word for word in line.split() if word.startswith("http://"))
    finally:
        child.terminate()
        child.communicate()


def test_a_known_profile_is_found_again(tmp_path: Path) -> None:
    known, found = tmp_path / "known.yaml", tmp_path / "found.yaml"
    fields = "".join(f"  {name}: {value}\n" for name, value in KNOWN.items())
    known.write_text(f"known:\n{fields}  source: made up\n")
    with a_sim("--profile", str(known)) as url:
        child = kvgate("calibrate", url, "--batch-max", "4", "--out", str(found), "--name", "again", "--json")
        told, errors = child.communicate(timeout=WAIT_S)
    assert (child.returncode, errors) == (0, "")
    answer = json.loads(told)
    for name, value in KNOWN.items():
        assert answer[name] == pytest.approx(value, rel=BAND), (name, answer)
    profile = read_profile(found)
    assert profile.name == "again"
    assert "Fitted by kvgate calibrate" in profile.source
    assert profile.step_s * 1000 == pytest.approx(answer["step_ms"], rel=0.01)


def test_an_engine_at_work_is_not_measured() -> None:
    with a_sim("--profile", "8b-80gb") as url:
        body = {"prompt": [7] * 20, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=WAIT_S) as answer:
            lines = answer.iter_lines()
            next(lines)
            child = kvgate("calibrate", url)
            _, errors = child.communicate(timeout=WAIT_S)
    assert child.returncode == 2
    assert "is at work: an engine is measured while nobody else uses it" in errors


def test_ctrl_c_gives_what_was_seen_and_130(tmp_path: Path) -> None:
    with a_sim("--profile", "8b-80gb") as url:
        page = tmp_path / "x.html"
        words = ["--concurrency", "4", "--prompt", "20", "--output", "10", "--duration", "50s", "--json"]
        child = kvgate("load", url, "--worst-case", *words, "--html", str(page))
        served(url, 8)
        child.send_signal(signal.SIGINT)
        told, errors = child.communicate(timeout=WAIT_S)
    assert (child.returncode, errors) == (130, "")
    answer = json.loads(told)
    [run] = answer["runs"]
    assert answer["interrupted"] is True
    assert run["completed"] >= 4
    assert run["name"] == "as drawn", "the second run was not begun"
    assert "Stopped early" in page.read_text()


def served(url: str, count: int) -> None:
    """Wait until the engine has finished so many requests."""
    name = "vllm:request_prompt_tokens_count"
    while True:
        lines = httpx.get(f"{url}/metrics", timeout=WAIT_S).text.splitlines()
        if sum(float(line.split()[-1]) for line in lines if line.startswith(name)) >= count:
            return


async def test_with_and_without_kvgate() -> None:
    """Twice as many sessions as fit: directly the engine preempts, through kvgate nothing is."""
    sizes: dict[str, Any] = {"blocks": 121, "block_size": 32, "max_model_len": 2048, "max_num_seqs": 256}
    async with SimServer(**sizes, profile="fast:4", model="m") as sim, gateway([sim.url]) as gate:
        words = ["--compare", f"direct={sim.url}", f"kvgate={gate.url}", "--engine", sim.url, "--json"]
        child = kvgate(
            "load", *words, "--concurrency", "24", "--requests", "24", "--prompt", "192", "--output", "129"
        )
        told, errors = await _communicate(child)
    assert (child.returncode, errors) == (0, "")
    direct, through = json.loads(told)["runs"]
    assert (direct["name"], through["name"]) == ("direct", "kvgate")
    assert direct["completed"] == through["completed"] == 24
    assert direct["preemptions"] > 0 == through["preemptions"]
    most = plan_for(
        60
    ).most_per_engine  # the sizes are the demo's: twelve, and a few more while some are about to end
    assert through["engines"][sim.url]["running_max"] <= most < direct["engines"][sim.url]["running_max"]


async def test_the_ceiling_is_that_of_the_planner() -> None:
    """120 usable blocks, 10 for a session: 12 by the planner, ±1 by the search."""
    sizes: dict[str, Any] = {"blocks": 121, "block_size": 32, "max_model_len": 2048, "max_num_seqs": 256}
    async with SimServer(**sizes, profile="fast:5", model="m") as sim:
        child = kvgate("load", sim.url, "--find-ceiling", "--prompt", "192", "--output", "129", "--json")
        told, errors = await _communicate(child)
    assert (child.returncode, errors) == (0, "")
    found = json.loads(told)["ceiling"]
    assert found["planned_sessions"] == 12
    assert abs(found["sessions"] - 12) <= 1
    at = {probe["sessions"]: probe for probe in found["probes"]}
    assert at[found["sessions"]]["preemptions"] == 0
    assert at[found["preemptions_begin_at"]]["preemptions"] > 0
    assert at[16]["longest_gap_max_s"] > 5 * at[8]["itl_p50_s"], "a preempted stream stands still"


async def _communicate(child: subprocess.Popen[str]) -> tuple[str, str]:
    return await anyio.to_thread.run_sync(lambda: child.communicate(timeout=WAIT_S))
