"""Redis dies, freezes, restarts empty, fails over, or is cut off: what each process does, and that all of it heals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from integration.ledger.ledgers import Watch, out_of_grace, queue, refresh, shared, start, until
from kvgate.ledger.base import Refusal
from support.redis_server import ClusterSet, FaultProxy, RedisServer, SentinelSet
from unit.ledger.pool import ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvgate.ledger.redis import RedisLedger

pytestmark = pytest.mark.integration
OUTAGES = [("kill", "start"), ("freeze", "thaw"), ("hang", "heal"), ("drop", "heal")]
IDS = ["killed", "frozen", "partition that swallows", "partition that resets"]


class Line:
    """A server, and the line to it that can be cut."""

    def __init__(self, server: RedisServer, proxy: FaultProxy) -> None:
        self.server, self.proxy, self.url = server, proxy, proxy.url

    def do(self, what: str) -> None:
        getattr(self.proxy if what in {"hang", "drop", "heal", "reset"} else self.server, what)()


@pytest.fixture
async def line(redis_server: RedisServer) -> AsyncIterator[Line]:
    async with FaultProxy(redis_server.port) as proxy:
        yield Line(redis_server, proxy)
        if redis_server._process is None:
            redis_server.start()
        redis_server.thaw()


async def back(ledger: RedisLedger) -> None:
    """Redis answers again and knows everything."""
    await until(lambda: ledger.mode == "redis" and ledger._keeper.up, "it never came back")
    await out_of_grace(ledger)


async def assert_exact(ledger: RedisLedger, blocks: int, reservations: int, queued: int = 0) -> None:
    """What Redis counts is what this one process holds, and every invariant holds there."""
    await refresh(ledger)
    (use,) = ledger.view().engines
    assert (use.reserved.blocks, use.reservations) == (blocks, reservations)
    assert ledger.view().queued == queued
    assert await ledger._scripts.verify() == []


@pytest.mark.parametrize(("how", "heal"), OUTAGES, ids=IDS)
async def test_local_goes_on_within_its_share_and_comes_back_with_all_it_holds(line, how, heal):
    async with shared(line.url) as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("held", blocks=40))
        waits = await queue(ledger, ask("waits", blocks=80))
        line.do(how)
        grant = await start(ledger, ask("new", blocks=30))
        assert (ledger.mode, grant.engine_id) == ("local", "a")
        late = await queue(ledger, ask("late", blocks=25))
        await asyncio.sleep(0)
        assert (late.decision, waits.decision) == (None, None), "nine tenths are taken"
        assert ledger.view().mode == "local"
        await ledger.release("held")
        assert late.decision is not None, "room made here is used here"
        line.do(heal)
        await back(ledger)
        await assert_exact(ledger, 55, 2, queued=1)
        await ledger.release("new")
        await ledger.release("late")
        assert (await waits.granted()).seq == waits.seq
        await ledger.release("waits")
        await assert_exact(ledger, 0, 0)


@pytest.mark.parametrize(("how", "heal"), OUTAGES, ids=IDS)
async def test_closed_queues_and_starts_nothing_until_redis_is_back(line, how, heal):
    async with shared(line.url, on_failure="closed") as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("held", blocks=80))
        tickets = [await queue(ledger, ask("before", blocks=30))]
        line.do(how)
        await until(lambda: ledger.mode == "closed")
        tickets += [await queue(ledger, ask(f"r{number}", blocks=30)) for number in range(3)]
        assert await ledger.reserve(ask("too many", depth=4)) is Refusal.QUEUE_FULL
        await ledger.release("held")
        await ledger.cancel("r1")
        await asyncio.sleep(0.1)
        assert [ticket.decision for ticket in tickets] == [None] * 4
        line.do(heal)
        await back(ledger)
        grants = [await tickets[number].granted() for number in (0, 1, 3)]
        assert [grant.request_id for grant in grants] == ["before", "r0", "r2"]
        assert [grant.seq for grant in grants] == sorted(grant.seq for grant in grants), "in their order"
        await assert_exact(ledger, 90, 3)


@pytest.mark.parametrize(("how", "heal"), OUTAGES, ids=IDS)
async def test_open_starts_at_once_and_says_so(line, how, heal):
    watch = Watch()
    async with shared(line.url, on_failure="open", watch=watch) as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("held", blocks=90))
        line.do(how)
        for number in range(3):
            await start(ledger, ask(f"r{number}", blocks=50))
        assert "mode_open" in watch.events
        line.do(heal)
        await back(ledger)
        await assert_exact(ledger, 240, 4)
        waits = await queue(ledger, ask("next", blocks=50))
        for name in ("held", "r0", "r1"):
            assert waits.decision is None
            await ledger.release(name)
            await refresh(ledger)
        await waits.granted()
        await assert_exact(ledger, 100, 2)


async def test_what_is_released_during_an_outage_is_free_after_it(line):
    async with shared(line.url) as ledger:
        await ledger.observe(engine())
        for number in range(4):
            await start(ledger, ask(f"r{number}", blocks=20))
        line.do("hang")
        for number in range(3):
            await ledger.release(f"r{number}")
        line.do("heal")
        await back(ledger)
        await assert_exact(ledger, 20, 1)


@pytest.mark.parametrize("how", ["flush", "restart"])
async def test_an_empty_redis_is_told_everything_again(line, how):
    """Two processes, and the queue comes back in the order in which it was."""
    watch = Watch()
    async with shared(line.url, watch=watch) as one, shared(line.server.url) as two:
        for ledger in (one, two):
            await ledger.observe(engine())
        await start(one, ask("x", blocks=60))
        await start(two, ask("y", blocks=40))
        order: list[str] = []
        tickets = [await queue((one, two)[number % 2], ask(f"r{number}", blocks=100)) for number in range(6)]
        line.do(how)
        await until(lambda: "epoch_changed" in watch.events)
        for ledger in (one, two):
            await back(ledger)
        await refresh(one)
        assert (one.view().queued, one.view().engines[0].reserved) == (6, cost(100, 2))

        async def serve(number: int) -> None:
            await tickets[number].granted()
            order.append(f"r{number}")
            await (one, two)[number % 2].release(f"r{number}")

        tasks = [asyncio.create_task(serve(number)) for number in range(6)]
        await one.release("x")
        await two.release("y")
        await asyncio.gather(*tasks)
        assert order == [f"r{number}" for number in range(6)]
        await refresh(two)
        await assert_exact(one, 0, 0)


async def test_nothing_is_granted_in_a_new_epoch_before_everyone_could_say_what_it_holds(redis_server):
    async with FaultProxy(redis_server.port) as cut:
        async with shared(redis_server.url) as one, shared(cut.url) as two:
            for ledger in (one, two):
                await ledger.observe(engine())
            await start(two, ask("held", blocks=80))
            cut.hang()
            redis_server.flush()
            ticket = await queue(one, ask("r", blocks=80))
            cut.heal()
            await until(lambda: two._keeper.up and two._keeper.epoch == one._keeper.epoch)
            await out_of_grace(one)
            await asyncio.sleep(0.2)
            assert ticket.decision is None, "it would have been granted over what runs"
            await two.release("held")
            await ticket.granted()


async def test_a_process_that_is_cut_off_goes_on_alone_and_comes_back(redis_server):
    """Only one of two loses its line; the other goes on, and counts what the lost one held."""
    async with FaultProxy(redis_server.port) as cut:
        async with (
            shared(redis_server.url, lease_s=0.4) as one,
            shared(cut.url, lease_s=0.4) as two,
        ):
            for ledger in (one, two):
                await ledger.observe(engine())
            await refresh(one)
            await start(two, ask("held", blocks=30))
            await refresh(two)
            cut.hang()
            await until(lambda: two.mode == "local")
            waits = await queue(two, ask("waits", blocks=15))  # 45 blocks are its share
            await two.settle("a", 100, 4)
            assert waits.decision is None, "it can't know who else is cut off: only what is free is for it"
            await two.release("held")
            await start(two, ask("again", blocks=15))
            assert waits.decision is not None, "what it held it may fill up again"
            await until(lambda: one.live == 1)
            await start(one, ask("other", blocks=70))
            cut.heal()
            await back(two)
            await refresh(one)
            await refresh(two)
            assert one.view().engines[0].reserved == cost(100, 3), "what the two decided apart fits together"
            await one.release("other")
            await assert_exact(one, 30, 2)


async def test_all_that_are_cut_off_at_once_say_what_they_hold_before_anything_is_granted(redis_server):
    """Each took what was free while it was alone."""
    async with FaultProxy(redis_server.port) as cut:
        async with shared(cut.url, grace_s=0.6) as one, shared(cut.url, grace_s=0.6) as two:
            for ledger in (one, two):
                await ledger.observe(engine())
            await out_of_grace(one)
            await refresh(two)
            await start(two, ask("held", blocks=5))
            cut.hang()
            await until(lambda: (one.mode, two.mode) == ("local", "local"))
            ticket = await queue(one, ask("r", blocks=60))
            await two.settle("a", 5, 1)
            await start(two, ask("alone", blocks=40))
            two._keeper._beating, beating = asyncio.Lock(), two._keeper._beating
            async with two._keeper._beating:  # it is the last to find out
                cut.heal()
                await until(lambda: one.up)
                await one.release("nothing")
                await asyncio.sleep(0.2)
                assert ticket.decision is None, "it would have been granted over what the other took"
            two._keeper._beating = beating
            await back(two)
            await refresh(one)
            assert ticket.decision is None
            await two.release("alone")
            await ticket.granted()
            await refresh(one)
            assert one.view().engines[0].reserved == cost(65, 2)


async def test_a_grant_that_was_read_too_late_is_not_taken(redis_server):
    """It was made to a process whose lease then ran out, and the room went to somebody else."""
    watch = Watch()
    async with FaultProxy(redis_server.port) as cut:
        async with (
            shared(redis_server.url, lease_s=0.4) as one,
            shared(cut.url, lease_s=0.4, on_failure="closed", watch=watch) as two,
        ):
            for ledger in (one, two):
                await ledger.observe(engine())
            await start(one, ask("x", blocks=100))
            ticket = await queue(two, ask("r", blocks=60))
            await refresh(one)
            assert one.live == 2
            cut.hang()
            await one.release("x")
            await until(lambda: one.live == 1)
            await refresh(one)
            assert one.view().engines[0].reserved == cost(60), "granted to the one that is cut off"
            other = await queue(one, ask("other", blocks=60))
            while other.decision is None:
                await one.settle("a", 0)
                await asyncio.sleep(0.05)
            cut.heal()
            await back(two)
            await refresh(one)
            assert ticket.decision is None
            assert one.view().engines[0].reserved == cost(60)
            assert "stray_grant" in watch.events
            await one.release("other")
            await ticket.granted()
            await assert_exact(one, 60, 1)


async def test_a_connection_that_breaks_is_mended_without_a_switch(line):
    watch = Watch()
    async with shared(line.url, watch=watch) as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("x", blocks=100))
        for number in range(5):
            ticket = await queue(ledger, ask(f"r{number}", blocks=100))
            line.do("reset")
            await ledger.release("x" if number == 0 else f"r{number - 1}")
            await ticket.granted()
        assert not [event for event in watch.events if event.startswith("mode")]
        await until(lambda: ledger._keeper.up)
        await assert_exact(ledger, 100, 1)


async def test_a_process_starts_while_redis_is_away(redis_process):
    with RedisServer() as server:
        server.kill()
        async with shared(server.url) as ledger:
            await until(lambda: ledger.mode == "local")
            await ledger.observe(engine())
            ticket = await queue(ledger, ask("r"))
            assert ticket.decision is None, "it never had a heartbeat, so it has no share"
            server.start()
            await ticket.granted()
            await back(ledger)
            await assert_exact(ledger, 10, 1)


async def test_engines_and_prices_that_changed_during_an_outage(line):
    async with shared(line.url, on_failure="closed") as ledger:
        await ledger.observe(engine())
        await ledger.observe(engine("b"))
        await start(ledger, ask("x", blocks=100))
        await start(ledger, ask("y", blocks=100))
        ticket = await queue(ledger, ask("r", blocks=100))
        line.do("hang")
        await until(lambda: ledger.mode == "closed")
        await ledger.observe(engine("c", blocks=400))
        await ledger.reprice("r", ask("r", blocks=300).costs)
        await ledger.forget("b")
        await ledger.void("a")
        line.do("heal")
        grant = await ticket.granted()
        assert (grant.engine_id, grant.cost) == ("c", cost(300))
        await back(ledger)
        await refresh(ledger)
        uses = {use.limits.engine_id: use.reserved.blocks for use in ledger.view().engines}
        assert uses == {"a": 0, "c": 300}


async def test_a_redis_that_takes_beats_but_not_requests_counts_as_away(redis_server):
    """Somebody overwrote a part of the ledger."""
    async with shared(redis_server.url) as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("held", blocks=40))
        redis_server.command("DEL", "kvgate:{p}:waiters")
        redis_server.command("SET", "kvgate:{p}:waiters", "rubbish")
        await start(ledger, ask("r", blocks=40))
        redis_server.command("DEL", "kvgate:{p}:waiters")
        await back(ledger)
        await assert_exact(ledger, 80, 2)


async def test_close_answers_everyone_during_an_outage_too(line):
    async with shared(line.url, on_failure="closed") as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("x", blocks=100))
        before = await queue(ledger, ask("before"))
        line.do("hang")
        await until(lambda: ledger.mode == "closed")
        during = await queue(ledger, ask("during"))
        await ledger.close(Refusal.DRAINING)
        assert await before.granted() is await during.granted() is Refusal.DRAINING
        assert await ledger.reserve(ask("after")) is Refusal.DRAINING
        line.do("heal")
        await until(lambda: ledger._keeper.up)
        await assert_exact(ledger, 100, 1)


async def test_a_failover_keeps_what_is_held_and_who_waits(redis_process):
    with SentinelSet() as sentinels:
        async with shared(sentinels.url) as ledger:
            await ledger.observe(engine())
            await start(ledger, ask("held", blocks=60))
            waits = [await queue(ledger, ask(f"r{number}", blocks=50)) for number in range(3)]
            sentinels.master().kill()
            await until(lambda: ledger.mode == "local")
            await back(ledger)
            await assert_exact(ledger, 60, 1, queued=3)
            await ledger.release("held")
            await asyncio.gather(waits[0].granted(), waits[1].granted())
            await assert_exact(ledger, 100, 2, queued=1)


async def test_a_cluster_serves_a_pool_from_one_node(redis_process):
    with ClusterSet() as cluster:
        async with shared(cluster.url, "p") as one, shared(cluster.url, "q") as other:
            for ledger in (one, other):
                await ledger.observe(engine())
                await start(ledger, ask("x", blocks=60))
            ticket = await queue(one, ask("r", blocks=60))
            await one.release("x")
            await ticket.granted()
            await assert_exact(one, 60, 1)
