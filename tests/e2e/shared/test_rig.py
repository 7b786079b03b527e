"""The rig itself, on one replica with a ledger of its own: it must see what there is to see."""

from __future__ import annotations

import asyncio

import pytest

from e2e.shared.rig import (
    Order,
    Sampled,
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
from kvgate.load import LoadRun, StreamEnd, StreamRecord
from support.replicas import Fleet, PoolSizes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SMALL = PoolSizes(sessions_per_engine=15, step_ms=50)


async def test_one_replica_at_twice_its_load(tmp_path, measured):
    async with Fleet(SMALL, ledgers=["memory://"], folder=tmp_path) as fleet, sampling(fleet) as sampled:
        async with crowds(fleet, clients=2 * SMALL.sessions) as made:
            await saturated(fleet)
            await asyncio.sleep(4)
        zero_s = await at_zero(fleet)
    records = records_of(made)
    measured(load_rows(records, sampled) | {"over": over_row(sampled.over()), "at zero after (s)": zero_s})
    assert unfinished(records) == []
    assert len(records) > 3 * SMALL.sessions
    assert sampled.over().samples == 0
    assert sampled.over().of > 200
    assert max(sample.sessions for sample in sampled.samples) == SMALL.sessions_per_engine
    assert sampled.preemptions == 0
    assert fleet.trouble() == []


async def test_without_a_ledger_the_rig_sees_over_admission(tmp_path, measured):
    """The engines directly, with four times of what they hold."""
    async with Fleet(SMALL, ledgers=[], folder=tmp_path) as fleet, sampling(fleet) as sampled:
        records = await LoadRun(fleet.engines, SMALL.workload(4 * SMALL.sessions)).run()
    measured(load_rows(records, sampled) | {"over": over_row(sampled.over())})
    assert sampled.over().samples > 0
    assert sampled.over().sessions_max > SMALL.sessions_per_engine
    assert sampled.preemptions > 0


async def test_a_killed_replica_takes_its_streams_along_and_comes_back(tmp_path):
    async with Fleet(SMALL, ledgers=["memory://"] * 2, folder=tmp_path) as fleet:
        async with crowds(fleet, clients=SMALL.sessions // 2) as (dying, other):
            await asyncio.sleep(2)
            dying.replica.kill()
            assert dying.replica.processes() == []
            await fleet.restart(dying.replica)
            before = dying.completed

            async def serves_again() -> bool:
                return dying.completed > before

            await until(serves_again, "a session at the replica that came back")
        assert any(record.end is StreamEnd.FAILED for record in dying.records)
        assert unfinished(other.records) == []


def waited(*first_tokens_s: float) -> list[StreamRecord]:
    """Sent a second apart from 0 on."""
    return [
        StreamRecord(n, "", 1, float(n), token_times_s=[first_s]) for n, first_s in enumerate(first_tokens_s)
    ]


def test_order_is_judged_over_those_that_waited_at_the_moment():
    assert order_of(waited(10, 11, 12, 13), at_s=9, apart_s=0.5) == Order(6, 0)
    assert order_of(waited(13, 12, 11, 10), at_s=9, apart_s=0.5) == Order(6, 6)
    assert order_of(waited(13, 12, 11, 10), at_s=9, apart_s=1.5) == Order(3, 3), (
        "neighbours are not told apart"
    )
    assert order_of(waited(13, 1, 2, 10), at_s=9, apart_s=0.5) == Order(1, 1), "two had started before"
    assert order_of(waited(10, 11, 12, 13), at_s=2.5, apart_s=0.5) == Order(3, 0), "one was sent later"


def test_samples_are_judged_by_sessions_and_by_blocks():
    sampled = Sampled(SMALL)
    blocks = SMALL.blocks - 1
    sampled.read(
        ["1.00 0 80 120 14 1 0", "1.01 1 80 120 14 2 3", "1.02 0", f"1.03 0 {blocks + 1} {blocks} 1 0 2"]
    )
    assert sampled.missed == 1
    assert sampled.preemptions == 5
    assert (sampled.over().samples, sampled.over().of, sampled.over().sessions_max) == (2, 3, 1)
    assert sampled.over(since_s=1.02).samples == 1
    assert [sessions for _, sessions in sampled.pool_sessions()] == [15, 31, 17]


def test_full_again_is_a_mean_over_a_second():
    sampled = Sampled(PoolSizes(engines=1, sessions_per_engine=10))
    sampled.read(f"{at / 10} 0 0 80 {10 if at == 3 or at >= 20 else 5} 0 0" for at in range(50))
    assert sampled.full_again_s(0.0) == pytest.approx(1.8)
    assert sampled.full_again_s(4.5) is None
