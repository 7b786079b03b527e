"""Tenants over a whole process: what it tells Redis of them, and what holds while Redis is away."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from integration.ledger.ledgers import out_of_grace, queue, refresh, shared, start, until, without_heartbeats
from kvgate.errors import ChangeNotKept
from kvgate.ledger.base import Grant, RateSpent, Served
from kvgate_policies.types import PriorityClass, TenantRules
from unit.ledger.pool import ask, cost, engine

if TYPE_CHECKING:
    from kvgate.ledger.redis import RedisLedger
    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration


def rules_of(ledger: RedisLedger) -> dict[str, TenantRules]:
    return {use.name: use.rules for use in ledger.view().tenants}


async def away(ledger: RedisLedger, server: RedisServer) -> None:
    server.kill()
    await until(lambda: ledger.mode == "local")


async def back(ledger: RedisLedger, server: RedisServer) -> None:
    server.start()
    await until(lambda: ledger.up)
    await out_of_grace(ledger)


async def test_rules_of_one_process_hold_for_all(redis_server):
    async with shared(redis_server.url) as one, shared(redis_server.url) as two:
        for ledger in (one, two):
            await ledger.observe(engine())
        await one.set_tenants({"t": TenantRules(limit=0.5)})
        await start(two, ask("r0", blocks=40, tenant="t"))
        waits = await queue(one, ask("r1", blocks=20, tenant="t"))
        await refresh(one)
        assert waits.decision is None
        assert rules_of(one) == {"t": TenantRules(limit=0.5)}
        await two.set_tenants({"t": TenantRules(limit=0.6)})
        assert isinstance(await waits.granted(), Grant)


async def test_a_grant_says_all_that_is_needed_to_queue_again(redis_server):
    async with shared(redis_server.url) as ledger:
        await ledger.observe(engine())
        asked = replace(
            ask("r", tenant="t"), priority=PriorityClass.BATCH, work=70, tokens=50, rank_in_ms=9000
        )
        grant = await start(ledger, asked)
        told = (grant.tenant, grant.priority, grant.work, grant.tokens, grant.forced)
        assert told == ("t", PriorityClass.BATCH, 70, 50, None)
        await ledger.release("r")
        again = await start(ledger, replace(asked, seq=grant.seq, rank=grant.rank))
        assert (again.seq, again.rank) == (grant.seq, grant.rank)
        assert grant.rank > 9000


async def test_what_was_served_corrects_both_charges_in_the_same_call(redis_server):
    async with without_heartbeats(redis_server.url) as ledger:
        await ledger.observe(engine())
        await ledger.set_tenants({"t": TenantRules(tokens_per_minute=6_000_000)})
        await start(ledger, ask("r", tenant="t", work=100, tokens=6_000_000))
        assert isinstance(await ledger.reserve(ask("s", tenant="t", tokens=6_000_000)), RateSpent)
        await ledger.release("r", Served(30, 0))
        await start(ledger, ask("s", tenant="t", work=1, tokens=5_900_000))
        await refresh(ledger)
        (use,) = [use for use in ledger.view().tenants if use.name == "t"]
        assert use.service == 31


async def test_rules_that_change_while_redis_is_away_hold_here_and_are_told_when_it_is_back(redis_server):
    async with shared(redis_server.url) as ledger:
        await ledger.observe(engine())
        await ledger.set_tenants({"t": TenantRules(weight=2)})
        await away(ledger, redis_server)
        await ledger.set_tenants({"t": TenantRules(limit=0.2)})
        await start(ledger, ask("r0", blocks=15, tenant="t"))
        waits = await queue(ledger, ask("r1", blocks=10, tenant="t"))
        await start(ledger, ask("other", blocks=10))
        assert waits.decision is None, "18 of 100 are its part"
        await back(ledger, redis_server)
        assert rules_of(ledger)["t"] == TenantRules(limit=0.2)
        (use,) = [use for use in ledger.view().tenants if use.name == "t"]
        assert (use.blocks, use.queued) == (15, 1)
        assert await ledger._scripts.verify() == []


async def test_who_waited_in_an_outage_is_not_refused_for_a_budget_after_it(redis_server):
    async with shared(redis_server.url) as ledger:
        await ledger.observe(engine())
        await ledger.set_tenants({"t": TenantRules(tokens_per_minute=6000)})
        await start(ledger, ask("x", blocks=100))
        await away(ledger, redis_server)
        waits = await queue(ledger, ask("r", tenant="t", tokens=6000, blocks=50))
        await back(ledger, redis_server)
        assert isinstance(await ledger.reserve(ask("s", tenant="t", tokens=3000)), RateSpent), (
            "it was charged"
        )
        await ledger.release("x")
        assert isinstance(await waits.granted(), Grant)


async def test_overrides_are_shared_and_outlive_a_redis_that_restarts_empty(redis_server):
    async with shared(redis_server.url) as one, shared(redis_server.url) as two:
        await one.put_override("t", "weight=6", 600)
        assert (await two.overrides())["t"][0] == "weight=6"
        await away(two, redis_server)
        with pytest.raises(ChangeNotKept, match="is away"):
            await two.put_override("t", None, 0)
        assert (await two.overrides())["t"][0] == "weight=6"
        await back(two, redis_server)
        text, left_s = (await two.overrides())["t"]
        assert text == "weight=6"
        assert 500 < left_s <= 600
        await two.put_override("t", None, 0)
        assert await two.overrides() == {}


async def test_the_place_of_a_waiting_one_is_that_in_its_flow_over_all_processes(redis_server):
    async with shared(redis_server.url) as one, shared(redis_server.url) as two:
        for ledger in (one, two):
            await ledger.observe(engine())
        await start(one, ask("x", blocks=100))
        for number in range(4):
            await queue(two, ask(f"two{number}", tenant="t"))
        mine = [await queue(one, ask(f"one{number}", tenant="t")) for number in range(2)]
        other = await queue(one, ask("other", tenant="other"))
        await refresh(one)
        assert [ticket.position for ticket in mine] == [0, 3], "half of what waits is its own"
        assert other.position == 0
        assert one.view().engines[0].reserved == cost(100)
