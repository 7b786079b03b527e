"""Reading the engine's step log: the steps between two marks, and what they say about each request.

A *gap* is counted in engine steps between two tokens of one request: 1 when it got a token in every step, a
whole generation when it was preempted and had to wait for others to end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the log. Request ids are the engine's own."""

    step: int
    run: int
    """Requests that hold KV after the decision."""
    wait: tuple[str, ...]
    """Requests left waiting by this step, preempted ones included."""
    kv: int
    """Blocks in use."""
    t: int
    """Tokens computed."""
    out: tuple[str, ...]
    """Requests that get a token."""
    pre: tuple[str, ...]
    """Preempted."""
    new: tuple[str, ...]
    """Scheduled for the first time."""
    res: tuple[str, ...]
    """Resumed after a preemption."""
    again: int
    """Those of `t` whose KV was computed before and lost."""
    prio: dict[str, int] = field(default_factory=dict[str, int])
    """The priority of each in `new`, as the engine understood it. Lower is sooner."""


class StepLog:
    """The log file of a running engine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pace_path = path.with_name(path.name + ".pace")
        """Where the engine reads the least time of a step."""

    def mark(self) -> int:
        """The present end, to read on from."""
        return self._path.stat().st_size if self._path.exists() else 0

    def since(self, mark: int) -> list[Step]:
        """Everything from `mark` on. A line that is just being written is left for the next time."""
        with self._path.open("rb") as file:
            file.seek(mark)
            lines = file.read().split(b"\n")
        return [msgspec.json.decode(line, type=Step) for line in lines[:-1]]


@dataclass(frozen=True, slots=True)
class Summary:
    """What happened in some steps, all requests together."""

    steps: int
    requests: int
    tokens_out: int
    tokens_computed: int
    tokens_recomputed: int
    preemptions: int
    preempted_requests: int
    gap_steps_max: int
    wait_steps_max: int
    """The longest that a request stood in the engine's own queue, all its turns together."""
    running_max: int
    kv_max: int
    kv_mean: float

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Summary:
        preempted = Counter(name for step in steps for name in step.pre)
        waits = wait_steps(steps)
        return cls(
            steps=len(steps),
            requests=len({name for step in steps for name in step.new}),
            tokens_out=sum(len(step.out) for step in steps),
            tokens_computed=sum(step.t for step in steps),
            tokens_recomputed=sum(step.again for step in steps),
            preemptions=preempted.total(),
            preempted_requests=len(preempted),
            gap_steps_max=max((gap for _, gap in gaps(steps)), default=0),
            wait_steps_max=max(waits.values(), default=0),
            running_max=max((step.run for step in steps), default=0),
            kv_max=max((step.kv for step in steps), default=0),
            kv_mean=sum(step.kv for step in steps) / max(len(steps), 1),
        )


def gaps(steps: Iterable[Step]) -> Iterator[tuple[str, int]]:
    """Each pair of neighbouring tokens of a request: its id, and how many steps lie between them."""
    last: dict[str, int] = {}
    for step in steps:
        for name in step.out:
            if name in last:
                yield name, step.step - last[name]
            last[name] = step.step


def wait_steps(steps: Iterable[Step]) -> Counter[str]:
    """For each request that was left waiting at all: by how many steps."""
    return Counter(name for step in steps for name in step.wait)


def tokens_by_request(steps: Iterable[Step]) -> Counter[str]:
    return Counter(name for step in steps for name in step.out)


def table(columns: dict[str, Summary]) -> str:
    """The summaries side by side, for a person to read."""
    rows = (
        ("engine steps", "steps", "d"),
        ("preemptions", "preemptions", "d"),
        ("requests preempted", "preempted_requests", "d"),
        ("tokens computed again", "tokens_recomputed", "d"),
        ("longest gap in a stream, steps", "gap_steps_max", "d"),
        ("longest wait inside vLLM, steps", "wait_steps_max", "d"),
        ("most requests running", "running_max", "d"),
        ("most KV blocks in use", "kv_max", "d"),
        ("mean KV blocks in use", "kv_mean", ".1f"),
    )
    lines = [" " * 34 + "".join(f"{name:>12}" for name in columns)]
    for label, attribute, form in rows:
        cells = (format(getattr(summary, attribute), form) for summary in columns.values())
        lines.append(f"{label:<34}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)
