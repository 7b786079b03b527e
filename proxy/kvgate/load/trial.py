"""One run of a workload at one URL, with the engines watched, and what came of it.

It ends in one of three ways: all sessions have ended; its time is over, and what still ran a while later was
broken off; or somebody said stop, and everything is broken off at once. The outcome is a report in each case.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.load.client import LoadRun, Patience
from kvgate.load.records import StreamEnd
from kvgate.load.report import Report, report
from kvgate.load.score import Objective, Score, by_tenant, score
from kvgate.load.watch import EngineWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvgate.load.records import StreamRecord
    from kvgate.load.watch import EngineSample
    from kvgate.load.workload import Workload

TICK_S = 0.1
"""Between two looks at the clock and at the progress."""
SAMPLE_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no run exceeds."""

    duration_s: float = 60.0
    """Then nothing more is sent."""
    drain_s: float = 60.0
    """After that: for what still runs; then it is broken off."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    name: str
    url: str
    report: Report | None
    """None when nothing was sent."""
    score: Score
    tenants: dict[str, Score]
    records: tuple[StreamRecord, ...]
    samples: tuple[EngineSample, ...]
    started_s: float
    left_out: int
    """Sessions of an open loop that were not sent, because too many were in flight."""
    interrupted: bool
    """Somebody said stop."""
    watched: bool

    @property
    def preemptions(self) -> int | None:
        """None where no engine was watched, or none answered."""
        return self.report.preemptions if self.report is not None and self.report.engines else None

    @property
    def cut_off(self) -> int:
        """Streams that were still running at the end."""
        return sum(record.end is StreamEnd.INTERRUPTED for record in self.records)


class Stop:
    """Somebody says stop: once for all that runs, and for all that would come after."""

    def __init__(self) -> None:
        self.said = False
        self._waiting: list[Callable[[], None]] = []

    def say(self) -> None:
        self.said = True
        for told in self._waiting:
            told()

    def tell(self, told: Callable[[], None]) -> None:
        self._waiting.append(told)


class Trial:
    """A run. `run` once; `sent`, `ended` and `elapsed_s` can be read meanwhile."""

    def __init__(
        self,
        name: str,
        url: str,
        workload: Workload,
        *,
        concurrency: int,
        arrivals_s: Iterable[float] | None = None,
        engines: Sequence[str] = (),
        patience: Patience | None = None,
        bounds: Bounds | None = None,
        objective: Objective | None = None,
    ) -> None:
        self.name, self.url = name, url
        self.bounds = bounds or Bounds()
        self._objective = objective or Objective()
        self._watch = EngineWatch(engines, interval_s=SAMPLE_INTERVAL_S)
        self._engines = tuple(engines)
        self._load = LoadRun(
            url, workload, concurrency=concurrency, arrivals_s=arrivals_s, patience=patience or Patience()
        )
        self._started_s = time.monotonic()

    @property
    def sent(self) -> int:
        return len(self._load.records)

    @property
    def in_flight(self) -> int:
        return self._load.in_flight

    @property
    def ended(self) -> int:
        return self.sent - self.in_flight

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    async def run(self, stop: Stop, progress: Callable[[Trial], None] = lambda _: None) -> Outcome:
        """Send, wait and count. `progress` is called ten times a second."""
        await self._watch.look()
        self._started_s = time.monotonic()
        stop.tell(self._load.break_off)
        watching = asyncio.create_task(self._watch.watch()) if self._engines else None
        running = asyncio.create_task(self._load.run())
        try:
            if stop.said:
                self._load.break_off()
            await self._bounded(running, progress)
        finally:
            if watching is not None:
                watching.cancel()
            running.cancel()
        await self._watch.look()
        return self._outcome(running.result(), interrupted=stop.said)

    async def _bounded(
        self, running: asyncio.Task[list[StreamRecord]], progress: Callable[[Trial], None]
    ) -> None:
        closed = broken_off = False
        while not running.done():
            await asyncio.wait([running], timeout=TICK_S)
            progress(self)
            if not closed and self.elapsed_s >= self.bounds.duration_s:
                closed = True
                self._load.close()
            if not broken_off and self.elapsed_s >= self.bounds.duration_s + self.bounds.drain_s:
                broken_off = True
                self._load.break_off()

    def _outcome(self, records: list[StreamRecord], *, interrupted: bool) -> Outcome:
        stalls = self._load.stalls
        numbers = report(records, self._watch.samples, stalls) if records else None
        span_s = numbers.makespan_s if numbers is not None else 0.0
        return Outcome(
            name=self.name,
            url=self.url,
            report=numbers,
            score=score(records, self._objective, span_s, stalls),
            tenants=by_tenant(records, self._objective, span_s, stalls),
            records=tuple(records),
            samples=tuple(self._watch.samples),
            started_s=self._started_s,
            left_out=self._load.left_out,
            interrupted=interrupted,
            watched=bool(self._engines),
        )
