"""What a request costs Redis, and how calls travel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from integration.ledger.ledgers import Watch, queue, refresh, shared, start, until, without_heartbeats
from kvgate.ledger.batching import BATCH_MAX, BatchingRedis
from kvgate.ledger.connect import Connection
from kvgate.ledger.scripts import Granted, Refused
from support.redis_server import HOST, FaultProxy, RedisServer
from unit.ledger.pool import ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvgate.ledger.redis import RedisLedger

pytestmark = pytest.mark.integration


def calls_of(server: RedisServer, command: str) -> int:
    with server.client() as client:
        stats = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


async def test_an_admitted_request_costs_two_calls_beside_the_heartbeats(redis_server):
    watch = Watch()
    async with without_heartbeats(redis_server.url, watch=watch) as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("first"))
        await ledger.release("first")
        before, watch.calls = calls_of(redis_server, "evalsha"), []

        async def client(name: str) -> None:
            await start(ledger, ask(name, blocks=30, prefill_tokens=100))
            await ledger.renew(name, cost(30))
            await ledger.release(name)

        await asyncio.gather(*(client(f"r{number}") for number in range(100)))
        made = calls_of(redis_server, "evalsha") - before
        assert made <= 200
        assert calls_of(redis_server, "eval") + calls_of(redis_server, "script|load") < 20
        assert [verb for verb, _ in watch.calls].count("reserve") == 100
        assert all(ok for _, ok in watch.calls)


async def test_a_large_prefill_part_is_given_back_by_a_call_of_its_own(redis_server):
    async with without_heartbeats(redis_server.url) as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("long", prefill_tokens=900))
        ticket = await queue(ledger, ask("next", prefill_tokens=200))
        await ledger.renew("long", cost(10))
        await ticket.granted()


def drop_behind_its_back(ledger: RedisLedger, request_id: str) -> None:
    entry = ledger._table.get(request_id)
    assert entry is not None
    ledger._table.drop(entry)


async def test_a_heartbeat_puts_right_what_was_released_behind_its_back(redis_server):
    """A release that gets lost, and one that comes twice."""
    async with shared(redis_server.url) as ledger:
        await ledger.observe(engine())
        for number in range(3):
            await start(ledger, ask(f"r{number}", blocks=30))
        drop_behind_its_back(ledger, "r0")
        await ledger._scripts.release(ledger.pid, ledger._table.next_rel(), "a", "tenant", cost(30))
        await ledger._scripts.release(ledger.pid, ledger._table.next_rel(), "a", "tenant", cost(30))
        await refresh(ledger)
        assert ledger.view().engines[0].reserved == cost(60, 2)
        drop_behind_its_back(ledger, "r1")
        await refresh(ledger)
        assert ledger.view().engines[0].reserved == cost(30)
        assert await ledger._scripts.verify() == []


async def test_a_request_that_redis_lost_without_a_sign_is_asked_for_again(redis_server, monkeypatch):
    monkeypatch.setattr("kvgate.ledger.restore.PATROL_S", 0.1)
    async with shared(redis_server.url) as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("x", blocks=100))
        tickets = [await queue(ledger, ask(f"r{number}", blocks=30)) for number in range(3)]
        for entry in ledger._table.waiting()[:2]:
            await ledger._scripts.cancel(ledger.pid, entry.wire)
        await ledger.release("x")
        await asyncio.gather(*(ticket.granted() for ticket in tickets[:2]))
        assert tickets[0].seq < tickets[1].seq < tickets[2].seq


# how calls travel


@pytest.fixture
async def client(redis_server) -> AsyncIterator[BatchingRedis]:
    client = BatchingRedis(host=HOST, port=redis_server.port)
    yield client
    await client.aclose()


async def test_calls_are_carried_out_in_the_order_in_which_they_were_made(client, monkeypatch):
    monkeypatch.setattr("kvgate.ledger.batching.CALL_S_MAX", 30.0)  # it is not about how fast
    calls = []
    for number in range(2000):
        calls.append(asyncio.ensure_future(client.rpush("list", number)))
        if number % 300 == 0:
            await asyncio.sleep(0)
    assert await asyncio.gather(*calls) == list(range(1, 2001))
    assert [int(word) for word in await client.lrange("list", 0, -1)] == list(range(2000))


async def test_calls_of_one_moment_share_a_connection(client, redis_server, monkeypatch):
    monkeypatch.setattr("kvgate.ledger.batching.CALL_S_MAX", 30.0)
    before = int(redis_server.client().info("stats")["total_connections_received"])
    await asyncio.gather(*(client.incr("n") for _ in range(3 * BATCH_MAX)))
    opened = int(redis_server.client().info("stats")["total_connections_received"]) - before
    assert opened <= 3, "one for the calls, and those that look"


async def test_an_error_is_for_its_own_call(client):
    answers: Any = await asyncio.gather(
        client.set("a", 1), client.execute_command("NONSENSE"), client.get("a"), return_exceptions=True
    )
    assert (answers[0], answers[2]) == (True, b"1")
    assert "unknown command" in str(answers[1])


async def test_a_cancelled_caller_does_not_unsend_nor_harm_the_others(client):
    first = asyncio.ensure_future(client.incr("n"))
    second = asyncio.ensure_future(client.incr("n"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 2
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await client.incr("n") == 3


async def test_a_line_that_swallows_ends_in_a_timeout_and_the_next_call_works(redis_server):
    async with FaultProxy(redis_server.port) as line:
        connection = Connection(line.url)
        assert await connection.calls.incr("n") == 1
        line.hang()
        results = await asyncio.gather(
            *(connection.calls.incr("n") for _ in range(10)), return_exceptions=True
        )
        assert all(isinstance(result, Exception) for result in results)
        line.heal()
        await asyncio.sleep(0.05)
        assert await connection.calls.incr("n") >= 2
        await connection.aclose()


async def test_closing_ends_every_call(redis_server):
    async with FaultProxy(redis_server.port) as line:
        client = BatchingRedis(host=HOST, port=line.port)
        await client.ping()
        line.hang()
        calls = [asyncio.ensure_future(client.incr("n")) for _ in range(5)]
        await asyncio.sleep(0.01)
        await client.aclose()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, BaseException) for result in results)


# the stream


async def test_a_reading_connection_that_is_dead_delays_a_grant_by_a_round(redis_server):
    async with FaultProxy(redis_server.port) as line, shared(redis_server.url) as ledger:
        dead = Connection(line.url)
        ledger._wakeups._reading, alive = dead.reading, ledger._wakeups._reading
        line.hang()
        await ledger.observe(engine())
        await asyncio.sleep(1.1)  # the blocking read that was under way has ended
        await start(ledger, ask("r"))
        ledger._wakeups._reading = alive
        line.drop()
        await dead.aclose()


async def test_entries_that_were_trimmed_unread_are_missed_and_mended(redis_server):
    watch = Watch()
    async with without_heartbeats(redis_server.url, watch=watch) as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("x", blocks=100))
        ticket = await queue(ledger, ask("r", blocks=100))
        entry = ledger._table.get("r")
        missed: list[Granted | Refused] = []
        deliver, ledger._wakeups._deliver = ledger._wakeups._deliver, missed.append
        await ledger.release("x")
        await until(lambda: bool(missed))
        ledger._wakeups._deliver = deliver
        (grant,) = missed
        assert isinstance(grant, Granted)
        assert ticket.decision is None, "its grant was not seen"
        ledger._table.ack = grant.gseq  # as after a later grant that was seen
        ledger._gap()
        await until(lambda: ledger.up)
        assert ledger._table.get("r") is entry
        ledger._keeper.hurry()
        await ticket.granted()
        assert "stream_gap" in watch.events


async def test_a_lagging_reader_notices_a_gap(redis_server):
    watch = Watch()
    async with shared(redis_server.url, watch=watch) as ledger:
        stream = ledger._scripts.stream_key
        with redis_server.client() as client:
            pipe = client.pipeline()
            for number in range(2000):
                pipe.xadd(stream, {"pid": "other", "rid": f"r{number}"})
            pipe.xtrim(stream, maxlen=1000, approximate=False)
            pipe.execute()
        ledger._wakeups.last = (1, 0)
        await until(lambda: "stream_gap" in watch.events)
        await until(lambda: ledger.up)


async def test_asking_after_those_who_wait_long_is_one_call_for_all(redis_server, monkeypatch):
    monkeypatch.setattr("kvgate.ledger.restore.PATROL_S", -1.0)
    async with without_heartbeats(redis_server.url) as ledger:
        await ledger.observe(engine())
        await start(ledger, ask("first", blocks=100))
        waiting = [await queue(ledger, ask(f"r{number}", blocks=100)) for number in range(20)]
        before = calls_of(redis_server, "evalsha")
        for _ in range(5):
            await refresh(ledger)
        assert calls_of(redis_server, "evalsha") - before <= 5 * 6, "one each would be a hundred"
        await ledger.release("first")
        await until(lambda: waiting[0].decision is not None)
