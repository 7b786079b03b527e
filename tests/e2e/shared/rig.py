"""Load, sight and judgement for the tests of the shared ledger.

`Crowd` keeps clients busy on each replica, `Sampled` is what the engines themselves said every 10 ms, `Truth`
reads the ledger in Redis. What is asserted is counted in sessions, blocks, order and shares of time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from kvgate.config import Settings
from kvgate.ledger.keeper import reassert_s
from kvgate.load import LoadRun, Patience, StreamEnd, StreamRecord
from kvgate.load.report import percentile
from support.replicas import Fleet, PoolSizes, Replica

SAMPLER = Path(__file__).with_name("sampler.py")
LEASE_S: float = Settings.model_fields["ledger_lease_s"].default
HEARTBEAT_S: float = Settings.model_fields["ledger_heartbeat_s"].default
GRACE_S = reassert_s(HEARTBEAT_S)
"""The rig runs with the defaults."""
SOON_S = 30.0
"""For things that take a moment; only a broken program takes this long."""
PAUSE_AFTER_FAILURE_S = 0.5
"""A client whose server is gone tries again; without a pause it would only burn CPU."""


# Load


class Crowd(LoadRun):
    """Clients of one replica that send one session after the other until told to stop."""

    def __init__(self, replica: Replica, sizes: PoolSizes, clients: int, *, seed: int, retries: int) -> None:
        super().__init__(
            replica.url, sizes.endless(seed), concurrency=clients, patience=Patience(retries_max=retries)
        )
        self.replica = replica
        self._done: asyncio.Task[list[StreamRecord]] | None = None

    async def _client(self, http: aiohttp.ClientSession) -> None:
        for index in self._todo:
            if self._closed:
                return
            mine = len(self.records)
            await self._stream(http, index)
            if self.records[mine].end is not StreamEnd.COMPLETED:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    def start(self) -> None:
        self._done = asyncio.create_task(self.run())

    async def ended(self) -> None:
        assert self._done is not None
        await self._done

    @property
    def completed(self) -> int:
        return sum(1 for record in self.records if record.end is StreamEnd.COMPLETED)


@asynccontextmanager
async def crowds(fleet: Fleet, clients: int, *, retries: int = 5) -> AsyncIterator[list[Crowd]]:
    """`clients` spread over the replicas. At the end all sessions are finished, unless the test failed."""
    each = clients // len(fleet.replicas)
    made = [Crowd(r, fleet.sizes, each, seed=n, retries=retries) for n, r in enumerate(fleet.replicas)]
    for crowd in made:
        crowd.start()
    try:
        yield made
        for crowd in made:
            crowd.close()
        await asyncio.gather(*(crowd.ended() for crowd in made))
    finally:
        for crowd in made:
            if crowd._done is not None:
                crowd._done.cancel()
        await asyncio.gather(*(c._done for c in made if c._done), return_exceptions=True)


def records_of(made: Iterable[Crowd]) -> list[StreamRecord]:
    return [record for crowd in made for record in crowd.records]


def unfinished(records: Iterable[StreamRecord]) -> list[str]:
    """What went wrong, for a message; [] when every session completed."""
    bad = [record for record in records if record.end is not StreamEnd.COMPLETED]
    kinds = Counter((str(record.end), record.status, (record.error or "")[:160]) for record in bad)
    return [f"{count} × {kind}" for kind, count in kinds.most_common(6)]


# Order


@dataclass(frozen=True, slots=True)
class Order:
    """How well a queue kept its order."""

    pairs: int
    """Of waiting sessions, one sent clearly before the other."""
    overtaken: int
    """Of those, where the later one got its first token clearly earlier."""

    @property
    def share(self) -> float:
        return self.overtaken / self.pairs if self.pairs else 0.0


def order_of(records: Iterable[StreamRecord], at_s: float, apart_s: float) -> Order:
    """Of those that waited at `at_s`. "Clearly" is `apart_s`: arrival is seen from outside only."""
    waited = [
        (record.sent_s, record.token_times_s[0])
        for record in records
        if record.sent_s < at_s and record.token_times_s and record.token_times_s[0] > at_s
    ]
    waited.sort()
    pairs = [
        (early, late)
        for n, early in enumerate(waited)
        for late in waited[n + 1 :]
        if late[0] > early[0] + apart_s
    ]
    return Order(len(pairs), sum(1 for early, late in pairs if late[1] + apart_s < early[1]))


# Sight


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one engine."""

    at_s: float
    engine: int
    blocks_used: int
    blocks_usable: int
    running: int
    waiting: int
    preemptions: int

    @property
    def sessions(self) -> int:
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class Over:
    """Moments at which an engine had more than fits."""

    samples: int
    of: int
    sessions_max: int
    """The most that were too many at one moment."""
    first_s: float | None
    last_s: float | None


