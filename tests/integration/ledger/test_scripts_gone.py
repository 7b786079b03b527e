"""Processes that die, stall and come back, and a server that begins anew."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from integration.ledger.process import START_MS, Pool, open_pool, until_settled
from kvgate.ledger.scripts import Granted, LeaseLost, Place
from unit.ledger.pool import SHAPE, ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def pool(redis_server: RedisServer) -> AsyncIterator[Pool]:
    async with open_pool(redis_server) as pool:
        yield pool


class TestGone:
    async def test_a_lease_runs_out_by_the_clock_of_the_server(self, redis_server):
        async with open_pool(redis_server, lease_ms=50) as pool:
            await pool.join("p", engine())
            await asyncio.sleep(0.1)
            q = await pool.join("q", engine())
            assert (await q.beat()).live == 1
            with pytest.raises(LeaseLost):
                await pool.processes["p"].reserve(ask("r"))

    async def test_its_waiters_go_and_its_sums_stay_counted(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=70))
        await p.queue(ask("head", blocks=100))
        await q.queue(ask("q1", blocks=40))
        await pool.expire("p")
        await q.beat()
        await q.read()
        assert "q1" not in q.held, "70 of 100 are still counted"
        assert await pool.orphaned() == {"p": cost(70)}
        assert (await pool.scripts.view()).queued == 1

    async def test_what_its_waiter_held_up_starts(self, redis_server):
        async with open_pool(redis_server, bypass_max=0) as pool:
            p, q = await pool.join("p", engine()), await pool.join("q", engine())
            await q.hold(ask("x", blocks=50))
            await p.queue(ask("head", blocks=100))
            await q.queue(ask("small", blocks=10))
            assert (await pool.use()).pinned_by == "head"
            await pool.expire("p")
            await pool.scripts.ahead([])  # any call will do
            await q.read()
            assert "small" in q.held

    async def test_reap_takes_all_that_are_gone_and_names_them(self, pool):
        for pid in "pqr":
            await pool.join(pid, engine())
        await pool.expire("p", "q")
        assert sorted(await pool.scripts.reap()) == ["p", "q"]
        assert await pool.scripts.reap() == []

    async def test_one_call_takes_one(self, pool):
        for pid in "pqr":
            await pool.join(pid, engine())
        await pool.expire("p", "q")
        await pool.scripts.pump()
        assert len((await pool.scripts.inspect()).leases_ms) == 1, "one by pump, one by inspect"

    async def test_a_long_queue_of_one_that_is_gone_is_cleared_in_bounded_steps(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=100))
        for number in range(600):
            await p.scripts.reserve("p", ask(f"r{number}", blocks=1, depth=1000))
        await q.queue(ask("last", blocks=1, depth=1000))
        await pool.expire("p")
        reply = await pool.scripts.pump()
        assert reply.unfinished
        await pool.check()
        await q.scripts.void("q", "a")
        await until_settled(pool)
        await q.read()
        assert "last" in q.held
        assert (await pool.scripts.view()).totals["grants"] == 2, (
            "nothing was granted to the one that is gone"
        )

    async def test_many_that_wait_go_also_in_a_graceful_end(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=100))
        for number in range(600):
            await p.scripts.reserve("p", ask(f"r{number}", blocks=1, depth=1000))
        await p.scripts.leave("p")
        await until_settled(pool)
        assert (await pool.scripts.view()).queued == 0


class TestSettle:
    @pytest.fixture
    async def orphaned(self, pool: Pool) -> Pool:
        """Engine `a`: 20 blocks of a live process, 60 of one that is gone."""
        p, gone = await pool.join("p", engine()), await pool.join("g", engine())
        await p.hold(ask("x", blocks=20))
        await gone.hold(ask("y", blocks=60, prefill_tokens=10))
        await pool.expire("g")
        await pool.scripts.reap()
        return pool

    @pytest.mark.parametrize(
        ("readings", "left"),
        [
            ([20], cost(60, 1, 10)),
            ([20, 20], None),
            ([0, 21], None),
            ([20, 22], cost(60, 1, 10)),
            ([20, 50, 20], cost(60, 1, 10)),
            ([20, 50, 20, 20], None),
            ([80, 20], cost(60, 1, 10)),
            ([80, 50, 40], cost(60, 1, 10)),
            ([100, 100], cost(60, 1, 10)),
        ],
        ids=str,
    )
    async def test_two_readings_in_a_row_that_show_all_of_it_free_free_all_of_it(
        self, orphaned, readings, left
    ):
        for in_use in readings:
            await orphaned.scripts.settle("a", in_use)
            await orphaned.check()
        assert (await orphaned.orphaned()).get("g") == left
        assert (await orphaned.use()).reserved == cost(20) + (left or cost(0, 0, 0))

    async def test_what_becomes_free_is_granted(self, orphaned):
        p = orphaned.processes["p"]
        await p.queue(ask("r", blocks=80))
        await orphaned.scripts.settle("a", 10)
        await orphaned.scripts.settle("a", 10)
        await p.read()
        assert "r" in p.held

    async def test_readings_close_together_are_one(self, redis_server):
        async with open_pool(redis_server, settle_gap_ms=60_000) as pool:
            p, gone = await pool.join("p", engine()), await pool.join("g", engine())
            await gone.hold(ask("y", blocks=60))
            await pool.expire("g")
            for _ in range(3):
                await p.scripts.settle("a", 0)
            assert await pool.orphaned() == {"g": cost(60)}

    async def test_an_engine_that_nobody_reads_is_free_after_the_hold(self, redis_server):
        async with open_pool(redis_server, orphan_hold_ms=50) as pool:
            p, gone = await pool.join("p", engine()), await pool.join("g", engine())
            await gone.hold(ask("y", blocks=60))
            await p.queue(ask("r", blocks=60))
            await pool.expire("g")
            await pool.scripts.reap()
            assert (await pool.use()).reserved == cost(60)
            await asyncio.sleep(0.1)
            await p.beat()
            await p.read()
            assert "r" in p.held

    async def test_an_engine_that_only_the_gone_knew_stays_until_it_is_free(self, pool):
        gone = await pool.join("g", engine())
        await gone.hold(ask("y", blocks=60))
        await pool.expire("g")
        await pool.scripts.reap()
        assert (await pool.scripts.view()).engines == (), "nobody would start there"
        p = await pool.join("p", engine())
        assert (await pool.use()).reserved == cost(60)
        await p.queue(ask("r", blocks=60))

    async def test_readings_of_engines_without_orphans_change_nothing(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=20))
        for in_use in (0, 0, 100):
            await pool.scripts.settle("a", in_use)
        await pool.scripts.settle("unknown", 1)
        assert (await pool.use()).reserved == cost(20)


class TestBack:
    async def test_one_that_comes_back_in_time_lost_nothing(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=100))
        seq = await p.queue(ask("r"))
        await pool.expire("p")
        with pytest.raises(LeaseLost):
            await p.reserve(ask("s"))
        p.waiting.pop("s")
        assert not (await p.beat()).lease_new, "nobody had noticed"
        assert await p.reserve(ask("r")) == seq

    async def test_one_that_was_taken_for_gone_takes_its_sums_back_and_its_old_place(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=60))
        await q.hold(ask("y", blocks=40))
        old = await p.queue(ask("old", blocks=40))
        await q.queue(ask("young", blocks=40))
        await pool.expire("p")
        await q.beat()
        reply = await p.beat()
        assert reply.lease_new
        assert (await pool.use()).reserved == cost(100, 2), "counted once"
        assert await pool.orphaned() == {}
        await p.observe(engine())
        assert await p.reserve(ask("old", blocks=40, seq=old)) == old
        await q.release("y")
        await p.read()
        assert "old" in p.held

    async def test_while_a_part_of_them_runs_all_of_them_are_kept_for_it(self, pool):
        """It was only cut off, and starts there what it has room for."""
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=60))
        await pool.expire("p")
        for in_use in (30, 8, 30):
            await q.scripts.settle("a", in_use)
        assert await pool.orphaned() == {"p": cost(60)}
        await p.beat()
        assert (await pool.use()).reserved == cost(60)

    async def test_what_was_given_away_meanwhile_is_counted_on_top(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=60))
        await pool.expire("p")
        for in_use in (0, 0):
            await q.scripts.settle("a", in_use)
        await q.hold(ask("y", blocks=100))
        await p.beat()
        assert (await pool.use()).reserved == cost(160, 2)
        await q.queue(ask("z", blocks=1))

    async def test_grants_it_had_not_read_stay_counted_until_it_has(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.reserve(ask("x", blocks=60))
        await pool.expire("p")
        await q.beat()
        await p.beat()
        await pool.check()
        assert (await pool.use()).reserved == cost(60)
        _, place = await p.scripts.reserve("p", ask("x", blocks=60))
        assert (await pool.use()).reservations == 1, "its grant is on its way, as before"
        await p.read()
        assert place == Place(p.held["x"].seq, 0)
        await p.beat()
        assert (await pool.use()).reserved == cost(60)
        p.held.clear()
        await p.beat()
        assert (await pool.use()).reservations == 0


class TestSilence:
    """Nobody was heard for a while: Redis was out of reach, and what each holds may be something else by now."""

    async def test_nothing_is_granted_before_all_could_say_what_they_hold(self, redis_server):
        async with open_pool(redis_server, grace_ms=100) as pool:
            p, q = await pool.join("p", engine()), await pool.join("q", engine())
            await asyncio.sleep(0.15)
            q.held["alone"] = Granted("q", "alone", "a", SHAPE, cost(60), seq=1, gseq=1)
            reply = await p.beat()
            assert reply.grace
            await p.queue(ask("r", blocks=60))
            while reply.grace:
                await asyncio.sleep(0.01)
                await q.beat()
                reply = await p.beat()
            await p.read()
            assert "r" in p.waiting, "60 of 100 are held by q"
            await q.release("alone")
            await p.read()
            assert "r" in p.held

    async def test_nobody_is_taken_for_gone_meanwhile(self, redis_server):
        async with open_pool(redis_server, grace_ms=200, lease_ms=100) as pool:
            p, q = await pool.join("p", engine()), await pool.join("q", engine())
            await asyncio.sleep(0.25)
            assert (await p.beat()).live == 1
            assert not (await q.beat()).lease_new
            assert (await p.beat()).live == 2

    async def test_one_who_stays_away_is_taken_for_gone_after_it(self, redis_server):
        async with open_pool(redis_server, grace_ms=100, lease_ms=100) as pool:
            p, _ = await pool.join("p", engine()), await pool.join("q", engine())
            await asyncio.sleep(0.15)
            async with asyncio.timeout(15):
                while set((await pool.scripts.inspect()).leases_ms) != {"p"}:
                    await p.beat()

    async def test_who_is_all_there_is_or_heard_another_needs_none(self, redis_server):
        async with open_pool(redis_server, grace_ms=100) as pool:
            p = await pool.join("p", engine())
            await asyncio.sleep(0.15)
            assert not (await p.beat()).grace
            q = await pool.join("q", engine())
            await asyncio.sleep(0.15)
            await pool.client.zadd(pool.key("leases"), {"p": 1 << 50})
            assert not (await q.beat()).grace, "p was heard"


class TestGrace:
    """After a flush: nothing is granted before all who were there have said what they hold."""

    async def test_it_waits_for_as_many_as_there_were(self, redis_server):
        async with open_pool(redis_server, clock_is_held=True, grace_ms=100) as pool:
            p, q = await pool.join("p", engine()), await pool.join("q", engine())
            p.known = q.known = 2
            await pool.set_clock(START_MS + 100)
            await q.beat()
            await q.hold(ask("held", blocks=60))
            redis_server.flush()
            await pool.set_clock(START_MS + 200)
            assert (await p.beat()).grace
            p.seen = 0
            await p.observe(engine())
            await p.queue(ask("r", blocks=60))
            await pool.set_clock(START_MS + 1000)
            assert (await p.beat()).grace, "q is late"
            assert not (await q.beat()).grace
            await q.observe(engine())
            await p.beat()
            await p.read()
            assert "r" in p.waiting, "60 of 100 are held by q"
            await q.release("held")
            await p.read()
            assert "r" in p.held

    async def test_it_waits_for_a_lease_at_most(self, redis_server):
        async with open_pool(redis_server, clock_is_held=True, grace_ms=100, lease_ms=5000) as pool:
            p = await pool.join("p", engine())
            redis_server.flush()
            p.known, p.seen = 3, 0
            for after_ms, graced in ((0, True), (4900, True), (5001, False)):
                await pool.set_clock(START_MS + after_ms)
                assert (await p.beat()).grace is graced, after_ms

    async def test_one_who_knew_nobody_waits_for_nobody(self, redis_server):
        async with open_pool(redis_server, clock_is_held=True, grace_ms=100) as pool:
            p = await pool.join("p", engine())
            await pool.set_clock(START_MS + 101)
            assert not (await p.beat()).grace


class TestEpoch:
    async def test_every_answer_carries_it_and_it_changes_when_the_server_is_empty(self, pool, redis_server):
        p = await pool.join("p", engine())
        before = (await p.beat()).epoch
        assert (await pool.scripts.pump()).epoch == before
        redis_server.flush()
        with pytest.raises(LeaseLost) as lost:
            await p.reserve(ask("r"))
        after = (await p.beat()).epoch
        assert after == lost.value.epoch != before
        redis_server.flush()
        assert (await p.beat()).epoch not in {before, after}

    async def test_places_and_grants_go_on_above_those_of_the_epoch_before(self, pool, redis_server):
        p = await pool.join("p", engine())
        first = await p.hold(ask("x", blocks=60))
        old = await p.queue(ask("old", blocks=60))
        redis_server.flush()
        p.seen = 0
        await p.beat()
        await p.observe(engine())
        young = await p.queue(ask("young", blocks=60))
        assert await p.reserve(ask("old", blocks=60, seq=old)) == old < young
        await p.release("x")
        await p.read()
        assert p.held["old"].gseq > first.gseq
        assert "young" in p.waiting

    async def test_nothing_is_granted_before_the_processes_have_said_what_they_hold(self, redis_server):
        async with open_pool(redis_server, grace_ms=200) as pool:
            p, q = await pool.join("p", engine()), await pool.join("q", engine())
            reply, _ = await q.scripts.reserve("q", ask("early", blocks=60))
            q.waiting["early"] = ask("early")
            assert (reply.grace, reply.unfinished) == (True, False)
            p.held["x"] = Granted("p", "x", "a", SHAPE, cost(60), seq=1, gseq=1, tenant="tenant")
            while reply.grace:
                await asyncio.sleep(0.01)
                reply = await p.beat()
            await q.read()
            assert "early" in q.waiting, "60 of 100 are held by p since the epoch before"
            await p.release("x")
            await q.read()
            assert "early" in q.held

    async def test_the_first_call_after_the_grace_grants(self, redis_server):
        async with open_pool(redis_server, grace_ms=100) as pool:
            p = await pool.join("p", engine())
            await p.queue(ask("r"))
            await asyncio.sleep(0.15)
            await p.beat()
            await p.read()
            assert "r" in p.held

    async def test_after_a_failover_to_an_older_copy_no_number_of_a_grant_is_given_twice(self, pool):
        p = await pool.join("p", engine())
        first = await p.hold(ask("x", blocks=10))
        await pool.client.hset(pool.key("meta"), "gseq", first.gseq - 100)
        await p.beat()
        second = await p.hold(ask("y", blocks=10))
        assert second.gseq > first.gseq
        assert (await pool.use()).reserved == cost(20, 2)
        await p.beat()
        assert (await pool.use()).reserved == cost(20, 2)

    async def test_what_is_left_of_a_pool_whose_meta_was_evicted_does_not_count(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=60))
        await pool.client.delete(pool.key("meta"))
        p.seen = 0
        with pytest.raises(LeaseLost):
            await p.release("x")
        await p.beat()
        await p.observe(engine())
        assert (await pool.use()).reservations == 0
