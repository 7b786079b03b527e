"""What waiting costs Redis: who waits for ten seconds and more makes no more calls than who waits for none."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter

import aiohttp
import pytest

from e2e.shared.rig import (
    HEARTBEAT_S,
    at_zero,
    crowds,
    load_rows,
    records_of,
    sampling,
    saturated,
    unfinished,
)
from e2e.shared.truth import calls
from kvgate.ledger.restore import BEATS_PER_ROUND, PATROL_S
from kvgate.load import StreamEnd
from support.redis_server import RedisServer
from support.replicas import Fleet, PoolSizes

LONG = os.environ.get("KVGATE_SOAK") == "1"
SIZES = PoolSizes(sessions_per_engine=6)
CLIENTS = 6 * SIZES.sessions
"""Those of a session run, those of five wait: five times as long as a session takes."""
REPLICAS = 2
LOAD_S = 60.0 if LONG else 2.0
WAIT_S = 10.0
assert WAIT_S > PATROL_S, "long enough to be asked after"
CALLS_PER_ROUND = BEATS_PER_ROUND + 2
"""The beats, a look at the pool, and asking after all who wait for long."""
OF_REQUESTS = ("reserve", "release", "cancel", "reprice")
COUNTED = re.compile(r'^kvgate_ledger_call_duration_seconds_count\{call="(\w+)".*\} (\S+)$', re.MULTILINE)

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(300 if LONG else 120)]


async def calls_by_verb(fleet: Fleet) -> Counter[str]:
    """As all replicas together count them."""
    counted: Counter[str] = Counter()
    async with aiohttp.ClientSession() as http:
        for replica in fleet.replicas:
            async with http.get(replica.admin_url + "/metrics") as response:
                for verb, count in COUNTED.findall(await response.text()):
                    counted[verb] += round(float(count))
    return counted


async def test_two_calls_for_each_request_and_one_for_each_beat(tmp_path, measured):
    with RedisServer() as server:
        async with (
            Fleet(SIZES, ledgers=[server.url] * REPLICAS, folder=tmp_path) as fleet,
            sampling(fleet) as sampled,
        ):
            before, start_s, start_calls = await calls_by_verb(fleet), time.monotonic(), calls(server)
            async with crowds(fleet, CLIENTS) as made:
                await saturated(fleet)
                await asyncio.sleep(LOAD_S)
            await at_zero(fleet)
            made_calls, took_s = calls(server) - start_calls, time.monotonic() - start_s
            by_verb = await calls_by_verb(fleet) - before
    records = records_of(made)
    long_waits = [record for record in records if (record.ttft_s or 0.0) >= WAIT_S]
    admitted = sum(1 for record in records if record.end is StreamEnd.COMPLETED)
    of_requests = sum(by_verb[verb] for verb in OF_REQUESTS)
    shared = made_calls - by_verb.total()
    rounds_max = REPLICAS * (took_s / (HEARTBEAT_S * BEATS_PER_ROUND) + 1)
    measured(
        load_rows(records, sampled)
        | {
            f"waited {WAIT_S:g} s and more": len(long_waits),
            "calls by verb": ", ".join(f"{verb} {count}" for verb, count in sorted(by_verb.items())),
            "calls per admitted request": of_requests / admitted,
            "shared calls, and at most": f"{shared}, {CALLS_PER_ROUND * rounds_max:.0f}",
        }
    )
    assert unfinished(records) == []
    assert len(long_waits) >= SIZES.sessions
    assert of_requests <= 2 * admitted
    assert shared <= CALLS_PER_ROUND * rounds_max
    assert fleet.trouble() == []