class Sampled:
    """What the engines said, in the order of time."""

    def __init__(self, sizes: PoolSizes) -> None:
        self._sizes = sizes
        self.samples: list[Sample] = []
        self.missed = 0

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            at_s, engine, *values = line.split()
            if values:
                self.samples.append(Sample(float(at_s), int(engine), *map(int, values)))
            else:
                self.missed += 1
        self.samples.sort(key=lambda sample: sample.at_s)

    @property
    def preemptions(self) -> int:
        """Since the engines started; they are started for the test."""
        return self.preemptions_until(float("inf"))

    def preemptions_until(self, at_s: float) -> int:
        last = {sample.engine: sample.preemptions for sample in self.samples if sample.at_s < at_s}
        return sum(last.values())

    def over(self, since_s: float = 0.0, until_s: float = float("inf")) -> Over:
        """Samples with more sessions than fit, or more blocks than there are."""
        mine = [sample for sample in self.samples if since_s <= sample.at_s < until_s]
        fits = self._sizes.sessions_per_engine
        too_many = [s for s in mine if s.sessions > fits or s.blocks_used > s.blocks_usable]
        return Over(
            len(too_many),
            len(mine),
            max((s.sessions - fits for s in too_many), default=0),
            too_many[0].at_s if too_many else None,
            too_many[-1].at_s if too_many else None,
        )

    def pool_sessions(self) -> list[tuple[float, int]]:
        """Time, and sessions of all engines together, at every sample."""
        latest: dict[int, int] = {}
        seen: list[tuple[float, int]] = []
        for sample in self.samples:
            latest[sample.engine] = sample.sessions
            seen.append((sample.at_s, sum(latest.values())))
        return seen

    def full_again_s(self, since_s: float, share: float = 0.9, over_s: float = 1.0) -> float | None:
        """Seconds from `since_s` until the pool ran `share` of what fits, as a mean over `over_s`; None if never."""
        pool = [(at_s, sessions) for at_s, sessions in self.pool_sessions() if at_s >= since_s]
        window: deque[tuple[float, int]] = deque()
        total = 0
        for at_s, sessions in pool:
            window.append((at_s, sessions))
            total += sessions
            while at_s - window[0][0] > over_s:
                total -= window.popleft()[1]
                if total >= share * self._sizes.sessions * len(window):
                    return window[0][0] - since_s
        return None

    def sessions_mean(self, since_s: float, until_s: float) -> float:
        """Mean over the samples of what the pool had."""
        mine = [sessions for at_s, sessions in self.pool_sessions() if since_s <= at_s < until_s]
        return sum(mine) / len(mine) if mine else 0.0

    def interval_ms(self, percent: float) -> float | None:
        """Between two looks at the same engine."""
        by_engine: dict[int, list[float]] = {}
        for sample in self.samples:
            by_engine.setdefault(sample.engine, []).append(sample.at_s)
        gaps = [b - a for times in by_engine.values() for a, b in pairwise(times)]
        found = percentile(gaps, percent)
        return None if found is None else found * 1000


