"""The admission benchmark: its engine is the engine model, and the key comparisons come out as claimed.

The comparisons are short and on one seed; `python -m bench.admission --full` is the long form.
"""

from __future__ import annotations

import importlib
import math
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvgate_policies.engine_model import EngineModel, SimRequest, StepProfile

ROOT = Path(__file__).parents[2]
STEP = StepProfile("test", 0.012, 3e-5, 1e-7, 1e-4)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def part(name: str):
    return importlib.import_module(f"bench.admission.{name}")


def pair(rng: random.Random):
    """The project's model and the benchmark's, of one size."""
    blocks, block_size = rng.choice([64, 128, 300]), rng.choice([4, 16])
    seqs, budget = rng.choice([8, 32, 47]), rng.choice([48, 128, 256])
    window = min(blocks * block_size, 500)
    model = EngineModel(
        num_gpu_blocks=blocks + 1,
        block_size=block_size,
        max_model_len=window,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        prefix_caching=False,
        profile=STEP,
    )
    engine = part("engine").Engine(
        blocks=blocks, block_size=block_size, max_num_seqs=seqs, max_num_batched_tokens=budget, profile=STEP
    )
    return model, engine, window


@pytest.mark.parametrize("seed", range(8))
def test_the_fast_engine_is_the_engine_model(seed):
    """Same arrivals and aborts: the same admissions, ends, preemptions, blocks and times in every step."""
    rng = random.Random(seed)
    model, engine, window = pair(rng)
    live: dict[str, Any] = {}
    for number in range(300):
        for _ in range(rng.choice([0, 0, 0, 1, 1, 3]) if number < 200 else 0):
            prompt = rng.randint(1, window // 2)
            target = max(1, min(int(rng.lognormvariate(4, 1)), window - prompt))
            key = str(len(live) + 1000 * number)
            live[key] = part("engine").Sequence(key, prompt, target)
            engine.add(live[key])
            model.add(SimRequest(key, prompt, target))
        if live and rng.random() < 0.05:
            key = rng.choice(list(live))
            assert engine.abort(live.pop(key)) is model.abort(key) is True
        fast, real = engine.step(), model.step()
        assert [one.key for one in fast.preempted] == list(real.preempted)
        assert [one.key for one in fast.admitted] == list(real.admitted)
        assert {one.key for one in fast.finished} == {key for key, _ in real.finished}
        assert (fast.kv_used, fast.running, fast.step_s) == (real.kv_used, real.running, real.step_s)
        for one in fast.finished:
            live.pop(one.key)
        assert all(engine.generated(one) == model.generated(key) for key, one in live.items())
    assert engine.preemptions == model.counters.preemptions
    assert engine.tokens == model.counters.generation_tokens > 0


def test_the_inputs_make_the_engines_preempt():
    total = 0
    for seed in range(8):
        rng = random.Random(seed)
        _, engine, window = pair(rng)
        for key in range(40):
            engine.add(part("engine").Sequence(key, window // 4, window // 4))
        for _ in range(60):
            total += len(engine.step().preempted)
    assert total > 10


def test_a_run_is_the_same_each_time():
    runs = part("runs")
    times = runs.Times(5.0, 10.0, 5.0, 10.0, 20.0)
    cell = runs.Cell("agent", "forecast", times=times)
    assert runs.run(cell) == runs.run(cell)


@cache
def score(policy: str, limit: str = "unset", load: float = 1.3):
    """A few simulated seconds of chat, which is the quickest to settle."""
    runs, workload = part("runs"), part("workload")
    times = runs.Times(25.0, 25.0, 10.0, 25.0, 30.0)
    return runs.run(runs.Cell("chat", policy, load, 1, workload.Limit(limit), times=times))


def test_forecast_keeps_up_with_an_oracle_that_knows_every_length():
    assert score("forecast").goodput_per_s >= 0.95 * score("oracle").goodput_per_s
    assert score("forecast").preempted_per_1000 <= 5
    assert score("oracle").preempted_per_1000 == 0


def test_it_is_far_above_the_worst_case_and_above_a_cap():
    assert score("forecast").goodput_per_s >= 3 * score("worst").goodput_per_s
    assert score("forecast").goodput_per_s > 1.1 * score("worst-2048").goodput_per_s
    assert score("forecast").goodput_per_s >= 1.08 * score("cap").goodput_per_s
    assert score("worst").preempted_per_1000 == 0


def test_it_preempts_where_direct_does_and_loses_nothing_at_little_load():
    assert score("direct+timeout").preempted_per_1000 > 20
    assert score("forecast").goodput_per_s > score("direct+timeout").goodput_per_s
    assert score("forecast", load=0.7).good >= score("direct+timeout", load=0.7).good


def test_known_lengths_are_never_preempted():
    known = score("forecast", "known")
    assert known.preempted_per_1000 == 0
    assert known.goodput_per_s >= 0.96 * score("oracle", "known").goodput_per_s


def test_quantiles_of_the_forecast_are_right():
    calibration = part("calibration")
    found = calibration.calibration("chat", 2, requests=1500)
    assert found == pytest.approx((0.5, 0.1, 0.01), abs=0.04)


def test_quantile_and_table():
    assert part("score").quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert math.isnan(part("score").quantile([], 0.5))
    assert part("report").table(["a", "bb"], [["x", 1]]).splitlines() == [
        "| a | bb |",
        "|---|----|",
        "| x | 1  |",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profiles", "chat,zz"], "no 'zz' here: there are chat, reason, agent"),
        (["--only", "zz"], "no 'zz' here: there are main, loads"),
        (["--seeds", "1,zz"], "'1,zz': expected whole numbers, such as 1,2,3"),
        (
            ["--json", "/nowhere/at/all.json"],
            "/nowhere/at/all.json cannot be written: No such file or directory",
        ),
        (["--plot", "/"], "/ cannot be written: Is a directory"),
    ],
)
def test_arguments_that_are_no_good_are_refused_before_anything_runs(arguments, said, capsys):
    with pytest.raises(SystemExit):
        part("__main__").arguments_of(arguments)
    assert said in capsys.readouterr().err


def test_a_file_that_can_be_written_is_not_touched_before_the_end(tmp_path):
    (tmp_path / "kept.json").write_text("old")
    files = ["--json", str(tmp_path / "kept.json"), "--plot", str(tmp_path / "new.png")]
    options = part("__main__").arguments_of([*files, "--seeds", "3"])
    assert (options.json.read_text(), options.seeds, options.plot.exists()) == ("old", [3], False)
