"""A replica that is stopped for longer than its lease and wakes up: it must not believe what it remembers."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from e2e.shared.rig import (
    LEASE_S,
    at_zero,
    crowds,
    load_rows,
    over_row,
    records_of,
    sampling,
    saturated,
    unfinished,
)
from e2e.shared.truth import truth, verified_by_command
from kvgate.ledger.batching import stop
from support.redis_server import RedisServer
from support.replicas import Fleet, PoolSizes

LONG = os.environ.get("KVGATE_SOAK") == "1"
SIZES = PoolSizes() if LONG else PoolSizes(sessions_per_engine=30)
CLIENTS = 2 * SIZES.sessions
STOPPED_S = 15.0 if LONG else LEASE_S + 4.0
STOPS = 4 if LONG else 1

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(600 if LONG else 120)]


async def test_a_process_that_wakes_up_after_its_lease(tmp_path, measured):
    with RedisServer() as server:
        async with (
            Fleet(SIZES, ledgers=[server.url] * 3, folder=tmp_path) as fleet,
            truth(server) as ledger,
            sampling(fleet) as sampled,
        ):
            watching = asyncio.create_task(ledger.watch())
            stopped_s = awake_s = 0.0
            async with crowds(fleet, CLIENTS) as made:
                for number in range(STOPS):
                    await saturated(fleet)
                    await asyncio.sleep(2)
                    sleeper = fleet.replicas[number % len(fleet.replicas)]
                    stopped_s = time.monotonic()
                    sleeper.stop()
                    await asyncio.sleep(STOPPED_S)
                    awake_s = time.monotonic()
                    sleeper.resume()
                    await asyncio.sleep(LEASE_S)
            zero_s = await at_zero(fleet)
            await stop(watching)
            verdict = await verified_by_command(server.url)
            zero_in_redis = await ledger.is_zero()
    records = records_of(made)
    others = sampled.sessions_mean(awake_s - 1, awake_s) / SIZES.sessions
    measured(
        load_rows(records, sampled)
        | {
            "over capacity": over_row(sampled.over(), stopped_s),
            "capacity in use by the others at the end of the last stop": others,
            "all sums zero after (s)": zero_s,
            "checks of all invariants": ledger.looks,
        }
    )
    assert unfinished(records) == []
    assert sampled.over().samples == 0
    assert sampled.preemptions == 0
    assert others > 0.8, "the others can use what the sleeper's finished streams left"
    assert zero_s < LEASE_S
    assert zero_in_redis
    assert ledger.looks > STOPPED_S
    assert ledger.problems == []
    assert verdict[0] == 0, verdict[1]
    assert fleet.trouble() == []