@asynccontextmanager
async def sampling(fleet: Fleet) -> AsyncIterator[Sampled]:
    """Sample until the block ends; only then there is something to read."""
    sampled = Sampled(fleet.sizes)
    process = subprocess.Popen(
        [sys.executable, str(SAMPLER), *fleet.engines],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert await anyio.to_thread.run_sync(process.stdout.readline) == "ready\n"
        yield sampled
        printed, _ = await anyio.to_thread.run_sync(process.communicate)
        sampled.read(printed.splitlines())
    finally:
        process.kill()
        process.communicate()


# Waiting


async def until(is_so: Callable[[], Awaitable[bool]], what: str, within_s: float = SOON_S) -> float:
    """Wait for it; how long that took, in seconds. Fails with `what`."""
    start_s = time.monotonic()
    while not await is_so():
        assert time.monotonic() - start_s < within_s, f"not within {within_s:g} s: {what}"
        await anyio.sleep(0.05)
    return time.monotonic() - start_s


def is_zero(view: dict[str, Any]) -> bool:
    """Of `GET /admin/ledger`: nothing queued and nothing reserved."""
    names = ("reserved_blocks", "reserved_seqs", "reserved_prefill_tokens", "reservations")
    return view["queued"] == 0 and not any(engine[name] for engine in view["engines"] for name in names)


async def at_zero(fleet: Fleet, within_s: float = SOON_S) -> float:
    """Wait until every replica says that nothing is reserved and nobody waits; seconds."""

    async def all_zero() -> bool:
        return all(is_zero(view) for view in await fleet.views())

    return await until(all_zero, "the ledger at zero", within_s)


async def saturated(fleet: Fleet, within_s: float = SOON_S) -> None:
    """Wait until the engines are as good as full and others wait."""
    most = 0

    async def full() -> bool:
        nonlocal most
        async with aiohttp.ClientSession() as http:
            states = [await (await http.get(f"{url}/sim/state")).json() for url in fleet.engines]
        running: int = sum(state["running"] for state in states)
        most = max(most, running)
        return running >= 0.9 * fleet.sizes.sessions

    try:
        await until(full, f"{fleet.sizes.sessions} sessions running", within_s)
    except AssertionError as late:
        views = [json.dumps(view) for view in await fleet.views()]
        said = [str(late), f"at most {most} were", *views, *fleet.trouble()[:1]]
        raise AssertionError("\n".join(said)) from late


# Telling


@dataclass(frozen=True, slots=True)
class Table:
    """What a test measured."""

    title: str
    rows: dict[str, object]

    def lines(self) -> list[str]:
        width = max(map(len, self.rows))
        return [self.title, *(f"  {name:<{width}}  {shown(value)}" for name, value in self.rows.items())]


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return value if isinstance(value, str) else json.dumps(value)


def load_rows(records: Sequence[StreamRecord], sampled: Sampled) -> dict[str, object]:
    """The rows that every table has."""
    ends = Counter(str(record.end) for record in records)
    ttfts = [record.ttft_s for record in records if record.ttft_s is not None]
    return {
        "sessions": ", ".join(f"{count} {end}" for end, count in ends.most_common()),
        "first token p50, p99 (s)": f"{shown(percentile(ttfts, 50))}, {shown(percentile(ttfts, 99))}",
        "preemptions": sampled.preemptions,
        "samples (missed)": f"{len(sampled.samples)} ({sampled.missed})",
        "between samples p50, p99 (ms)": f"{shown(sampled.interval_ms(50))}, {shown(sampled.interval_ms(99))}",
    }


def over_row(over: Over, since_s: float = 0.0) -> str:
    if not over.samples:
        return f"0 of {over.of} samples"
    where = (
        ""
        if over.first_s is None or over.last_s is None
        else (f", from {over.first_s - since_s:.2f} s to {over.last_s - since_s:.2f} s")
    )
    return f"{over.samples} of {over.of} samples, at most {over.sessions_max} sessions{where}"
