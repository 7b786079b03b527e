"""What every ledger promises about tenants: weights, guarantees, limits, classes, budgets, forced starts.

It joins as in `conformance`; in addition it says how time passes for its budgets (`pass_time`).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from kvgate.ledger.base import Grant, RateSpent, Refusal, Served
from kvgate_policies.fairness import AGEING, service_gap_max
from kvgate_policies.types import PriorityClass, TenantRules
from unit.ledger.pool import OTHER_SHAPE, SHAPE, Probe, ask, cost, engine, turns
from unit.ledger.saturated import Load, Saturated, count_by_tenant, work_by_tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from kvgate.ledger.base import Ledger

INTERACTIVE, BATCH = PriorityClass.INTERACTIVE, PriorityClass.BATCH
TOKENS_PER_S = 1_000
PER_MINUTE = 60 * TOKENS_PER_S


def some_work(seed: int) -> Callable[[], int]:
    rng = random.Random(seed)
    return lambda: rng.randint(50, 150)


class TenantConformance:
    def open(self, **bounds: int) -> AbstractAsyncContextManager[Ledger]:
        raise NotImplementedError

    async def settle(self) -> None:
        await turns()

    async def pass_time(self, seconds: float) -> None:
        """Let so much time pass on the ledger's clock, and not much more."""
        raise NotImplementedError

    @pytest.fixture
    async def probe(self) -> AsyncIterator[Probe]:
        """A ledger with one engine `a` of 100 blocks."""
        async with self.open() as ledger:
            await ledger.observe(engine())
            yield Probe(ledger, self.settle)

    # weights

    async def test_two_that_always_wait_are_served_by_their_weights(self, probe):
        await probe.ledger.set_tenants({"heavy": TenantRules(weight=4), "light": TenantRules(weight=1)})
        pool = Saturated(probe, Load("heavy", work=some_work(1)), Load("light", work=some_work(2)))
        await pool.fill()
        served = work_by_tenant(await pool.grants_of(500))
        assert served["heavy"] / served["light"] == pytest.approx(4, rel=0.05)

    @pytest.mark.parametrize("seed", range(3))
    async def test_the_service_of_any_two_never_differs_by_more_than_the_bound(self, probe, seed):
        """Over every interval of a random load: the largest charge of each, per weight."""
        rng = random.Random(seed)
        weights = {name: rng.choice([0.5, 1, 3, 4]) for name in "abc"}
        await probe.ledger.set_tenants({name: TenantRules(weight=weights[name]) for name in weights})
        pool = Saturated(
            probe, *(Load(name, work=lambda: rng.choice([1, 50, 300, 1000])) for name in weights)
        )
        await pool.fill()
        served = dict.fromkeys(weights, 0.0)
        gaps: dict[tuple[str, str], list[float]] = {
            pair: [0.0] for pair in itertools.combinations(weights, 2)
        }
        for grant in await pool.grants_of(150):
            served[grant.tenant] += grant.work / weights[grant.tenant]
            for (i, j), seen in gaps.items():
                seen.append(served[i] - served[j])
        for (i, j), seen in gaps.items():
            assert max(seen) - min(seen) <= service_gap_max(1000, weights[i], 1000, weights[j]) + 1e-6

    async def test_what_one_does_not_want_the_other_gets_and_the_idle_one_earns_nothing(self, probe):
        await probe.ledger.set_tenants({"a": TenantRules(weight=1), "b": TenantRules(weight=1)})
        a, b = Load("a"), Load("b")
        pool = Saturated(probe, a, b)
        await pool.fill()
        await pool.grants_of(20)
        await pool.stop(b)
        assert count_by_tenant(await pool.grants_of(100)) == {"a": 100}
        await pool.start(b)
        back = [grant.tenant for grant in await pool.grants_of(20)]
        assert count_by_tenant(pool.grants[-20:]) == {"a": 10, "b": 10}, "no catching up"
        assert max(len(run) for run in "".join(back).replace("a", " ").split()) <= 2

    async def test_a_new_tenant_does_not_wait_for_what_others_were_served_before(self, probe):
        pool = Saturated(probe, Load("old"), new := Load("new", on=False))
        await pool.fill()
        await pool.grants_of(50)
        await pool.start(new)
        counts = count_by_tenant(await pool.grants_of(20))
        assert abs(counts["old"] - counts["new"]) <= 2, "one largest request of each, whatever came before"

    async def test_equal_tags_go_by_name(self, probe):
        await probe.start(ask("x", blocks=100))
        tickets = [await probe.wait(ask(name, blocks=100, tenant=name)) for name in "cab"]
        for name in "abc":
            await probe.ledger.release("x")
            assert await probe.started(*tickets) == [name]
            await probe.ledger.release(name)
            tickets = [ticket for ticket in tickets if ticket.request_id != name]

    async def test_the_charge_is_corrected_when_the_request_ends(self, probe):
        """`a` was charged 100 each, and took 300: it waits until the others had as much."""
        await probe.start(ask("x", blocks=100, tenant="z"))
        more = {
            name: [await probe.wait(ask(f"{name}{n}", blocks=100, tenant=name, work=100)) for n in range(8)]
            for name in "ab"
        }
        await probe.ledger.release("x")
        order = []
        served = {"a": Served(300, 0), "b": Served(100, 0)}
        for _ in range(8):
            (now,) = await probe.started(*more["a"], *more["b"])
            order.append(now[0])
            more[now[0]] = [ticket for ticket in more[now[0]] if ticket.request_id != now]
            await probe.ledger.release(now, served[now[0]])
            await self.settle()
        assert "".join(order) == "abbbabbb"

    async def test_service_counts_what_was_served_at_last(self, probe):
        await probe.start(ask("r", work=100))
        assert probe.tenant("tenant").service == 100
        await probe.start(ask("other"))
        await probe.ledger.release("r", Served(70, 0))
        await self.settle()
        assert probe.tenant("tenant").service == 71

    # guarantees

    async def test_one_below_its_guarantee_is_first_until_it_has_it(self, probe):
        await probe.ledger.set_tenants(
            {"sure": TenantRules(guarantee=0.3), "greedy": TenantRules(weight=100)}
        )
        pool = Saturated(probe, Load("greedy"), sure := Load("sure", on=False))
        await pool.fill()
        await pool.grants_of(10)
        await pool.start(sure)
        assert count_by_tenant(await pool.steps(3)) == {"sure": 3}, "as soon as what runs ends"
        assert probe.tenant("sure").blocks == 30
        await pool.steps(50)
        assert probe.tenant("sure").blocks == 30

    async def test_what_one_below_its_guarantee_waits_for_is_kept_free_at_once(self, probe):
        await probe.ledger.set_tenants({"sure": TenantRules(guarantee=0.3)})
        pool = Saturated(probe, Load("greedy", priority=INTERACTIVE))
        await pool.fill()
        sure = await probe.wait(ask("sure", blocks=30, tenant="sure", priority=BATCH))
        assert await pool.steps(2) == []
        assert probe.use().pinned_by == "sure"
        await pool.steps(1)
        assert await probe.started(sure) == ["sure"]

    async def test_no_more_is_kept_free_than_the_guarantee(self):
        async with self.open() as ledger:
            probe = Probe(ledger, self.settle)
            for engine_id in "abcd":
                await ledger.observe(engine(engine_id))
            await ledger.set_tenants({"sure": TenantRules(guarantee=0.25)})
            for number in range(4):
                await probe.start(ask(f"x{number}", blocks=60))
            for number in range(4):
                await probe.wait(ask(f"sure{number}", blocks=50, tenant="sure"))
            pinners = sorted(use.pinned_by or "" for use in ledger.view().engines)
            assert pinners == ["", "", "sure0", "sure1"]

    async def test_a_grant_that_reaches_the_guarantee_ends_what_was_kept_free_beside_it(self, probe):
        await probe.ledger.observe(engine("b"))
        await probe.ledger.set_tenants({"sure": TenantRules(guarantee=0.1)})
        not_a, not_b = frozenset("a"), frozenset("b")
        await probe.start(ask("x", blocks=60, avoid=not_b))
        await probe.start(ask("y", blocks=60, avoid=not_a))
        await probe.wait(ask("sure0", blocks=50, tenant="sure", avoid=not_b))
        small = await probe.wait(ask("small", blocks=40, avoid=not_b))
        assert probe.use("a").pinned_by == "sure0"
        await probe.start(ask("sure1", blocks=40, tenant="sure", avoid=not_a))
        assert await probe.started(small) == ["small"]

    async def test_one_whose_head_leaves_is_no_longer_at_its_limit(self, probe):
        await probe.ledger.set_tenants({"bounded": TenantRules(limit=0.4)})
        await probe.start(ask("b0", blocks=30, tenant="bounded"))
        await probe.wait(ask("b1", blocks=20, tenant="bounded"))
        small = await probe.wait(ask("b2", blocks=10, tenant="bounded"))
        await probe.ledger.cancel("b1")
        assert await probe.started(small) == ["b2"]

    async def test_a_guarantee_that_is_reached_keeps_nothing_free(self, probe):
        await probe.ledger.set_tenants({"sure": TenantRules(guarantee=0.3)})
        await probe.start(ask("sure0", blocks=20, tenant="sure"))
        await probe.start(ask("x", blocks=40))
        await probe.wait(ask("sure1", blocks=50, tenant="sure"))
        small = await probe.wait(ask("small", blocks=10))
        assert probe.use().pinned_by == "sure1"
        await probe.ledger.renew("sure0", cost(30))
        assert await probe.started(small) == ["small"]

    async def test_what_grows_leaves_less_to_be_kept_free_for_others_of_its_tenant(self, probe):
        await probe.ledger.observe(engine("b"))
        await probe.ledger.set_tenants({"sure": TenantRules(guarantee=0.5)})
        await probe.start(ask("x", blocks=90, avoid=frozenset("b")))
        await probe.start(ask("y", blocks=30, avoid=frozenset("a")))
        await probe.start(ask("sure0", blocks=20, tenant="sure", avoid=frozenset("a")))
        for number, blocks in ((1, 60), (2, 30)):
            await probe.wait(ask(f"sure{number}", blocks=blocks, tenant="sure"))
        small = await probe.wait(ask("small", blocks=10))
        assert [probe.use(name).pinned_by for name in ("a", "b")] == ["sure2", "sure1"]
        await probe.ledger.renew("sure0", cost(40))
        assert await probe.started(small) == ["small"]
        assert [probe.use(name).pinned_by for name in ("a", "b")] == [None, "sure1"]

    # limits

    async def test_a_limit_holds_at_each_grant_and_holds_up_nobody_else(self, probe):
        await probe.ledger.set_tenants({"bounded": TenantRules(limit=0.4)})
        for number in range(4):
            await probe.start(ask(f"b{number}", tenant="bounded"))
        waits = await probe.wait(ask("b4", tenant="bounded"))
        await probe.start(ask("other", blocks=50))
        assert (probe.tenant("bounded").blocks, probe.tenant("bounded").blocks_limit) == (40, 40)
        await probe.ledger.release("b0")
        assert await probe.started(waits) == ["b4"]
        assert probe.tenant("bounded").blocks == 40

    async def test_one_at_its_limit_is_not_passed_and_keeps_nothing_free(self):
        async with self.open(bypass_max=0) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine())
            await ledger.set_tenants({"bounded": TenantRules(limit=0.5)})
            await probe.start(ask("b0", blocks=40, tenant="bounded"))
            await probe.wait(ask("b1", blocks=20, tenant="bounded"))
            for number in range(6):
                await probe.start(ask(f"other{number}", blocks=10))
            assert probe.use().pinned_by is None
            assert ledger.view().totals["bypasses"] == 0

    async def test_the_lower_of_two_limits_holds(self, probe):
        await probe.ledger.set_tenants({"bounded": TenantRules(limit=0.5, limit_tokens=16 * 30 + 15)})
        await probe.start(ask("b0", blocks=20, tenant="bounded"))
        await probe.wait(ask("b1", blocks=11, tenant="bounded"))
        assert probe.tenant("bounded").blocks_limit == 30

    async def test_an_absolute_limit_is_read_with_the_smallest_block(self, probe):
        await probe.ledger.observe(engine("b", shape=OTHER_SHAPE))
        await probe.ledger.set_tenants({"bounded": TenantRules(limit_tokens=1600)})
        await self.settle()
        assert probe.tenant("bounded").blocks_limit == 100
        await probe.ledger.forget("a")
        await self.settle()
        assert probe.tenant("bounded").blocks_limit == 50

    async def test_what_no_limit_of_its_tenant_lets_through_never_fits(self, probe):
        await probe.ledger.set_tenants({"bounded": TenantRules(limit=0.4)})
        assert await probe.ledger.reserve(ask("r", blocks=41, tenant="bounded")) is Refusal.NEVER_FITS
        await probe.start(ask("r", blocks=40, tenant="bounded"))

    async def test_a_price_above_the_limit_is_not_taken_where_another_is_within(self, probe):
        await probe.ledger.observe(engine("b", shape=OTHER_SHAPE, blocks=100))
        await probe.ledger.set_tenants({"bounded": TenantRules(limit=0.2)})
        await probe.start(ask("x", blocks=50, avoid=frozenset("b")))
        asked = ask("r", blocks=50, tenant="bounded")
        ticket = await probe.queue(
            type(asked)("r", "bounded", {SHAPE: cost(30), OTHER_SHAPE: cost(45)}, asked.queue_depth_max)
        )
        decision = await probe.decision(ticket)
        assert isinstance(decision, Grant)
        assert decision.engine_id == "a"

    async def test_a_lower_limit_drops_nobody_and_a_higher_one_wakes(self, probe):
        await probe.start(ask("r0", blocks=60, tenant="t"))
        waits = await probe.wait(ask("r1", blocks=50, tenant="t"))
        await probe.ledger.set_tenants({"t": TenantRules(limit=0.3)})
        assert probe.tenant("t").blocks == 60
        await probe.ledger.release("r0")
        assert await probe.decision(waits) is None
        assert probe.ledger.view().queued == 1
        await probe.ledger.set_tenants({"t": TenantRules(limit=0.5)})
        assert await probe.started(waits) == ["r1"]

    async def test_limits_follow_the_engines(self, probe):
        await probe.ledger.set_tenants({"t": TenantRules(limit=0.5)})
        await probe.start(ask("r0", blocks=50, tenant="t"))
        waits = await probe.wait(ask("r1", blocks=30, tenant="t"))
        await probe.ledger.observe(engine("b"))
        assert await probe.started(waits) == ["r1"]
        await probe.ledger.forget("b")
        await self.settle()
        assert (probe.tenant("t").blocks, probe.tenant("t").blocks_limit) == (50, 50)

    async def test_the_whole_pool_for_a_limit_is_none(self, probe):
        """An engine that is overdrawn keeps nobody from another one."""
        await probe.ledger.observe(engine("b"))
        await probe.start(ask("x", blocks=50, avoid=frozenset("b")))
        await probe.ledger.renew("x", cost(150))
        assert (await probe.start(ask("r", blocks=80))).engine_id == "b"

    async def test_one_back_from_its_limit_has_earned_nothing(self, probe):
        await probe.ledger.set_tenants({"a": TenantRules(limit=0.1), "b": TenantRules()})
        pool = Saturated(probe, Load("a"), Load("b"))
        await pool.fill()
        await pool.grants_of(60)
        await probe.ledger.set_tenants({"a": TenantRules(), "b": TenantRules()})
        counts = count_by_tenant(await pool.grants_of(20))
        assert 9 <= counts["a"] <= 11

    # partitions

    async def test_without_borrowing_neither_takes_of_the_other(self, probe):
        await probe.ledger.set_tenants({"p": TenantRules(guarantee=0.5, borrow=False)})
        for number in range(5):
            await probe.start(ask(f"other{number}"))
        waits = await probe.wait(ask("other5"))
        for number in range(5):
            await probe.start(ask(f"p{number}", tenant="p"))
        await probe.wait(ask("p5", tenant="p"))
        await probe.ledger.cancel("p5")
        await probe.ledger.release("p0")
        assert await probe.decision(waits) is None, "what it does not use is open to nobody"
        await probe.ledger.release("other0")
        assert await probe.started(waits) == ["other5"]
        assert await probe.ledger.reserve(ask("huge", blocks=51)) is Refusal.NEVER_FITS
        assert await probe.ledger.reserve(ask("huge", blocks=51, tenant="p")) is Refusal.NEVER_FITS

    async def test_a_large_one_gets_its_room_in_the_open_part_after_so_many_were_let_past(self):
        async with self.open(bypass_max=3) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine("a"))
            await ledger.observe(engine("b"))
            await ledger.set_tenants({"p": TenantRules(guarantee=0.5, borrow=False)})
            await probe.start(ask("x", blocks=50))
            large = await probe.wait(ask("large", blocks=80, tenant="l"))
            for number in range(3):
                await probe.start(ask(f"small{number}", blocks=5, tenant="s"))
            small = await probe.wait(ask("small3", blocks=5, tenant="s"))
            for number in range(3):
                await ledger.release(f"small{number}")
            assert await probe.started(large, small) == []
            await ledger.release("x")
            assert await probe.started(large, small) == ["large", "small3"]

    async def test_a_partition_is_not_held_up_by_what_others_wait_for(self):
        async with self.open(bypass_max=0) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine())
            await ledger.set_tenants({"p": TenantRules(guarantee=0.5, borrow=False)})
            await probe.start(ask("x", blocks=30))
            await probe.wait(ask("large", blocks=40, priority=INTERACTIVE))
            for number in range(5):
                await probe.start(ask(f"p{number}", tenant="p"))

    async def test_a_partition_that_ends_wakes_those_who_waited_for_it(self, probe):
        await probe.ledger.set_tenants({"p": TenantRules(guarantee=0.5, borrow=False)})
        await probe.start(ask("x", blocks=50))
        waits = await probe.wait(ask("r", blocks=50))
        await probe.ledger.set_tenants({"p": TenantRules(guarantee=0.5)})
        assert await probe.started(waits) == ["r"]

    # classes

    async def test_a_class_is_served_before_the_next(self, probe):
        await probe.start(ask("x", blocks=100))
        tickets = [
            await probe.wait(ask(priority, blocks=100, priority=priority, tenant="t"))
            for priority in reversed(PriorityClass)
        ]
        assert [ticket.position for ticket in tickets] == [0, 0, 0]
        await probe.ledger.release("x")
        for priority in PriorityClass:
            assert await probe.started(*tickets) == [priority]
            await probe.ledger.release(priority)
            tickets = [ticket for ticket in tickets if ticket.request_id != priority]

    async def test_the_lowest_class_progresses_at_the_rate_of_its_ageing(self, probe):
        pool = Saturated(probe, Load("live", priority=INTERACTIVE), Load("bulk", priority=BATCH))
        await pool.fill()
        grants = await pool.grants_of(10 * (AGEING + 1))
        assert count_by_tenant(grants) == {"live": 10 * AGEING, "bulk": 10}
        places = [place for place, grant in enumerate(grants) if grant.tenant == "bulk"]
        assert {after - before for before, after in itertools.pairwise(places)} == {AGEING + 1}

    async def test_each_of_two_lower_classes_progresses(self, probe):
        pool = Saturated(
            probe, Load("live", priority=INTERACTIVE), Load("some"), Load("bulk", priority=BATCH)
        )
        await pool.fill()
        counts = count_by_tenant(await pool.grants_of(20 * (AGEING + 1)))
        assert counts["bulk"] >= 20
        assert counts["some"] >= (counts["some"] + counts["live"]) // (AGEING + 1)

    async def test_a_large_one_of_a_low_class_gets_its_engine_after_ageing(self, probe):
        pool = Saturated(probe, Load("live", priority=INTERACTIVE, blocks=5))
        await pool.fill()
        large = await probe.wait(ask("large", blocks=60, tenant="bulk", priority=BATCH))
        while probe.use().pinned_by != "large":
            await pool.steps(1)
            assert len(pool.grants) < 20 + 2 * AGEING + 2
        await pool.steps(12)
        assert await probe.started(large) == ["large"]

    async def test_a_large_one_starts_after_bypass_max_of_another_tenants_small_ones(self):
        async with self.open(bypass_max=8) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine(seqs=64))
            pool = Saturated(probe, Load("small", blocks=5))
            await pool.fill()
            large = await probe.wait(ask("large", blocks=60, tenant="a"))
            overtook = 0
            while not await probe.started(large):
                overtook += len(await pool.steps(1))
                assert overtook <= 8
            assert overtook == 8

    # order inside a flow

    async def test_a_flow_is_in_the_order_of_its_ranks(self, probe):
        await probe.start(ask("x", blocks=100))
        tickets = [
            await probe.wait(ask(f"in{rank}", blocks=100, rank_in_ms=rank))
            for rank in (90_000, 30_000, 60_000)
        ]
        assert [ticket.position for ticket in tickets] == [2, 0, 1]
        await probe.ledger.release("x")
        for name in ("in30000", "in60000", "in90000"):
            assert await probe.started(*tickets) == [name]
            await probe.ledger.release(name)
            tickets = [ticket for ticket in tickets if ticket.request_id != name]

    async def test_one_that_queues_again_keeps_its_rank(self, probe):
        first = await probe.start(ask("first", blocks=100, rank_in_ms=60_000))
        assert first.rank > 0
        late = await probe.wait(ask("late", blocks=100, rank_in_ms=90_000))
        await probe.ledger.observe(engine(accepting=False))
        await probe.ledger.release("first")
        again = await probe.queue(ask("first", blocks=100, seq=first.seq, rank=first.rank))
        assert (again.position, late.position) == (0, 1)
        await probe.ledger.observe(engine())
        assert await probe.started(late, again) == ["first"]

    async def test_by_arrival_comes_before_any_rank(self, probe):
        await probe.start(ask("x", blocks=100))
        ranked = await probe.wait(ask("ranked", blocks=100, rank_in_ms=0))
        plain = await probe.wait(ask("plain", blocks=100))
        assert (plain.position, ranked.position) == (0, 1)

    async def test_a_full_queue_does_not_refuse_one_that_comes_before_all_of_it(self, probe):
        await probe.start(ask("x", blocks=60))
        for number in range(6):
            await probe.wait(ask(f"r{number}", blocks=50, rank_in_ms=30_000))
        await probe.start(ask("first", blocks=10, depth=6))
        late = await probe.ledger.reserve(ask("last", blocks=10, depth=6, rank_in_ms=30_000))
        assert late is Refusal.QUEUE_FULL

    async def test_the_depth_of_the_queue_is_the_tenants_own(self, probe):
        await probe.start(ask("x", blocks=100))
        await probe.wait(ask("a0", depth=2, tenant="a"))
        await probe.wait(ask("a1", depth=2, tenant="a", priority=BATCH))
        assert await probe.ledger.reserve(ask("a2", depth=2, tenant="a")) is Refusal.QUEUE_FULL
        await probe.wait(ask("b0", depth=1, tenant="b"))
        assert (probe.tenant("a").queued, probe.tenant("b").queued) == (2, 1)

    # budgets

    async def limit_rates(self, probe: Probe, **rules: Any) -> None:
        await probe.ledger.set_tenants({"t": TenantRules(**rules)})

    async def test_a_minutes_tokens_may_be_spent_at_once_and_then_as_they_come(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE)
        await probe.start(ask("r0", tenant="t", tokens=PER_MINUTE))
        spent = await probe.ledger.reserve(ask("r1", tenant="t", tokens=TOKENS_PER_S // 2))
        assert isinstance(spent, RateSpent)
        assert spent.budget == "tokens_per_minute"
        assert spent.retry_after_s == pytest.approx(0.5, abs=0.1)
        again = await probe.ledger.reserve(ask("r1", tenant="t", tokens=TOKENS_PER_S // 2))
        assert isinstance(again, RateSpent), "a refusal spends nothing, and earns nothing"
        await self.pass_time(again.retry_after_s)
        await probe.start(ask("r1", tenant="t", tokens=TOKENS_PER_S // 2))
        await probe.start(ask("other", tokens=10**9))
        assert probe.ledger.view().totals["refused_rate"] == 2

    async def test_requests_are_counted_too_and_the_later_budget_is_told(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE, requests_per_minute=120)
        for number in range(120):
            await probe.start(ask(f"r{number}", tenant="t", tokens=1))
            await probe.ledger.release(f"r{number}")
        spent = await probe.ledger.reserve(ask("r", tenant="t", tokens=1))
        assert isinstance(spent, RateSpent)
        assert spent.budget == "requests_per_minute"
        assert spent.retry_after_s <= 0.5

    async def test_a_request_refused_by_one_budget_spends_nothing_of_the_other(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE, requests_per_minute=2)
        await probe.start(ask("r0", tenant="t", tokens=PER_MINUTE))
        for _ in range(3):
            spent = await probe.ledger.reserve(ask("r1", tenant="t", tokens=PER_MINUTE))
            assert isinstance(spent, RateSpent)
            assert spent.budget == "tokens_per_minute"
        await probe.start(ask("r1", tenant="t", tokens=0))

    async def test_a_full_queue_spends_nothing(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE, requests_per_minute=1)
        await probe.start(ask("x", blocks=100))
        for _ in range(3):
            full = await probe.ledger.reserve(ask("r", tenant="t", tokens=PER_MINUTE, depth=0))
            assert full is Refusal.QUEUE_FULL
        await probe.ledger.release("x")
        await probe.start(ask("r", tenant="t", tokens=PER_MINUTE))

    async def test_the_end_corrects_the_budget(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE)
        await probe.start(ask("r0", tenant="t", tokens=PER_MINUTE))
        await probe.ledger.release("r0", Served(1, PER_MINUTE // 2))
        await probe.start(ask("r1", tenant="t", tokens=PER_MINUTE // 2))
        await probe.ledger.release("r1", Served(1, PER_MINUTE // 2 + 200))
        spent = await probe.ledger.reserve(ask("r2", tenant="t", tokens=1))
        assert isinstance(spent, RateSpent)
        assert spent.retry_after_s <= 0.201

    async def test_who_leaves_the_queue_gets_the_tokens_back_but_not_the_request(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE, requests_per_minute=2)
        await probe.start(ask("x", blocks=100))
        await probe.wait(ask("r0", tenant="t", tokens=PER_MINUTE))
        await probe.ledger.cancel("r0")
        await probe.wait(ask("r1", tenant="t", tokens=PER_MINUTE))
        spent = await probe.ledger.reserve(ask("r2", tenant="t", tokens=0))
        assert isinstance(spent, RateSpent)
        assert spent.budget == "requests_per_minute"

    async def test_one_that_queues_again_is_not_charged_again(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE, requests_per_minute=1)
        grant = await probe.start(ask("r", tenant="t", tokens=PER_MINUTE))
        await probe.ledger.release("r")
        await probe.start(ask("r", tenant="t", tokens=PER_MINUTE, seq=grant.seq))

    async def test_more_than_the_whole_budget_passes_when_it_is_full_and_is_paid_after(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE)
        await probe.start(ask("r0", tenant="t", tokens=2 * PER_MINUTE))
        spent = await probe.ledger.reserve(ask("r1", tenant="t", tokens=1))
        assert isinstance(spent, RateSpent)
        assert spent.retry_after_s == pytest.approx(60, abs=1)

    # forced

    async def test_a_forced_one_that_may_start_is_as_any_other(self, probe):
        grant = await probe.start(ask("r", force=True))
        assert grant.forced is None
        assert probe.use().reserved == cost(10)

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            (ask("r", blocks=30, force=True), "queued"),
            (ask("r", blocks=30, force=True, depth=0), Refusal.QUEUE_FULL),
            (ask("r", blocks=101, force=True), Refusal.NEVER_FITS),
            (ask("r", blocks=30, force=True, tenant="bounded"), Refusal.NEVER_FITS),
            (ask("r", force=True, tenant="spent", tokens=1), Refusal.RATE),
        ],
        ids=["queued", "full", "too large", "above its limit", "budget"],
    )
    async def test_a_forced_one_starts_at_once_and_is_told_what_would_have_been(self, probe, asked, said):
        await probe.ledger.set_tenants(
            {"bounded": TenantRules(limit=0.2), "spent": TenantRules(tokens_per_minute=1)}
        )
        await probe.start(ask("all", tenant="spent", tokens=10, seqs=1, blocks=1))
        await probe.ledger.release("all")
        await probe.start(ask("x", blocks=90))
        grant = await probe.start(asked)
        assert (grant.forced, grant.engine_id) == (said, "a")
        assert probe.use().reservations == 2
        await probe.ledger.release("r")
        assert probe.use().reserved == cost(90)
        totals = probe.ledger.view().totals
        assert totals["arrivals"] == totals["grants"] == 3

    async def test_what_is_overdrawn_by_force_only_blocks_grants(self, probe):
        await probe.start(ask("x", blocks=90))
        await probe.start(ask("forced", blocks=60, force=True))
        assert probe.use().reserved == cost(150, 2)
        waits = await probe.wait(ask("r"))
        await probe.ledger.release("x")
        assert await probe.started(waits) == ["r"]

    async def test_a_forced_one_goes_where_least_is_used_and_avoids_while_it_can(self, probe):
        await probe.ledger.observe(engine("b"))
        await probe.start(ask("x", blocks=95, avoid=frozenset("b")))
        await probe.start(ask("y", blocks=98, avoid=frozenset("a")))
        assert (await probe.start(ask("f0", blocks=50, force=True))).engine_id == "a"
        assert (await probe.start(ask("f1", blocks=50, force=True, avoid=frozenset("b")))).engine_id == "a"
        await probe.ledger.observe(engine("a", accepting=False))
        assert (await probe.start(ask("f2", blocks=50, force=True, avoid=frozenset("b")))).engine_id == "b"

    async def test_without_an_engine_or_when_closed_force_is_refused(self, probe):
        assert await probe.ledger.reserve(ask("r", force=True, avoid=frozenset("a"))) is Refusal.NO_ENGINE
        huge = ask("r", blocks=101, force=True, avoid=frozenset("a"))
        assert await probe.ledger.reserve(huge) is Refusal.NO_ENGINE
        await probe.ledger.observe(engine(accepting=False))
        assert await probe.ledger.reserve(ask("r", force=True)) is Refusal.NO_ENGINE
        assert probe.ledger.view().queued == 0
        await probe.ledger.close(Refusal.DRAINING)
        assert await probe.ledger.reserve(ask("r", force=True)) is Refusal.DRAINING

    async def test_a_budget_is_not_charged_by_what_it_would_refuse(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE)
        await probe.start(ask("r0", tenant="t", tokens=PER_MINUTE))
        for number in range(3):
            grant = await probe.start(ask(f"f{number}", tenant="t", tokens=PER_MINUTE, force=True))
            assert grant.forced is Refusal.RATE
            await probe.ledger.release(f"f{number}", Served(1, 3 * PER_MINUTE))
        await probe.ledger.release("r0", Served(1, 0))
        await probe.start(ask("r1", tenant="t", tokens=PER_MINUTE))

    async def test_one_started_by_force_instead_of_waiting_is_charged_to_its_budget(self, probe):
        await self.limit_rates(probe, tokens_per_minute=PER_MINUTE)
        await probe.start(ask("x", blocks=100))
        grant = await probe.start(ask("f", tenant="t", tokens=PER_MINUTE // 2, force=True))
        assert grant.forced == "queued"
        await probe.ledger.release("f", Served(1, PER_MINUTE))
        assert isinstance(await probe.ledger.reserve(ask("r", tenant="t", tokens=100)), RateSpent)

    async def test_a_forced_one_takes_no_turn(self, probe):
        """What was started by force does not count against its tenant when it has to wait."""
        await probe.start(ask("x", blocks=100, tenant="z"))
        for number in range(5):
            await probe.start(ask(f"f{number}", tenant="a", work=1000, force=True))
            await probe.ledger.release(f"f{number}", Served(2000, 0))
        tickets = [await probe.wait(ask(name, blocks=100, tenant=name)) for name in "ba"]
        await probe.ledger.release("x")
        assert await probe.started(*tickets) == ["a"]

    # rules

    @pytest.mark.parametrize(
        "rules",
        [
            TenantRules(weight=0),
            TenantRules(guarantee=1.1),
            TenantRules(limit=-0.1),
            TenantRules(tokens_per_minute=0),
        ],
        ids=str,
    )
    async def test_impossible_rules_are_an_error_and_change_nothing(self, probe, rules):
        await probe.ledger.set_tenants({"t": TenantRules(weight=2)})
        with pytest.raises(ValueError, match="t"):
            await probe.ledger.set_tenants({"s": TenantRules(weight=3), "t": rules})
        await self.settle()
        assert [(use.name, use.rules.weight) for use in probe.ledger.view().tenants] == [("t", 2)]

    async def test_a_policy_that_changes_all_the_time_loses_nobody(self, probe):
        rng = random.Random(3)
        pool = Saturated(probe, *(Load(name, work=some_work(seed)) for seed, name in enumerate("abc")))
        await pool.fill()
        for _ in range(50):
            rules = {name: some_rules(rng) for name in "abcd" if rng.random() < 0.8}
            await probe.ledger.set_tenants(rules)
            await pool._collect()
            assert probe.ledger.view().queued == len(pool.waiting)
            assert probe.use().reservations == len(pool.running)
            assert probe.use().reserved.blocks <= 100
            if pool.running:
                await pool.steps(1)
        await probe.ledger.set_tenants({})
        await pool._collect()
        for load in pool.loads:
            await pool.stop(load)
        for grant in pool.running:
            await probe.ledger.release(grant.request_id)
        probe.assert_empty()
        totals = probe.ledger.view().totals
        assert totals["arrivals"] == totals["grants"] + totals["cancels"]

    # overrides

    async def test_an_override_holds_until_it_is_over(self, probe):
        await probe.ledger.put_override("a", "weight=6", 60)
        await probe.ledger.put_override("b", "weight=1", 0.15)
        held = await probe.ledger.overrides()
        assert {name: text for name, (text, _) in held.items()} == {"a": "weight=6", "b": "weight=1"}
        assert held["a"][1] == pytest.approx(60, abs=5)
        await self.pass_time(0.2)
        assert set(await probe.ledger.overrides()) == {"a"}
        await probe.ledger.put_override("a", "weight=7", 60)
        assert (await probe.ledger.overrides())["a"][0] == "weight=7"
        await probe.ledger.put_override("a", None, 0)
        assert await probe.ledger.overrides() == {}

    # view

    async def test_the_view_has_those_that_wait_or_hold_or_have_rules(self, probe):
        await probe.ledger.set_tenants({"z": TenantRules(guarantee=0.25), "y": TenantRules()})
        await probe.start(ask("h", blocks=90, tenant="holds", work=7))
        await probe.wait(ask("w", blocks=20, tenant="waits"))
        await asyncio.sleep(0)
        uses = {use.name: use for use in probe.ledger.view().tenants}
        assert set(list(uses)[:2]) == {"holds", "waits"}, "the busy ones first"
        assert list(uses)[2:] == ["y", "z"]
        holds = uses["holds"]
        assert (holds.blocks, holds.reservations, holds.queued, holds.service) == (90, 1, 0, 7)
        assert (uses["waits"].queued, uses["waits"].blocks) == (1, 0)
        assert (uses["z"].blocks_guaranteed, uses["z"].blocks_limit) == (25, 100)


def some_rules(rng: random.Random) -> TenantRules:
    guarantee = rng.choice([0.0, 0.0, 0.2, 0.3])
    values: dict[str, Any] = {
        "weight": rng.choice([0.5, 1, 4]),
        "guarantee": guarantee,
        "limit": rng.choice([1.0, 1.0, 0.5, 0.3]),
        "borrow": rng.random() < 0.8 or not guarantee,
    }
    return TenantRules(**values)
