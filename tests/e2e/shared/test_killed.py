"""kill −9 of a replica under load, again and again: the others go on, and what it held comes back."""

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
    shown,
    unfinished,
)
from e2e.shared.truth import truth, verified_by_command
from kvgate.ledger.batching import stop
from kvgate.load import StreamEnd, StreamRecord
from support.redis_server import RedisServer
from support.replicas import Fleet, PoolSizes

LONG = os.environ.get("KVGATE_SOAK") == "1"
SIZES = PoolSizes() if LONG else PoolSizes(sessions_per_engine=30)
CLIENTS = 2 * SIZES.sessions
KILLS = 10 if LONG else 1
BACK_S_MAX = LEASE_S + 3.0
"""Until what a dead process held is used again: its lease, then two scrapes that show the blocks free."""

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(900 if LONG else 150)]


def lost_with(killed: list[tuple[str, float, float]], record: StreamRecord) -> bool:
    """Whether this session was at a replica while that was dead."""
    ended_s = record.ended_s or time.monotonic()
    return any(
        record.url == url and record.sent_s < up_s and ended_s > down_s for url, down_s, up_s in killed
    )


async def test_what_a_killed_replica_held_comes_back(tmp_path, measured):
    killed: list[tuple[str, float, float]] = []
    with RedisServer() as server:
        async with (
            Fleet(SIZES, ledgers=[server.url] * 3, folder=tmp_path) as fleet,
            truth(server) as ledger,
            sampling(fleet) as sampled,
        ):
            watching = asyncio.create_task(ledger.watch())
            async with crowds(fleet, CLIENTS) as made:
                for number in range(KILLS):
                    await saturated(fleet)
                    await asyncio.sleep(2)
                    dying = fleet.replicas[number % len(fleet.replicas)]
                    down_s = time.monotonic()
                    dying.kill()
                    await asyncio.sleep(BACK_S_MAX + 1.5)
                    await fleet.restart(dying)
                    killed.append((dying.url, down_s, time.monotonic()))
                await saturated(fleet)
            zero_s = await at_zero(fleet)
            await stop(watching)
            verdict = await verified_by_command(server.url)
            zero_in_redis = await ledger.is_zero()
    records = records_of(made)
    others = [record for record in records if not lost_with(killed, record)]
    back_s = [sampled.full_again_s(down_s + 0.5) for _, down_s, _ in killed]
    measured(
        load_rows(records, sampled)
        | {
            "kills": KILLS,
            "streams that broke with them": sum(
                1 for r in records if r.end is StreamEnd.FAILED and r.token_times_s
            ),
            "over capacity": over_row(sampled.over()),
            "full again after (s)": ", ".join(shown(None if s is None else s + 0.5) for s in back_s),
            "all sums zero after (s)": zero_s,
            "checks of all invariants": ledger.looks,
        }
    )
    assert unfinished(others) == []
    assert len(others) > CLIENTS
    assert any(record.end is StreamEnd.FAILED for record in records), "the kill hit nobody"
    assert sampled.over().samples == 0
    assert sampled.preemptions == 0
    assert all(s is not None and s + 0.5 <= BACK_S_MAX for s in back_s)
    assert zero_s < LEASE_S
    assert zero_in_redis
    assert ledger.problems == []
    assert verdict[0] == 0, verdict[1]
    assert fleet.trouble() == []
