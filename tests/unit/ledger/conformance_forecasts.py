"""What every ledger promises of forecast reservations, sentence by sentence of its contract.

A ledger joins as it joins `conformance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvgate.ledger.base import Ask, Grant, Refusal
from kvgate_policies.forecast_fit import z_of
from kvgate_policies.occupancy import GRID, SCALE, Occupancy
from kvgate_policies.types import KVCost, TenantRules
from unit.ledger.pool import OTHER_SHAPE, SHAPE, Probe, ask, cost, engine, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from kvgate.ledger.base import Ledger

POINTS = len(GRID)


def soft(peak: int, *blocks: float, deviation: float = 0, seqs: int = 1, prefill_tokens: int = 0) -> KVCost:
    """Expected to hold so many blocks from the first point of the grid on, and nothing after those that are given."""
    means = [round(SCALE * held) for held in blocks] + [0] * (POINTS - len(blocks))
    variance = round(SCALE * deviation**2)
    return KVCost(peak, seqs, prefill_tokens, Occupancy(tuple(means), (variance,) * POINTS))


def flat(peak: int, blocks: float, deviation: float = 0) -> KVCost:
    """Expected to hold the same at every point."""
    return soft(peak, *[blocks] * POINTS, deviation=deviation)


def want(request_id: str, price: KVCost, depth: int = 100, tenant: str = "tenant", **more: Any) -> Ask:
    return Ask(request_id, tenant, {SHAPE: price}, depth, **more)


class ForecastConformance:
    def open(self, **bounds: int) -> AbstractAsyncContextManager[Ledger]:
        raise NotImplementedError

    async def settle(self) -> None:
        """Return when every decision made so far has reached its waiter."""
        await turns()

    @pytest.fixture
    async def probe(self) -> AsyncIterator[Probe]:
        """A ledger with one engine `a` of 100 blocks."""
        async with self.open() as ledger:
            await ledger.observe(engine())
            yield Probe(ledger, self.settle)

    async def test_a_grant_has_its_forecast_and_the_engine_its_sum(self, probe):
        grants = [
            await probe.start(want(name, soft(90, 10, 20, 30, deviation=3, prefill_tokens=7)))
            for name in ("r1", "r2")
        ]
        assert [grant.cost for grant in grants] == [soft(90, 10, 20, 30, deviation=3, prefill_tokens=7)] * 2
        assert probe.use().reserved == grants[0].cost + grants[1].cost
        assert probe.use().reserved.expected == grants[0].cost.occupancy + grants[1].cost.occupancy

    async def test_gauges_are_answered_by_what_is_reserved_then(self, probe):
        assert await probe.ledger.settle("a", 0) == KVCost(0, 0, 0)
        grant = await probe.start(want("r1", soft(90, 10, 20, deviation=3, prefill_tokens=7)))
        assert await probe.ledger.settle("a", 10, 1) == grant.cost, "not by an older view"
        second = await probe.start(ask("r2", blocks=5))
        assert await probe.ledger.settle("a", 15, 2) == grant.cost + second.cost
        await probe.ledger.release("r1")
        assert await probe.ledger.settle("a", 5, 1) == second.cost
        assert await probe.ledger.settle("b", 5, 1) is None

    async def test_what_is_expected_is_asked_for_and_not_the_peak(self, probe):
        await probe.start(want("r1", flat(100, 50)))
        await probe.start(want("r2", flat(100, 50)))
        await probe.wait(want("r3", flat(100, 0.1)))

    async def test_the_sum_is_asked_at_every_point_of_the_grid(self, probe):
        await probe.start(want("soon gone", soft(100, 90, 90, 0)))
        await probe.start(want("grows", soft(100, 10, 10, 95)))
        await probe.wait(want("r1", soft(100, 0, 0, 6)))
        await probe.start(want("r2", soft(100, 0, 0, 5)))

    async def test_deviations_are_left_free_as_many_as_the_newcomer_says(self, probe):
        await probe.start(want("x", flat(60, 30, 15)))
        await probe.wait(want("careful", flat(60, 30, 15), z=z_of(0.01)))
        await probe.start(want("bold", flat(60, 30, 15), z=z_of(0.5)))

    async def test_each_asks_at_its_own_risk_also_behind_one_that_did_not_fit(self, probe):
        await probe.start(want("x", flat(60, 30, 5)))
        first = await probe.wait(want("careful", flat(60, 50, 5), z=z_of(0.0001)))
        bold = await probe.queue(want("bold", flat(60, 50, 5), z=z_of(0.5)))
        assert await probe.started(first, bold) == ["bold"]

    async def test_a_guaranteed_one_beside_a_forecast_asks_for_its_peak_at_every_point(self, probe):
        await probe.start(want("soft", soft(90, 30, 60)))
        await probe.wait(ask("hard", blocks=41))
        await probe.start(ask("small", blocks=40))
        await probe.wait(want("more", soft(90, 0, 1)))
        await probe.start(want("later", soft(90, 0, 0, 60)))

    async def test_where_all_peaks_fit_nothing_is_left_free_for_chance(self, probe):
        await probe.start(want("soft", flat(60, 40, 30)))
        await probe.start(want("peaks fit", flat(40, 30, 30), z=z_of(0.0001)))
        await probe.wait(want("more", flat(1, 1), z=z_of(0.01)))

    async def test_who_waits_starts_when_its_peak_fits_beside_the_others(self, probe):
        await probe.start(want("x", flat(70, 40, 30)))
        await probe.start(ask("hard", blocks=20))
        behind = await probe.wait(want("large", flat(60, 30, 30)))
        small = await probe.queue(want("small", flat(30, 30)))
        await probe.ledger.release("hard")
        assert await probe.started(behind, small) == ["small"]

    async def test_with_deviations_beside_it_a_guaranteed_one_leaves_its_own_risk(self, probe):
        await probe.start(want("soft", flat(61, 40, 10)))
        await probe.wait(ask("r1", blocks=40, z=z_of(0.01)))
        await probe.start(ask("r2", blocks=40, z=z_of(0.5)))

    async def test_guaranteed_ones_that_are_left_are_summed_up_by_their_peaks(self, probe):
        await probe.start(want("soft", soft(90, 30, 60)))
        await probe.start(ask("hard", blocks=40))
        await probe.ledger.release("soft")
        await self.settle()
        assert probe.use().reserved == cost(40)

    async def test_a_forecast_of_the_peak_is_as_good_as_guaranteed(self, probe):
        grant = await probe.start(want("r1", flat(60, 60)))
        assert grant.cost == flat(60, 60)
        assert probe.use().reserved == cost(60)
        await probe.wait(ask("r2", blocks=41))
        await probe.start(want("r3", flat(40, 40)))

    async def test_slots_and_prompts_are_bounded_as_ever(self, probe):
        await probe.start(want("x", soft(90, 1, seqs=10, prefill_tokens=900)))
        await probe.wait(want("slots", soft(90, 1, seqs=7)))
        await probe.wait(want("prompt", soft(90, 1, prefill_tokens=101)))
        await probe.start(want("fits", soft(90, 1, seqs=6, prefill_tokens=100)))

    # empty engines, and what never fits

    async def test_an_empty_engine_takes_what_it_covers_however_wide_the_forecast(self, probe):
        await probe.start(want("wild", flat(100, 90, 1000)))
        await probe.wait(ask("next", blocks=1))

    async def test_a_peak_above_the_whole_of_every_engine_never_fits(self, probe):
        assert await probe.ledger.reserve(want("r", flat(101, 1))) is Refusal.NEVER_FITS

    async def test_a_peak_above_one_engine_goes_to_another_that_covers_it(self, probe):
        await probe.ledger.observe(engine("b", blocks=200))
        await probe.start(ask("x", blocks=100, avoid=frozenset("a")))
        grant = await probe.start(want("r", flat(150, 10)))
        assert grant.engine_id == "b"

    # costs that change

    async def test_growth_is_never_refused_and_blocks_grants_until_it_is_down_again(self, probe):
        await probe.start(want("r1", flat(100, 40)))
        await probe.start(want("r2", flat(100, 40)))
        await probe.ledger.renew_many({"r1": flat(120, 80), "r2": flat(120, 80)})
        await self.settle()
        assert probe.use().reserved == flat(240, 160) + KVCost(0, 1, 0)
        waits = await probe.wait(want("r3", flat(100, 10)))
        await probe.ledger.renew_many({"r1": flat(100, 45)})
        assert await probe.started(waits) == []
        await probe.ledger.renew_many({"r2": flat(100, 45)})
        assert await probe.started(waits) == ["r3"]

    async def test_what_falls_at_one_point_lets_those_start_who_lack_it_there(self, probe):
        await probe.start(want("r1", soft(100, 10, 20, 100)))
        waits = await probe.wait(want("r2", soft(100, 0, 0, 30)))
        await probe.ledger.renew_many({"r1": soft(100, 60, 100, 70)})
        assert await probe.started(waits) == ["r2"]

    async def test_deviations_that_fall_are_room_too(self, probe):
        await probe.start(want("r1", flat(100, 50, 20)))
        waits = await probe.wait(want("r2", flat(100, 40)))
        await probe.ledger.renew_many({"r1": flat(100, 50)})
        assert await probe.started(waits) == ["r2"]

    async def test_renewing_many_leaves_out_those_that_hold_nothing(self, probe):
        await probe.start(want("r1", flat(100, 90)))
        await probe.wait(want("r2", flat(100, 50)))
        await probe.ledger.renew_many({"r1": flat(100, 80), "r2": flat(100, 1), "never": flat(1, 1)})
        await self.settle()
        assert (probe.use().reserved, probe.use().reservations) == (flat(100, 80), 1)
        assert probe.ledger.view().queued == 1

    async def test_a_negative_cost_is_an_error_and_changes_nothing(self, probe):
        await probe.start(want("r1", flat(100, 90)))
        with pytest.raises(ValueError, match="negative"):
            await probe.ledger.renew_many({"r1": flat(100, -1)})
        with pytest.raises(ValueError, match="negative"):
            await probe.ledger.reserve(want("r2", flat(100, -1)))
        await self.settle()
        assert probe.use().reserved == flat(100, 90)

    async def test_a_reservation_may_become_guaranteed_and_a_forecast(self, probe):
        await probe.start(want("r1", flat(80, 30)))
        await probe.ledger.renew("r1", cost(80))
        await self.settle()
        assert probe.use().reserved == cost(80)
        waits = await probe.wait(ask("r2", blocks=60))
        await probe.ledger.renew("r1", flat(80, 40))
        assert await probe.started(waits) == ["r2"]

    async def test_one_that_waits_may_be_repriced_to_a_forecast(self, probe):
        await probe.start(ask("x", blocks=60))
        waits = await probe.wait(ask("r", blocks=50))
        await probe.ledger.reprice("r", {SHAPE: flat(50, 40)})
        assert await probe.started(waits) == ["r"]

    # usable capacity

    async def test_reservations_fill_no_more_than_what_is_open(self, probe):
        await probe.ledger.observe(engine(blocks_usable=50))
        await probe.start(ask("x", blocks=30))
        hard = await probe.wait(ask("hard", blocks=30))
        light = await probe.wait(want("light", flat(100, 21)))
        await probe.start(want("small", flat(100, 20)))
        await probe.ledger.release("small")
        assert await probe.started(hard, light) == []
        await probe.ledger.observe(engine(blocks_usable=60))
        assert await probe.started(hard, light) == ["hard"]
        await probe.ledger.observe(engine())
        assert await probe.started(light) == ["light"]
        assert probe.use().limits == engine()

    async def test_less_is_open_and_what_runs_goes_on(self, probe):
        await probe.start(ask("x", blocks=60))
        await probe.ledger.observe(engine(blocks_usable=10))
        await self.settle()
        assert (probe.use().limits.blocks_usable, probe.use().reserved) == (10, cost(60))
        waits = await probe.wait(ask("r", blocks=90))
        await probe.ledger.release("x")
        assert await probe.started(waits) == ["r"], "an empty engine takes what the whole of it covers"

    async def test_more_usable_than_there_is_opens_no_more(self, probe):
        await probe.ledger.observe(engine(blocks_usable=200))
        await probe.start(ask("x", blocks=60))
        await probe.wait(ask("r", blocks=41))

    async def test_nothing_is_refused_because_less_is_open(self, probe):
        await probe.ledger.observe(engine(blocks_usable=0))
        await probe.start(ask("x"))
        waits = await probe.wait(ask("r", blocks=90))
        await probe.ledger.observe(engine(blocks_usable=100))
        assert await probe.started(waits) == ["r"]

    # which engine

    async def test_the_least_loaded_by_what_is_expected_is_taken(self, probe):
        await probe.start(want("soft", flat(100, 20)))
        await probe.ledger.observe(engine("b"))
        await probe.start(ask("hard", blocks=40, avoid=frozenset("a")))
        grant = await probe.start(want("r", flat(100, 10)))
        assert grant.engine_id == "a", "20 of 100 are expected, though 100 may come"

    async def test_one_that_fits_a_preferred_engine_goes_there(self, probe):
        await probe.ledger.observe(engine("b"))
        await probe.start(ask("x", blocks=20, avoid=frozenset("a")))
        chosen = [
            (await probe.start(ask(f"r{number}", blocks=1, prefer=prefer))).engine_id
            for number, prefer in enumerate([("b",), ("gone", "b", "a"), ("a", "b"), ()])
        ]
        assert chosen == ["b", "b", "a", "a"]

    async def test_a_preferred_engine_that_is_much_fuller_is_not_taken(self, probe):
        await probe.ledger.observe(engine("b"))
        await probe.start(ask("x", blocks=24, avoid=frozenset("a")))
        assert (await probe.start(ask("r1", blocks=1, prefer=("b",)))).engine_id == "b"
        await probe.start(ask("y", blocks=10, avoid=frozenset("a")))
        assert (await probe.start(ask("r2", blocks=1, prefer=("b",)))).engine_id == "a"

    @pytest.mark.parametrize("why", ["full", "avoided", "not accepting"])
    async def test_a_preferred_engine_that_cannot_take_it_holds_nobody_up(self, probe, why):
        await probe.ledger.observe(engine("b", accepting=why != "not accepting"))
        if why == "full":
            await probe.start(ask("x", blocks=20, seqs=16, avoid=frozenset("a")))
        avoid = frozenset("b" if why == "avoided" else "")
        assert (await probe.start(ask("r", blocks=1, prefer=("b",), avoid=avoid))).engine_id == "a"

    async def test_the_forecast_of_the_engines_shape_counts(self, probe):
        await probe.ledger.observe(engine("b", shape=OTHER_SHAPE))
        await probe.start(ask("x", blocks=95))
        costs = {SHAPE: flat(100, 10), OTHER_SHAPE: flat(60, 5, 2)}
        ticket = await probe.queue(Ask("r", "t", costs, 10))
        decision = await probe.decision(ticket)
        assert isinstance(decision, Grant)
        assert (decision.engine_id, decision.cost) == ("b", flat(60, 5, 2))

    async def test_a_forced_one_starts_where_least_is_expected(self, probe):
        await probe.ledger.observe(engine("b"))
        await probe.start(want("x", flat(100, 95, 1)))
        await probe.start(ask("y", blocks=99, avoid=frozenset("a")))
        grant = await probe.start(want("r", flat(100, 50), force=True))
        assert (grant.engine_id, grant.forced) == ("a", "queued")

    async def test_one_that_was_passed_pins_the_engine_where_least_is_missing(self):
        async with self.open(bypass_max=0) as ledger:
            probe = Probe(ledger, self.settle)
            for name in ("a", "b"):
                await ledger.observe(engine(name))
            await probe.start(want("x", flat(100, 95), avoid=frozenset("b")))
            await probe.start(want("y", flat(30, 90), avoid=frozenset("a")))
            await probe.wait(want("r", flat(100, 50)))
            await self.settle()
            assert probe.use("b").pinned_by == "r"

    # tenants

    async def test_a_tenant_uses_the_largest_mean_of_each_of_its_requests(self, probe):
        await probe.start(want("r1", soft(100, 10, 20, 5)))
        await probe.start(want("r2", soft(100, 1, 2, 29.5)))
        await probe.start(ask("r3", blocks=7))
        await self.settle()
        use = probe.tenant("tenant")
        assert (use.blocks, use.reservations) == (20 + 30 + 7, 3)
        await probe.ledger.renew_many({"r1": soft(100, 1), "r3": soft(10, 3)})
        await self.settle()
        assert probe.tenant("tenant").blocks == 1 + 30 + 3
        for name in ("r1", "r2", "r3"):
            await probe.ledger.release(name)
        await self.settle()
        assert all(use.blocks == 0 for use in probe.ledger.view().tenants)

    async def test_a_limit_is_one_of_what_is_expected(self, probe):
        await probe.ledger.set_tenants({"t": TenantRules(limit=0.5)})
        assert await probe.ledger.reserve(want("never", flat(100, 51), tenant="t")) is Refusal.NEVER_FITS
        await probe.start(want("r1", flat(100, 30), tenant="t"))
        waits = await probe.wait(want("r2", flat(100, 21), tenant="t"))
        await probe.start(want("other", flat(100, 40), tenant="u"))
        await probe.ledger.renew_many({"r1": flat(100, 29)})
        assert await probe.started(waits) == ["r2"]

    async def test_a_guarantee_is_one_of_what_is_expected(self, probe):
        await probe.ledger.set_tenants({"t": TenantRules(guarantee=0.5)})
        await probe.start(want("x", flat(100, 90), tenant="u"))
        theirs = await probe.wait(want("u1", flat(100, 50), tenant="u"))
        ours = await probe.wait(want("t1", flat(100, 50), tenant="t"))
        await probe.ledger.renew_many({"x": flat(100, 40)})
        assert await probe.started(theirs, ours) == ["t1"]

    async def test_what_is_lent_to_nobody_is_kept_by_what_is_expected(self, probe):
        await probe.ledger.set_tenants({"t": TenantRules(guarantee=0.4, borrow=False)})
        await probe.start(want("t1", flat(100, 30), tenant="t"))
        await probe.start(want("u1", flat(100, 50), tenant="u"))
        waits = await probe.wait(want("v1", flat(100, 11), tenant="v"))
        await probe.start(want("w1", flat(100, 10), tenant="w"))
        await probe.ledger.release("w1")
        assert await probe.started(waits) == []
        await probe.ledger.renew_many({"u1": flat(100, 49)})
        assert await probe.started(waits) == ["v1"]

    # the end

    @pytest.mark.parametrize("how", ["release", "cancel"])
    async def test_sums_come_back_to_nothing(self, probe, how):
        names = [f"r{number}" for number in range(7)]
        for number, name in enumerate(names):
            await probe.start(want(name, soft(100, number, 3, 0.7 * number, deviation=number / 10)))
        await probe.ledger.renew_many({name: soft(90, 0.1, 2, 5, deviation=0.3) for name in names[::2]})
        for name in names:
            await getattr(probe.ledger, how)(name)
        await self.settle()
        probe.assert_empty()

    @pytest.mark.parametrize("how", ["void", "forget"])
    async def test_what_an_engine_lost_is_gone(self, probe, how):
        await probe.start(want("r1", flat(100, 33.3, 7)))
        await getattr(probe.ledger, how)("a")
        await probe.ledger.observe(engine())
        await self.settle()
        assert (probe.use().reserved, probe.use().reservations) == (cost(0, 0), 0)
        assert all(use.blocks == 0 for use in probe.ledger.view().tenants)
        await probe.ledger.renew_many({"r1": flat(100, 10)})
        await probe.ledger.release("r1")
        await self.settle()
        probe.assert_empty()
