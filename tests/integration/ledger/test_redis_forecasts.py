"""Forecasts in a shared ledger: what they cost, and what is done with them while Redis is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from integration.ledger.ledgers import out_of_grace, queue, refresh, shared, start, until, without_heartbeats
from support.redis_server import FaultProxy
from unit.ledger.conformance_forecasts import POINTS, flat, soft, want
from unit.ledger.pool import ask, cost, engine

if TYPE_CHECKING:
    from kvgate.ledger.redis import RedisLedger
    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration


def calls_made(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


async def reserved(ledger: RedisLedger) -> object:
    await refresh(ledger)
    assert await ledger._scripts.verify() == []
    (use,) = ledger.view().engines
    return use.reserved


async def test_forecasts_that_change_cost_no_call_and_go_with_the_next_beat(redis_server):
    async with without_heartbeats(redis_server.url) as ledger:
        await ledger.observe(engine())
        for name in ("r1", "r2"):
            await start(ledger, want(name, flat(90, 30)))
        waits = await queue(ledger, want("waits", flat(90, 50)))
        before = calls_made(redis_server)
        for held in range(20, 30):
            await ledger.renew_many({"r1": flat(90, held), "r2": flat(90, 20), "waits": flat(90, 1)})
        assert calls_made(redis_server) == before
        await ledger._keeper.beat()
        assert (await waits.granted()).cost == flat(90, 50)
        assert await reserved(ledger) == flat(90, 29) + flat(90, 20) + flat(90, 50)
        await asyncio.gather(*(ledger.release(name) for name in ("r1", "r2", "waits")))
        assert await reserved(ledger) == cost(0, 0)


async def test_what_changed_since_the_last_beat_is_given_back_as_redis_knows_it(redis_server):
    async with without_heartbeats(redis_server.url) as ledger:
        await ledger.observe(engine())
        for name in ("r1", "r2"):
            await start(ledger, want(name, flat(90, 30)))
        await ledger.renew_many({"r1": flat(90, 60, 3)})
        await ledger.release("r1")
        assert await reserved(ledger) == flat(90, 30)


async def test_a_prompt_that_was_read_is_told_at_once_with_the_forecast_of_then(redis_server):
    async with without_heartbeats(redis_server.url) as ledger:
        await ledger.observe(engine())
        await start(ledger, want("long", soft(90, 50, 60, 70, prefill_tokens=900)))
        waits = await queue(ledger, want("next", flat(90, 40, 0)))
        await ledger.renew("long", soft(90, 55, 60, 0))
        await waits.granted()
        assert await reserved(ledger) == soft(90, 55, 60, 0) + flat(90, 40)


async def test_local_goes_on_by_what_is_expected_and_comes_back_with_it(redis_server):
    """Peaks of three engines; nine tenths of one are expected."""
    async with FaultProxy(redis_server.port) as proxy, shared(proxy.url) as ledger:
        await ledger.observe(engine())
        for name in ("r1", "r2"):
            await start(ledger, want(name, flat(100, 30)))
        proxy.hang()
        await until(lambda: ledger.mode == "local")
        grant = await start(ledger, want("new", flat(100, 30)))
        assert grant.cost == flat(100, 30)
        waits = await queue(ledger, want("waits", flat(100, 10)))
        hard = await queue(ledger, ask("hard", blocks=31))
        assert (waits.decision, hard.decision) == (None, None)
        assert ledger.view().engines[0].reserved == flat(300, 90) + cost(0, 2)
        await ledger.renew_many({"r1": flat(100, 20), "r2": flat(100, 20), "new": flat(100, 40)})
        assert (waits.decision is not None, hard.decision) == (True, None)
        proxy.heal()
        await until(lambda: ledger.mode == "redis" and ledger._keeper.up)
        await out_of_grace(ledger)
        assert await reserved(ledger) == flat(400, 90) + cost(0, 3)
        for name in ("r1", "r2", "new", "waits", "hard"):
            await ledger.release(name)
        assert await reserved(ledger) == cost(0, 0)


async def test_an_empty_redis_is_told_the_forecasts_of_now_and_the_wishes_of_who_waits(redis_server):
    async with shared(redis_server.url) as ledger:
        await ledger.observe(engine())
        await ledger.observe(engine("b", blocks_usable=0))
        await start(ledger, want("r1", flat(90, 60, 1), avoid=frozenset("b")))
        await start(ledger, ask("r2", blocks=1, avoid=frozenset("a")))
        waits = await queue(ledger, want("waits", flat(90, 50), prefer=("b",), z=(0.0,) * POINTS))
        await ledger.renew_many({"r1": flat(90, 65, 2)})
        redis_server.flush()
        await until(lambda: len(ledger.view().engines) == 2 and ledger._keeper.up)
        await out_of_grace(ledger)
        uses = {use.limits.engine_id: use for use in ledger.view().engines}
        assert (uses["a"].reserved, uses["b"].limits.blocks_usable) == (flat(90, 65, 2), 0)
        await ledger.observe(engine("b"))
        assert (await waits.granted()).engine_id == "b"
