"""A log of a whole kvgate under more load than it can serve: two engines, two tenants, clients that leave early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from kvgate.config import Settings, load
from kvgate.load import LoadRun, Patience, StreamEnd, StreamRecord
from kvgate.load.lengths import Independent, Uniform
from kvgate.load.mix import Tenant, drawn, poisson
from kvgate.replay import Hardware
from kvgate.sim import SimServer
from kvgate.traffic import Reading, read_requests
from kvgate_policies.engine_model import StepResult
from support.gateway import serving

ENGINES = 2
BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN, MAX_NUM_SEQS = 121, 32, 2048, 256
STEP_MS = 100
"""Far above what HTTP adds, and so few tokens a second that a busy machine brings them all in time."""
SIZES = Independent(Uniform(64, 512), Uniform(12, 60))
"""Eleven blocks a session: eleven run on an engine, for four seconds each; so two engines serve six a second."""
POLICY = """
version: 1
pools:
  sim:
    backends: [{urls}]
    max_num_seqs: {seqs}
defaults:
  queue: {{depth: 16, wait: 6s}}
tenants:
  chat:
    keys: [{{file: chat.key}}]
    weight: 3
  batch:
    keys: [{{file: batch.key}}]
    limit: 60%
    queue: {{depth: 8, wait: 9s}}
"""


@dataclass(frozen=True)
class Captured:
    log: Path
    policy: Path
    records: list[StreamRecord]
    hardware: Hardware
    """The engines, with the step time that they really had."""

    @property
    def left(self) -> int:
        return sum(record.end is StreamEnd.TIMED_OUT for record in self.records)


async def capture(directory: Path, seconds: float, *, seed: int = 3) -> Captured:
    """Send it for so long, and let what runs come to its end."""
    log = directory / "requests.jsonl"
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(_engine()) for _ in range(ENGINES)]
        policy = _written_policy(directory, [engine.url for engine in engines])
        gate = await stack.enter_async_context(serving(_settings(policy, log)))
        runs = [
            _run(
                gate.url, seconds, 8.5, (Tenant("chat", "sk-chat", 3), Tenant("batch", "sk-batch", 1)), seed
            ),
            _run(gate.url, seconds, 0.7, (Tenant("chat", "sk-chat"),), seed + 1, leaves_after_s=3.0),
        ]
        records = await asyncio.gather(*(run.run() for run in runs))
        await gate.at_zero()
    factor = slowness(log, {engine.url: engine.log for engine in engines})
    hardware = Hardware(
        ENGINES, BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN, MAX_NUM_SEQS, 2048, f"fast:{STEP_MS * factor:.3f}"
    )
    return Captured(log, policy, [record for one in records for record in one], hardware)


def slowness(log: Path, steps: Mapping[str, Iterable[StepResult]]) -> float:
    """How many times as long as its profile says a step took: an engine on a busy machine wakes too late.

    It is busy from each grant to the end of the request, by the log, and steps all that time.
    """
    busy_s, nominal_s = 0.0, 0.0
    logged = [one for one in read_requests(log, Reading()) if one.queue_s is not None]
    for url, done in steps.items():
        spans = sorted(
            (o.arrived + (o.queue_s or 0.0), o.arrived + o.total_s) for o in logged if o.engine == url
        )
        until_s = 0.0
        for begin_s, end_s in spans:
            busy_s += max(end_s - max(begin_s, until_s), 0.0)
            until_s = max(until_s, end_s)
        nominal_s += sum(step.step_s for step in done)
    return busy_s / nominal_s


def _engine() -> SimServer:
    return SimServer(
        blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        profile=f"fast:{STEP_MS}",
        model="sim",
    )


def _written_policy(directory: Path, urls: list[str]) -> Path:
    for name in ("chat", "batch"):
        (directory / f"{name}.key").write_text(f"sk-{name}")
    policy = directory / "policy.yaml"
    policy.write_text(POLICY.format(urls=", ".join(urls), seqs=MAX_NUM_SEQS))
    return policy


def _settings(policy: Path, log: Path) -> Settings:
    return load(policy, {}, {"port": "0", "admin_port": "0", "request_log": str(log)})


def _run(
    url: str,
    seconds: float,
    rate: float,
    tenants: tuple[Tenant, ...],
    seed: int,
    *,
    leaves_after_s: float = 300.0,
) -> LoadRun:
    arrivals_s = list(takewhile(lambda at_s: at_s < seconds, poisson(rate, seed)))
    workload = drawn("sim", len(arrivals_s), SIZES, seed=seed, tenants=tenants)
    patience = Patience(stream_s_max=leaves_after_s, retries_max=0)
    return LoadRun(url, workload, arrivals_s=arrivals_s, patience=patience)
