"""What the shared ledger adds to the promises about tenants: several processes, processes that are gone, many parts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from integration.ledger.process import START_MS, Pool, open_pool
from kvgate.ledger.base import RateSpent, Refusal
from kvgate.ledger.charges import Charge
from kvgate.ledger.rules import PART_MAX, Parts
from kvgate.ledger.scripts import Granted, Place
from kvgate_policies.types import PriorityClass, TenantRules, TenantUse
from unit.ledger.pool import ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def pool(redis_server: RedisServer) -> AsyncIterator[Pool]:
    async with open_pool(redis_server, clock_is_held=True, lease_ms=1 << 40) as pool:
        yield pool


async def tenant(pool: Pool, name: str = "tenant") -> TenantUse:
    (use,) = [use for use in (await pool.scripts.view()).tenants if use.name == name]
    return use


class TestUse:
    async def test_the_use_of_all_processes_counts_against_one_limit(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await pool.scripts.set_tenants(Parts.of({"tenant": TenantRules(limit=0.5)}))
        await p.hold(ask("p1", blocks=30))
        await q.queue(ask("q1", blocks=30))
        await q.hold(replace(ask("q2", blocks=30), tenant="other"))
        assert (await tenant(pool)).blocks == 30
        await p.release("p1")
        await q.read()
        assert "q1" in q.held

    @pytest.mark.parametrize("by_beat", [False, True])
    async def test_what_grows_lets_others_have_what_was_kept_free_beside_it(self, pool, by_beat):
        """In the call that tells of it: the tenant is still below its guarantee, but not with all that is kept for it."""
        p, q = await pool.join("p", engine(), engine("b")), await pool.join("q", engine(), engine("b"))
        await pool.scripts.set_tenants(Parts.of({"tenant": TenantRules(guarantee=0.5)}))
        for name, blocks, avoid in (("x", 90, "b"), ("y", 30, "a")):
            await q.hold(replace(ask(name, blocks=blocks, avoid=frozenset(avoid)), tenant="other"))
        await p.hold(ask("p0", blocks=20, avoid=frozenset("a")))
        await p.queue(ask("p1", blocks=60))
        await p.queue(ask("p2", blocks=30))
        await q.queue(replace(ask("small", blocks=10), tenant="other"))
        if by_beat:
            p.held["p0"] = replace(p.held["p0"], cost=cost(40))
            await p.beat()
        else:
            await p.renew("p0", cost(40))
        await q.read()
        assert "small" in q.held

    async def test_a_release_that_got_lost_heals_the_use_of_its_tenant_too(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await pool.scripts.set_tenants(Parts.of({"tenant": TenantRules(limit=0.5)}))
        await p.hold(ask("p1", blocks=50))
        await q.queue(ask("q1", blocks=30))
        p.held.clear()
        await p.beat()
        await q.read()
        assert "q1" in q.held
        assert (await tenant(pool)).blocks == 30

    async def test_of_a_process_that_is_gone_the_engine_stays_charged_and_the_tenant_does_not(self, pool):
        p, gone = await pool.join("p", engine()), await pool.join("g", engine())
        await pool.scripts.set_tenants(Parts.of({"tenant": TenantRules(limit=0.5)}))
        await gone.hold(ask("g1", blocks=40))
        await p.queue(ask("p1", blocks=30))
        await pool.expire("g")
        await pool.scripts.reap()
        await p.read()
        assert "p1" in p.held
        assert (await pool.use()).reserved == cost(70, 2)
        assert (await tenant(pool)).blocks == 30
        await gone.beat()
        assert (await tenant(pool)).blocks == 70, "it is back"
        assert (await pool.use()).reserved == cost(70, 2)

    async def test_an_engine_that_restarted_gives_the_use_back(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("p1", blocks=40))
        await p.scripts.void("p", "a")
        assert (await pool.scripts.view()).tenants == (), "it holds nothing, waits for nothing, has no rules"
        assert (await pool.use()).reservations == 0

    async def test_one_process_may_hold_for_many_tenants_on_many_engines(self, pool):
        p = await pool.join("p", *(engine(name) for name in "abc"))
        for number in range(12):
            await p.hold(replace(ask(f"r{number}", blocks=20), tenant=f"t{number % 4}"))
        await p.beat()
        holdings = (await pool.scripts.inspect()).holdings
        assert {one.tenant for one in holdings} == {"t0", "t1", "t2", "t3"}
        assert sum(one.sums.cost.blocks for one in holdings) == 240
        p.held.clear()
        await p.beat()
        view = await pool.scripts.view()
        assert (view.tenants, sum(use.reservations for use in view.engines)) == ((), 0)


class TestRules:
    async def test_the_same_again_is_one_call_and_changes_nothing(self, pool):
        parts = Parts.of({"a": TenantRules(weight=4)})
        await pool.scripts.set_tenants(parts)
        before = await pool.shares()
        stats = (await pool.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        await pool.scripts.set_tenants(parts)
        after = (await pool.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        assert after - stats == 1
        assert await pool.shares() == before

    async def test_thousands_come_in_parts_and_hold_from_the_last_one_on(self, pool):
        p = await pool.join("p", engine())
        await pool.scripts.set_tenants(Parts.of({"t0": TenantRules(limit=0.5)}))
        many = Parts.of({f"t{number}": TenantRules(limit=0.1) for number in range(3 * PART_MAX)})
        for number, row in enumerate(many.rows[:-1]):
            await pool.scripts._ask("set_tenants", "", many.digest, number, len(many.rows), *row)
        await p.hold(replace(ask("r0", blocks=50), tenant="t0"))
        await pool.scripts.set_tenants(many)
        answer = await p.reserve(replace(ask("r1", blocks=11), tenant="t1"))
        assert answer is Refusal.NEVER_FITS

    async def test_processes_that_say_the_same_at_once_help_each_other(self, pool):
        parts = Parts.of({f"t{number}": TenantRules(weight=2) for number in range(4 * PART_MAX)})
        await asyncio.gather(*(pool.add(pid).scripts.set_tenants(parts) for pid in "pqrs"))
        changes, side, *_ = await pool.shares()
        assert changes == "1"
        assert await pool.client.hlen(pool.key(f"rules_{side}")) == 4 * PART_MAX

    async def test_whoever_says_something_else_last_is_right(self, pool):
        first = Parts.of({f"t{number}": TenantRules(weight=2) for number in range(2 * PART_MAX)})
        await pool.scripts._ask("set_tenants", "", first.digest, 0, len(first.rows), *first.rows[0])
        await pool.scripts.set_tenants(Parts.of({"a": TenantRules(weight=3)}))
        view = await pool.scripts.view()
        assert [(use.name, use.rules.weight) for use in view.tenants] == [("a", 3.0)]
        await pool.scripts.set_tenants(first)
        assert len((await pool.scripts.view()).tenants) == 500

    async def test_a_new_epoch_knows_no_rules_and_keeps_overrides(self, pool):
        await pool.join("p", engine())
        await pool.scripts.set_tenants(Parts.of({"a": TenantRules(weight=4)}))
        await pool.scripts.override("a", "weight=6", 60_000)
        await pool.client.delete(pool.key("meta"))
        assert (await pool.scripts.view()).tenants == ()
        assert await pool.scripts.overrides() == {"a": ("weight=6", 60.0)}


class TestBudgets:
    async def test_what_one_process_spent_another_can_not(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await pool.scripts.set_tenants(Parts.of({"tenant": TenantRules(tokens_per_minute=6000)}))
        await p.hold(replace(ask("p1"), tokens=6000))
        spent = await q.reserve(replace(ask("q1"), tokens=300))
        assert spent == RateSpent(3.0, "tokens_per_minute")
        await pool.set_clock(START_MS + 2999)
        assert isinstance(await q.reserve(replace(ask("q1"), tokens=300)), RateSpent)
        await pool.set_clock(START_MS + 3000)
        await q.hold(replace(ask("q1"), tokens=300))

    async def test_a_correction_counts_once_and_not_after_the_beat_that_contains_its_release(self, pool):
        p = await pool.join("p", engine())
        await pool.scripts.set_tenants(Parts.of({"tenant": TenantRules(tokens_per_minute=6000)}))
        grant = await p.hold(replace(ask("r"), tokens=6000, work=100))
        charge = Charge(PriorityClass.STANDARD, -30, -30, -3000)
        await p.release("r", charge)
        await p.scripts.release("p", p.rel, "a", "tenant", grant.cost, charge=charge)
        await p.hold(replace(ask("s"), tokens=3000))
        assert isinstance(await p.reserve(replace(ask("t"), tokens=1)), RateSpent)
        assert (await tenant(pool)).service == 70 + 1

    async def test_one_that_was_let_in_elsewhere_is_charged_and_not_refused(self, pool):
        p = await pool.join("p", engine())
        await pool.scripts.set_tenants(Parts.of({"tenant": TenantRules(tokens_per_minute=6000, limit=0.5)}))
        await p.hold(replace(ask("r"), tokens=6000))
        late = replace(ask("late", blocks=60, depth=0), tokens=60)
        _, answer = await p.scripts.reserve("p", late, ack=p.ack, admitted=True)
        assert isinstance(answer, Place)
        assert await p.reserve(replace(ask("more"), tokens=60)) == RateSpent(1.2, "tokens_per_minute")


class TestForce:
    async def test_it_starts_in_the_grace_of_a_new_epoch_too(self, redis_server):
        async with open_pool(redis_server, grace_ms=60_000) as pool:
            p = await pool.join("p", engine())
            await p.reserve(replace(ask("r"), force=True))
            (entry,) = await pool.stream.read()
            assert isinstance(entry, Granted)
            assert entry.forced == "queued"

    async def test_sent_again_it_is_not_started_twice(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=100))
        forced = replace(ask("r"), force=True)
        first = (await p.ask(forced))[1]
        assert (await p.scripts.reserve("p", forced, ack=p.ack))[1] == first
        assert (await pool.use()).reservations == 2
