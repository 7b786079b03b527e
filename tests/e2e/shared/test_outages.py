"""Redis fails under load: streams go on, the queue keeps its order, and nothing is admitted twice."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

import pytest

from e2e.shared.outages import Fault, outage
from e2e.shared.rig import (
    GRACE_S,
    LEASE_S,
    at_zero,
    crowds,
    load_rows,
    order_of,
    over_row,
    records_of,
    sampling,
    saturated,
    unfinished,
    until,
)
from e2e.shared.truth import truth
from kvgate.load import StreamEnd, StreamRecord
from support.replicas import Fleet, PoolSizes

LONG = os.environ.get("KVGATE_SOAK") == "1"
SIZES = PoolSizes() if LONG else PoolSizes(sessions_per_engine=30)
CLIENTS = 2 * SIZES.sessions
PARTITION_S = 10.0
AFTER_S = 30.0 if LONG else 4.0
"""Under load, after Redis is back."""
QUEUE_WAIT_S = 7.0
"""In `closed`: above the usual wait at this load, below the partition."""
APART_S = 1.0
"""Arrivals this far apart have an order, whatever the sockets and the two cores do to them."""
OVERTAKEN_SHARE_MAX = 0.02
"""A queue that lost its order overtakes in half of all pairs."""

FAULTS = [fault for fault in Fault if LONG or fault is not Fault.FREEZE]

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(600 if LONG else 150)]


def in_flight(records: Sequence[StreamRecord], at_s: float) -> list[StreamRecord]:
    """Had their first token by then and ended later."""
    return [
        r
        for r in records
        if r.token_times_s and r.token_times_s[0] < at_s and (r.ended_s is None or r.ended_s > at_s)
    ]


def is_refusal(record: StreamRecord, status: int, reason: str) -> bool:
    return (record.status, record.reason) == (status, reason)


async def normal_again(fleet: Fleet) -> float:
    """Until every replica works with Redis; seconds."""

    async def all_shared() -> bool:
        return {view["mode"] for view in await fleet.views()} == {"redis"}

    return await until(all_shared, "every replica back on the shared ledger")


@pytest.mark.parametrize("fault", FAULTS)
async def test_in_mode_local(fault, tmp_path, measured):
    async with (
        outage(fault, PARTITION_S) as redis_that_fails,
        Fleet(SIZES, ledgers=redis_that_fails.urls, folder=tmp_path) as fleet,
        sampling(fleet) as sampled,
    ):
        async with crowds(fleet, CLIENTS) as made:
            await saturated(fleet)
            await asyncio.sleep(3)
            struck_s = time.monotonic()
            await redis_that_fails.strike()
            healed_s = time.monotonic()
            back_s = await normal_again(fleet)
            await asyncio.sleep(AFTER_S)
            stopped_s = time.monotonic()
        zero_s = await at_zero(fleet)
        async with truth(redis_that_fails.server()) as ledger:
            problems, zero_in_redis = await ledger.verify(), await ledger.is_zero()
    records = records_of(made)
    orders = [order_of(crowd.records, struck_s, APART_S) for crowd in made]
    overall = order_of(records, struck_s, APART_S)
    settled_s = min(struck_s + LEASE_S, healed_s + GRACE_S)
    before, after = sampled.over(until_s=settled_s), sampled.over(since_s=settled_s)
    preempted_later = sampled.preemptions - sampled.preemptions_until(settled_s)
    measured(
        load_rows(records, sampled)
        | {
            "Redis away (s), normal again after (s)": [round(healed_s - struck_s, 2), round(back_s, 2)],
            "streams in flight at the fault": len(in_flight(records, struck_s)),
            f"over capacity until {settled_s - struck_s:.2f} s after the fault": over_row(before, struck_s),
            "over capacity from then on": over_row(after, struck_s),
            "preemptions later": preempted_later,
            "capacity in use during and after the fault": [
                round(sampled.sessions_mean(struck_s, healed_s) / SIZES.sessions, 2),
                round(sampled.sessions_mean(healed_s, stopped_s) / SIZES.sessions, 2),
            ],
            "waiting pairs overtaken, of one replica": f"{sum(o.overtaken for o in orders)} of {sum(o.pairs for o in orders)}",
            "waiting pairs overtaken, of all": f"{overall.overtaken} of {overall.pairs}",
            "all sums zero after (s)": zero_s,
        }
    )
    assert len(in_flight(records, struck_s)) > SIZES.sessions / 2
    assert unfinished(records) == []
    assert sum(order.pairs for order in orders) > CLIENTS / 10, "a queue to speak of"
    assert sum(order.overtaken for order in orders) <= OVERTAKEN_SHARE_MAX * sum(
        order.pairs for order in orders
    )
    if fault is Fault.FLUSH:
        assert overall.share <= OVERTAKEN_SHARE_MAX
    assert after.samples == 0
    assert preempted_later == 0
    assert zero_s < LEASE_S
    assert zero_in_redis
    assert problems == []
    assert fleet.trouble() == []


@pytest.mark.parametrize("fault", [Fault.PARTITION])
async def test_in_mode_closed(fault, tmp_path, measured):
    """Streams go on; who waits, waits on; refusals begin when a wait is over, with 503."""
    async with (
        outage(fault, PARTITION_S) as redis_that_fails,
        Fleet(
            SIZES,
            ledgers=redis_that_fails.urls,
            folder=tmp_path,
            on_failure="closed",
            queue_wait=f"{QUEUE_WAIT_S:g}s",
        ) as fleet,
        sampling(fleet) as sampled,
    ):
        async with crowds(fleet, CLIENTS, retries=0) as made:
            await saturated(fleet)
            await asyncio.sleep(3)
            struck_s = time.monotonic()
            await redis_that_fails.strike()
            healed_s = time.monotonic()
            back_s = await normal_again(fleet)
            await asyncio.sleep(AFTER_S)
            stopped_s = time.monotonic()
        zero_s = await at_zero(fleet)
        async with truth(redis_that_fails.server()) as ledger:
            problems, zero_in_redis = await ledger.verify(), await ledger.is_zero()
    records = records_of(made)
    refused = [record for record in records if record.end is StreamEnd.REFUSED]
    waits_s = sorted((record.ended_s or 0.0) - record.sent_s for record in refused)
    started = [r for r in records if r.token_times_s and struck_s + LEASE_S < r.token_times_s[0] < healed_s]
    measured(
        load_rows(records, sampled)
        | {
            "Redis away (s), normal again after (s)": [round(healed_s - struck_s, 2), round(back_s, 2)],
            "refused": f"{len(refused)}, after {waits_s[0]:.2f} s to {waits_s[-1]:.2f} s" if refused else "0",
            "first refusal after the fault (s)": min((r.ended_s or 0.0) - struck_s for r in refused)
            if refused
            else None,
            "sessions started while away": len(started),
            "over capacity": over_row(sampled.over(), struck_s),
            "capacity in use after": round(
                sampled.sessions_mean(healed_s + 2, stopped_s) / SIZES.sessions, 2
            ),
            "all sums zero after (s)": zero_s,
        }
    )
    assert {record.end for record in in_flight(records, struck_s)} == {StreamEnd.COMPLETED}
    assert {record.end for record in records} == {StreamEnd.COMPLETED, StreamEnd.REFUSED}
    away = [record for record in refused if (record.ended_s or 0.0) < healed_s]
    later = [record for record in refused if record.sent_s + QUEUE_WAIT_S > healed_s + back_s]
    assert away
    assert all(is_refusal(record, 503, "ledger_unavailable") for record in away)
    assert all(is_refusal(record, 429, "queue_timeout") for record in later), "as on any day of such a load"
    assert waits_s[0] >= 0.98 * QUEUE_WAIT_S
    assert started == []
    assert sampled.over().samples == 0
    assert sampled.preemptions == 0
    assert zero_s < LEASE_S
    assert zero_in_redis
    assert problems == []
    assert fleet.trouble() == []
