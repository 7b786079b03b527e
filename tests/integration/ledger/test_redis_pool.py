"""Several processes share one pool as if they were one."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from integration.ledger.ledgers import Watch, queue, refresh, shared, start, until
from kvgate.ledger.base import Grant, Refusal
from kvgate.ledger.scripts import LedgerScripts
from support.redis_server import HOST
from unit.ledger.pool import ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvgate.ledger.redis import RedisLedger

pytestmark = pytest.mark.integration


@pytest.fixture
async def pair(redis_server) -> AsyncIterator[tuple[RedisLedger, RedisLedger]]:
    """Two processes that both know engine `a` of 100 blocks."""
    async with shared(redis_server.url) as one, shared(redis_server.url) as two:
        for ledger in (one, two):
            await ledger.observe(engine())
        yield one, two


async def settle(*ledgers: RedisLedger) -> None:
    for ledger in ledgers:
        await refresh(ledger)


async def assert_sound(ledger: RedisLedger) -> None:
    assert await ledger._scripts.verify() == []


async def test_room_taken_by_one_is_taken_for_all(pair):
    one, two = pair
    await start(one, ask("r1", blocks=60))
    ticket = await queue(two, ask("r2", blocks=60))
    await settle(*pair)
    assert ticket.decision is None
    await one.release("r1")
    assert isinstance(await ticket.granted(), Grant)
    await settle(*pair)
    assert [ledger.view().engines[0].reserved for ledger in pair] == [cost(60)] * 2


async def test_first_come_first_served_across_processes(pair):
    one, _ = pair
    await start(one, ask("x", blocks=100))
    order: list[str] = []
    tickets = [await queue(pair[number % 2], ask(f"r{number}", blocks=100)) for number in range(12)]
    seqs = [ticket.seq for ticket in tickets]
    assert seqs == sorted(set(seqs))

    async def serve(ticket, ledger):
        await ticket.granted()
        order.append(ticket.request_id)
        await ledger.release(ticket.request_id)

    tasks = [asyncio.create_task(serve(ticket, pair[n % 2])) for n, ticket in enumerate(tickets)]
    await one.release("x")
    await asyncio.gather(*tasks)
    assert order == [f"r{number}" for number in range(12)]


async def test_the_depth_of_the_queue_is_that_of_the_pool(pair):
    one, two = pair
    await start(one, ask("x", blocks=100))
    await queue(one, ask("r1", depth=2))
    await queue(two, ask("r2", depth=2))
    assert await two.reserve(ask("r3", depth=2)) is Refusal.QUEUE_FULL


async def test_position_counts_the_others_too(pair):
    one, two = pair
    await start(one, ask("x", blocks=100))
    for number in range(10):
        await queue(one, ask(f"first{number}", blocks=100))
    tickets = [await queue(two, ask(f"second{number}", blocks=100)) for number in range(10)]
    await settle(*pair)
    assert tickets[0].position <= tickets[-1].position
    assert tickets[-1].position > 9, "its own nine and those of the other process, by estimate"


async def test_an_engine_that_one_process_does_not_use_still_serves_the_other(pair):
    one, two = pair
    await one.observe(engine(accepting=False))
    ticket = await queue(one, ask("waits"))
    await start(two, ask("runs"))
    await settle(*pair)
    assert ticket.decision is None
    assert [ledger.view().engines[0].limits.accepting for ledger in pair] == [False, True]
    await one.observe(engine())
    assert isinstance(await ticket.granted(), Grant)


async def test_nothing_is_granted_on_an_engine_that_the_process_does_not_know(pair):
    one, two = pair
    await one.observe(engine("b"))
    for number in range(6):
        assert (await start(two, ask(f"r{number}"))).engine_id == "a"


async def test_forgotten_by_one_an_engine_stays_for_the_other(pair):
    one, two = pair
    await one.forget("a")
    assert await one.reserve(ask("r")) is Refusal.NO_ENGINE
    await start(two, ask("r"))


async def test_never_more_than_the_engine_holds_and_everything_ends(redis_server):
    """Four processes, random sizes, random cancels; the sums are read between all of it."""
    dice = random.Random(7)
    async with AsyncExitStack() as stack:
        ledgers = [await stack.enter_async_context(shared(redis_server.url)) for _ in range(4)]
        for ledger in ledgers:
            for engine_id in ("a", "b"):
                await ledger.observe(engine(engine_id))
        most = [0]
        done = asyncio.Event()

        client_of_its_own = await stack.enter_async_context(Redis(host=HOST, port=redis_server.port))
        scripts = LedgerScripts(client_of_its_own, "p")

        async def look() -> None:
            """On a line without the bound of a call, which a busy machine may exceed."""
            while not done.is_set():
                view = await scripts.view()
                most.extend(use.reserved.blocks for use in view.engines)
                await asyncio.sleep(0.001)

        async def client(ledger: RedisLedger, name: str, blocks: int, patience_s: float) -> bool:
            try:
                ticket = await queue(ledger, ask(name, blocks=blocks, depth=10_000))
                async with asyncio.timeout(patience_s):
                    await ticket.granted()
                await asyncio.sleep(dice.uniform(0, 0.01))
            except TimeoutError:
                return False
            finally:
                await ledger.release(name)
            return True

        watch = asyncio.create_task(look())
        served = await asyncio.gather(
            *(
                client(dice.choice(ledgers), f"r{n}", dice.choice([5, 20, 60, 100]), dice.choice([0.05, 30]))
                for n in range(300)
            )
        )
        done.set()
        await watch
        await settle(*ledgers)
        view = ledgers[0].view()
        assert 90 < max(most) <= 100
        assert sum(served) > 100
        assert (view.queued, [use.reserved for use in view.engines]) == (0, [cost(0, 0), cost(0, 0)])
        await assert_sound(ledgers[0])


async def test_a_process_that_is_gone_is_counted_until_the_engine_shows_its_room_free(redis_server):
    async with shared(redis_server.url, lease_s=0.3) as one:
        await one.observe(engine())
        async with shared(redis_server.url, lease_s=0.3) as two:
            await two.observe(engine())
            await start(two, ask("lost", blocks=70))
            await queue(two, ask("lost too", blocks=70))
            stopped(two)
            ticket = await queue(one, ask("r", blocks=60))
            one._keeper.hurry()
            await until(lambda: one.live == 2)
            await until(lambda: one.live == 1, "its lease never ran out")
            await settle(one)
            assert (one.view().queued, one.view().engines[0].reserved) == (1, cost(70))
            granted = asyncio.ensure_future(ticket.granted())
            assert not granted.done()
            while not granted.done():
                await one.settle("a", 0)
                await asyncio.sleep(0.05)
            await settle(one)
            assert one.view().engines[0].reserved == cost(60)
        await assert_sound(one)


def stopped(ledger: RedisLedger) -> None:
    """As a process that got SIGSTOP: it sends nothing more."""

    async def nothing() -> bool:
        await asyncio.sleep(0.01)
        return True

    ledger._keeper.beat = nothing  # type: ignore[method-assign]


def went_on(ledger: RedisLedger) -> None:
    del ledger._keeper.beat
    ledger._keeper.hurry()


async def test_a_process_that_was_stopped_comes_back_with_what_it_holds(redis_server):
    """As SIGSTOP for longer than a lease: it holds on to what runs, queues again, and nothing counts twice."""
    watch = Watch()
    async with (
        shared(redis_server.url, lease_s=0.3) as one,
        shared(redis_server.url, lease_s=0.3, watch=watch) as two,
    ):
        for ledger in (one, two):
            await ledger.observe(engine())
        await start(two, ask("held", blocks=70))
        waits = await queue(two, ask("waits", blocks=50))
        await refresh(one)
        assert one.live == 2
        stopped(two)
        behind = await queue(one, ask("behind", blocks=50))
        await until(lambda: one.live == 1)
        await settle(one)
        assert (one.view().queued, one.view().engines[0].reserved) == (1, cost(70)), "its waiter is gone"
        went_on(two)
        await until(lambda: "lease_lost" in watch.events or "unsure" in watch.events)
        await until(lambda: two._keeper.up)
        await settle(one, two)
        assert (one.view().queued, one.view().engines[0].reserved) == (2, cost(70))
        await two.release("held")
        await asyncio.gather(waits.granted(), behind.granted())
        await settle(one, two)
        assert one.view().engines[0].reserved == cost(100, 2)
        assert waits.seq < behind.seq, "its place was kept"
        await assert_sound(one)
        await two.release("waits")
        await one.release("behind")
        await settle(one, two)
        assert one.view().engines[0].reserved == cost(0, 0)


async def test_who_leaves_in_good_order_is_gone_at_once(redis_server):
    async with shared(redis_server.url) as one:
        await one.observe(engine())
        async with shared(redis_server.url) as two:
            await two.observe(engine())
            await start(two, ask("r", blocks=100))
            behind = await queue(one, ask("behind"))
            await queue(two, ask("left behind", blocks=100))
            await two.release("r")
            await behind.granted()
        await settle(one)
        assert (one.live, one.view().queued, one.view().engines[0].reserved) == (1, 0, cost(10))
        await assert_sound(one)


async def test_who_leaves_while_something_runs_does_not_strike_it(redis_server):
    async with shared(redis_server.url) as one:
        await one.observe(engine())
        async with shared(redis_server.url) as two:
            await two.observe(engine())
            await start(two, ask("runs", blocks=70))
        await settle(one)
        assert one.view().engines[0].reserved == cost(70)


async def test_processes_of_other_pools_share_nothing(redis_server):
    async with shared(redis_server.url, "p") as one, shared(redis_server.url, "q") as two:
        for ledger in (one, two):
            await ledger.observe(engine())
            await start(ledger, ask("r", blocks=100))
        assert (one.live, two.live) == (1, 1)
