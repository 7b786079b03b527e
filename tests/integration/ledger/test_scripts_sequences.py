"""Orphans of an engine that also tells how many sequences it has: they are counted by those."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.ledger.process import Pool, open_pool
from unit.ledger.pool import ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def orphaned(redis_server: RedisServer) -> AsyncIterator[Pool]:
    """Engine `a`: two live sequences of 10 blocks, and four of 15 of a process that is gone."""
    async with open_pool(redis_server) as pool:
        p, gone = await pool.join("p", engine()), await pool.join("g", engine())
        for number in range(2):
            await p.hold(ask(f"x{number}", blocks=10))
        for number in range(4):
            await gone.hold(ask(f"y{number}", blocks=15, prefill_tokens=4))
        await pool.expire("g")
        await pool.scripts.reap()
        yield pool


@pytest.mark.parametrize(
    ("readings", "left"),
    [
        ([2], cost(60, 4, 16)),
        ([2, 2], None),
        ([1, 2], None),
        ([1, 3], cost(60, 4, 16)),
        ([6, 6], cost(60, 4, 16)),
        ([6, 4, 4], cost(60, 4, 16)),
        ([6, 4, 4, 2], cost(60, 4, 16)),
        ([6, 4, 4, 2, 2], None),
        ([9, 9], cost(60, 4, 16)),
    ],
    ids=str,
)
async def test_two_readings_in_a_row_decide_however_few_blocks_are_in_use(orphaned, readings, left):
    """All are free or none is: of four not even one may be there."""
    held = None
    for seqs in readings:
        _, held = await orphaned.scripts.settle("a", 0, seqs)
        await orphaned.check()
    assert held == (await orphaned.use()).reserved
    assert (await orphaned.orphaned()).get("g") == left
    assert (await orphaned.use()).reserved == cost(20, 2) + (left or cost(0, 0, 0))


async def test_of_many_a_few_may_be_live_ones_that_ended_meanwhile(redis_server):
    async with open_pool(redis_server) as pool:
        p, gone = await pool.join("p", engine(seqs=1000)), await pool.join("g", engine(seqs=1000))
        await p.hold(ask("x", blocks=1))
        for number in range(16):
            await gone.hold(ask(f"y{number}", blocks=1))
        await pool.expire("g")
        await pool.scripts.reap()
        for seqs, left in ((3, 16), (3, 16), (2, 16), (2, None)):
            await pool.scripts.settle("a", 0, seqs)
            assert (await pool.orphaned()).get("g") == (None if left is None else cost(16, 16))


async def test_one_that_was_only_cut_off_takes_back_all_of_it(orphaned):
    for _ in range(2):
        await orphaned.scripts.settle("a", 0, 4)
    gone = orphaned.processes["g"]
    await gone.beat()
    assert (await orphaned.use()).reserved == cost(80, 6, 16)
    assert await orphaned.orphaned() == {}
    await orphaned.check()
