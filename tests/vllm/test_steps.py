"""What the step log is read to say. No engine is needed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from vllm.steps import Step, StepLog, Summary, gaps, table, tokens_by_request, wait_steps

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = Step(step=0, run=0, wait=(), kv=0, t=0, out=(), pre=(), new=(), res=(), again=0)

PREEMPTED = [
    replace(NOTHING, step=7, run=2, kv=4, t=60, out=("a", "b"), new=("a", "b"), wait=("c",)),
    replace(NOTHING, step=8, run=1, kv=3, t=1, out=("a",), pre=("b",), wait=("b", "c")),
    replace(NOTHING, step=9, run=1, kv=3, t=1, out=("a",), wait=("b", "c")),
    replace(NOTHING, step=10, run=2, kv=5, t=64, out=("b", "c"), new=("c",), res=("b",), again=31),
]


def test_a_gap_is_counted_in_steps_between_a_requests_own_tokens() -> None:
    assert sorted(gaps(PREEMPTED)) == [("a", 1), ("a", 1), ("b", 3)]


def test_a_wait_is_every_step_that_left_the_request_out() -> None:
    assert wait_steps(PREEMPTED) == {"b": 2, "c": 3}


def test_tokens_are_counted_by_request() -> None:
    assert tokens_by_request(PREEMPTED) == {"a": 3, "b": 2, "c": 1}


def test_the_summary_adds_up() -> None:
    assert Summary.of(PREEMPTED) == Summary(
        steps=4,
        requests=3,
        tokens_out=6,
        tokens_computed=126,
        tokens_recomputed=31,
        preemptions=1,
        preempted_requests=1,
        gap_steps_max=3,
        wait_steps_max=3,
        running_max=2,
        kv_max=5,
        kv_mean=3.75,
    )


def test_no_steps_are_no_error() -> None:
    assert Summary.of([]).steps == 0


def test_the_table_has_a_column_for_each(tmp_path: Path) -> None:
    lines = table({"direct": Summary.of(PREEMPTED), "kvgate": Summary.of([])}).splitlines()
    assert lines[0].split() == ["direct", "kvgate"]
    assert ["preemptions", "1", "0"] in [line.split() for line in lines]


def test_the_log_is_read_from_a_mark_on_and_to_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path)
    assert log.mark() == 0, "the engine makes the file at its start"
    lines = [json.dumps(asdict(step)) + "\n" for step in PREEMPTED]
    path.write_text(lines[0])
    mark = log.mark()
    with path.open("a") as file:
        file.write(lines[1] + lines[2][:40])
        file.flush()
        assert log.since(mark) == PREEMPTED[1:2]
        file.write(lines[2][40:])
    assert log.since(mark) == PREEMPTED[1:3]
    assert log.since(0) == PREEMPTED[:3]
