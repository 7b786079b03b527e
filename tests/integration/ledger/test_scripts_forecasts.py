"""Forecasts in the scripts: what beats and releases do to their sums, and what becomes of those of the gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from integration.ledger.process import Pool, Process, open_pool
from kvgate.errors import LedgerCorrupt
from kvgate.ledger.scripts import Sums
from kvgate_policies.types import KVCost
from unit.ledger.conformance_forecasts import POINTS, flat, soft, want
from unit.ledger.pool import ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def pool(redis_server: RedisServer) -> AsyncIterator[Pool]:
    async with open_pool(redis_server) as pool:
        yield pool


def renew(process: Process, **costs: KVCost) -> None:
    """Known to the process alone, until it beats."""
    for request_id, price in costs.items():
        process.held[request_id] = replace(process.held[request_id], cost=price)


async def tenant_use(pool: Pool, name: str = "tenant") -> tuple[int, int]:
    uses = {use.name: use for use in (await pool.scripts.view()).tenants}
    return (uses[name].blocks, uses[name].reservations) if name in uses else (0, 0)


class TestBeat:
    async def test_it_tells_what_is_expected_now(self, pool):
        p = await pool.join("p", engine())
        await p.hold(want("r1", soft(90, 10, 20, 30)))
        await p.hold(want("r2", flat(90, 10, 2)))
        renew(p, r1=soft(90, 25, 29, 7, deviation=1))
        await p.beat()
        await pool.check()
        assert (await pool.use()).reserved == soft(90, 25, 29, 7, deviation=1) + flat(90, 10, 2)
        assert await tenant_use(pool) == (29 + 10, 2)
        (holding,) = (await pool.scripts.inspect()).holdings
        assert holding.sums == Sums((await pool.use()).reserved, 2, 39)

    async def test_what_falls_lets_those_start_who_wait(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(want("x", flat(90, 90)))
        await q.queue(want("r", flat(90, 40)))
        renew(p, x=flat(90, 61))
        await p.beat()
        await q.read()
        assert "r" not in q.held
        renew(p, x=flat(90, 60))
        await p.beat()
        await q.read()
        assert "r" in q.held

    async def test_one_that_is_older_than_a_release_brings_nothing_back(self, pool):
        p = await pool.join("p", engine())
        await p.hold(want("r1", flat(90, 30)))
        await p.hold(want("r2", flat(90, 40)))
        rel, sums = p.rel, p.sums()
        await p.release("r1")
        await p.scripts.beat("p", ack=p.ack, rel=rel, sums=sums, closed=())
        assert (await pool.use()).reserved == flat(90, 40)

    async def test_grants_that_were_not_read_stay_counted_beside_it(self, pool):
        p = await pool.join("p", engine())
        await p.hold(want("r1", flat(90, 30)))
        await p.reserve(want("r2", soft(90, 1, 2, 40, deviation=2)))
        renew(p, r1=flat(90, 20))
        await p.beat()
        await pool.check()
        assert (await pool.use()).reserved == flat(90, 20) + soft(90, 1, 2, 40, deviation=2)
        assert await tenant_use(pool) == (20 + 40, 2)
        p.ack, p.held = 1 << 52, {}
        await p.beat()
        assert ((await pool.use()).reserved, await tenant_use(pool)) == (cost(0, 0), (0, 0))


class TestRelease:
    async def test_what_the_last_beat_said_is_given_back(self, pool):
        p = await pool.join("p", engine())
        await p.hold(want("r1", flat(90, 30)))
        await p.hold(want("r2", flat(90, 10)))
        renew(p, r1=flat(90, 50))
        await p.beat()
        renew(p, r1=flat(90, 77))
        await p.release("r1")
        await pool.check()
        assert ((await pool.use()).reserved, await tenant_use(pool)) == (flat(90, 10), (10, 1))

    async def test_more_than_is_expected_is_refused_and_nothing_changed(self, pool):
        p = await pool.join("p", engine())
        await p.hold(want("r1", flat(90, 30)))
        await p.hold(want("r2", flat(90, 30)))
        for too_much in (flat(90, 61), flat(90, 30, 1), cost(90)):
            with pytest.raises(LedgerCorrupt, match="nothing was changed"):
                await p.scripts.release("p", p.rel + 1, "a", "tenant", too_much, use_blocks=30)
        assert (await pool.use()).reserved == flat(90, 30) + flat(90, 30)

    async def test_no_forecast_is_left_to_nobody(self, pool):
        """Expected blocks without a reservation would be there for ever."""
        p = await pool.join("p", engine())
        await p.hold(want("r1", flat(90, 30)))
        with pytest.raises(LedgerCorrupt):
            await p.scripts.release("p", 1, "a", "tenant", flat(90, 20), use_blocks=30)
        with pytest.raises(LedgerCorrupt):
            await p.scripts.release("p", 1, "a", "tenant", flat(90, 30), use_blocks=29)


class TestGone:
    async def test_its_largest_mean_and_variance_are_counted_at_every_point(self, pool):
        p, gone = await pool.join("p", engine()), await pool.join("g", engine())
        await p.hold(want("x", soft(90, 5, 5, 5)))
        await gone.hold(want("y", soft(90, 10, 40, 20, deviation=3)))
        await pool.expire("g")
        await pool.scripts.reap()
        await pool.check()
        assert await pool.orphaned() == {"g": flat(90, 40, 3)}
        assert (await pool.use()).reserved == soft(90, 5, 5, 5) + flat(90, 40, 3)
        await p.queue(want("r", soft(90, *[0] * (POINTS - 1), 61)))

    async def test_its_tenants_use_ends(self, pool):
        p, gone = await pool.join("p", engine()), await pool.join("g", engine())
        await p.hold(want("x", flat(90, 5)))
        await gone.hold(want("y", flat(90, 40)))
        await pool.expire("g")
        await pool.scripts.reap()
        assert await tenant_use(pool) == (5, 1)

    async def test_one_that_comes_back_says_what_it_expects(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(want("x", soft(90, 10, 40, 20)))
        await p.reserve(want("unread", soft(90, 1, 1, 9)))
        await pool.expire("p")
        await q.beat()
        renew(p, x=soft(90, 38, 20, 1))
        assert (await p.beat()).lease_new
        await pool.check()
        assert await pool.orphaned() == {}
        assert (await pool.use()).reserved == soft(90, 38, 20, 1) + soft(90, 1, 1, 9)
        assert await tenant_use(pool) == (38 + 9, 2)

    @pytest.mark.parametrize("how", ["settle", "void"])
    async def test_all_of_it_goes(self, pool, how):
        p, gone = await pool.join("p", engine()), await pool.join("g", engine())
        await gone.hold(want("y", soft(90, 10, 40, 20, deviation=3)))
        await pool.expire("g")
        if how == "void":
            await p.scripts.void("p", "a")
        else:
            for _ in range(2):
                await p.scripts.settle("a", 0, 0)
        assert ((await pool.use()).reserved, await pool.orphaned()) == (cost(0, 0), {})

    @pytest.mark.parametrize(("in_use", "is_free"), [(21, True), (60, False)])
    async def test_blocks_in_use_are_compared_with_what_is_expected_now(self, pool, in_use, is_free):
        """Where the engine does not tell its sequences: by peaks nothing would ever be in excess."""
        p, gone = await pool.join("p", engine()), await pool.join("g", engine())
        await p.hold(want("x", soft(100, 20, 30, 40)))
        await gone.hold(want("y", flat(100, 40)))
        await pool.expire("g")
        for _ in range(3):
            await p.scripts.settle("a", in_use)
        assert (await pool.orphaned() == {}) == is_free


class TestObserve:
    async def test_what_is_open_is_for_all_and_the_last_to_say_it_is_right(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=50))
        await p.observe(engine(blocks_usable=70))
        await q.queue(ask("r", blocks=30))
        await q.observe(engine(blocks_usable=90))
        await q.read()
        assert ("r" in q.held, (await pool.use()).limits) == (True, engine(blocks_usable=90))

    async def test_a_change_of_it_looks_through_nothing_but_the_queue(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=90))
        await p.queue(ask("r", blocks=50))
        await p.observe(engine(blocks_usable=70))
        assert await pool.client.exists(pool.key("ceilings")), "what engines hold at most is the same"
        assert (await pool.shares())[5] == "100"


class TestVerify:
    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ("f[2] = f[2] + 1; record[15] = cmsgpack.pack(f)", "engine a: forecasts of"),
            ("record[13] = record[13] + 1", "engine a: forecasts of"),
            ("record[15] = false", "engine a: forecasts of"),
        ],
    )
    async def test_what_does_not_add_up_is_named(self, redis_server, pool, change, told):
        p = await pool.join("p", engine())
        await p.hold(want("x", soft(90, 10, 20, 30)))
        text = f"""
            local record = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'a'))
            local f = cmsgpack.unpack(record[15])
            {change}
            redis.call('HSET', KEYS[1], 'a', cmsgpack.pack(record))
        """
        await pool.client.eval(text, 1, pool.key("engines"))
        faults = await pool.scripts.verify()
        assert [fault[: len(told)] for fault in faults] == [told]
        redis_server.flush()
