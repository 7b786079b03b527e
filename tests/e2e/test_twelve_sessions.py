"""The story, on the simulator: a pool that holds twelve sessions serves forty-eight of them.

Gaps are counted in engine steps from the engine's own log, so nothing here depends on how fast the machine is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from kvgate.load import StreamEnd, StreamRecord, offer, report, uniform
from kvgate.sim import SimServer
from kvgate_policies.engine_model import StepResult
from support.gateway import gateway

pytestmark = pytest.mark.e2e

SESSIONS = uniform("sim", count=48, prompt_tokens=192, output_tokens=129, seed=7)
"""192 + 129 - 1 slots are ten blocks of 32: twelve sessions fill 120 usable blocks exactly."""


def twelve() -> SimServer:
    """An engine that holds exactly twelve of them; steps of 10 ms, so that HTTP's latency is less than one."""
    return SimServer(blocks=121, block_size=32, max_model_len=2048, max_num_seqs=256, profile="fast:10")


@dataclass(frozen=True)
class Seen:
    """What the engine's step log says of a run."""

    steps: int
    preemptions: int
    recomputed_tokens: int
    running_max: int
    kv_max: int
    longest_gap_steps: int


def seen(log: Iterable[StepResult]) -> Seen:
    steps = list(log)
    emitted: defaultdict[str, list[int]] = defaultdict(list)
    for number, step in enumerate(steps):
        for sequence in step.tokens:
            emitted[sequence].append(number)
    gaps = [later - earlier for numbers in emitted.values() for earlier, later in pairwise(numbers)]
    return Seen(
        len(steps),
        sum(len(step.preempted) for step in steps),
        sum(step.recomputed_tokens for step in steps),
        max(step.running for step in steps),
        max(step.kv_used for step in steps),
        max(gaps),
    )


def all_complete(records: Sequence[StreamRecord]) -> bool:
    return [record.end for record in records] == [StreamEnd.COMPLETED] * len(SESSIONS.sessions)


async def test_direct_preempts_and_freezes_through_kvgate_nothing_does():
    async with twelve() as sim:
        records = await offer(sim.url, SESSIONS)
        direct = seen(sim.log)
        assert all_complete(records)
    assert direct.preemptions > 0
    assert direct.longest_gap_steps >= 100
    assert direct.recomputed_tokens > 0

    async with twelve() as sim, gateway([sim.url]) as gate:
        records = await offer(gate.url, SESSIONS)
        gated = seen(sim.log)
        await gate.at_zero()
        totals = gate.view.totals
    assert all_complete(records)
    assert report(records).completed == 48
    assert gated.preemptions == 0
    assert gated.recomputed_tokens == 0
    assert gated.running_max <= 12
    assert gated.kv_max <= 120
    assert gated.longest_gap_steps <= 4, "three decode steps, and the prefill of those that start"
    assert (totals["arrivals"], totals["grants"], totals["releases"]) == (48, 48, 48)
    assert gated.steps <= direct.steps * 1.1


async def test_first_tokens_come_in_the_order_of_arrival():
    async with twelve() as sim, gateway([sim.url]) as gate:
        records = await offer(gate.url, SESSIONS)
        sent = sorted(records, key=lambda record: record.sent_s)
        firsts = [record.token_times_s[0] for record in sent]
        # Those of one wave start in the same step; a later wave never starts before an earlier one has.
        waves = [firsts[start : start + 12] for start in range(0, 48, 12)]
        assert all(max(early) < min(late) for early, late in pairwise(waves))
        assert gate.view.totals["bypasses"] == 0
