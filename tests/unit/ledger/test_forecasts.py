"""Forecast reservations in the ledger in memory: what fits, beside what, and that nothing is left of them."""

from __future__ import annotations

import random

import pytest

from kvgate.ledger.base import Ask, Grant
from kvgate.ledger.core import LedgerCore
from kvgate_policies.forecast_fit import Z_DEFAULT, load, z_of
from kvgate_policies.occupancy import GRID, SCALE, Occupancy
from kvgate_policies.types import ZERO_COST, EngineLimits, KVCost, TenantRules
from unit.ledger.conformance_forecasts import soft
from unit.ledger.pool import SHAPE, engine, some_occupancy


def core_with(*engines: EngineLimits) -> LedgerCore:
    core = LedgerCore(bypass_max=8, scan_depth=4, grants_max=64, tie=0)
    for each in engines or (engine(seqs=1000),):
        core.observe(each)
    return core


def reserve(core: LedgerCore, request_id: str, cost: KVCost, tenant: str = "t", **more: object) -> bool:
    """Whether it started at once."""
    answer = core.reserve(Ask(request_id, tenant, {SHAPE: cost}, 100, **more), 0.0)  # type: ignore[arg-type]
    assert isinstance(answer, int), answer
    return any(isinstance(decision, Grant) for _, decision in core.take_decisions())


def test_the_sum_is_asked_at_every_point_and_not_the_peaks():
    core = core_with()
    # Two that are large now and gone soon, beside one that is small now and large when they are gone.
    assert reserve(core, "a", soft(100, 40, 45))
    assert reserve(core, "b", soft(100, 40, 45))
    assert reserve(core, "c", soft(95, 10, 10, 95, 95, 95))
    assert not reserve(core, "d", soft(10, 1, 1, 6))
    assert reserve(core, "e", soft(10, 1, 0, 0))


def test_what_may_be_left_to_chance_is_the_newcomers_own_risk():
    half = Occupancy((SCALE * 30,) * len(GRID), (SCALE * 250,) * len(GRID))  # 30 ± 15.8 blocks
    careful, bold = core_with(), core_with()
    for core in (careful, bold):
        assert reserve(core, "a", KVCost(60, 1, 0, half))
    # 60 ± 22.4: the near points ask for three deviations by default, and for 1.6 where half is left to chance.
    assert not reserve(careful, "b", KVCost(60, 1, 0, half))
    assert reserve(bold, "b", KVCost(60, 1, 0, half), z=z_of(0.5))


def test_a_guaranteed_one_beside_forecasts_asks_for_its_peak_at_every_point():
    core = core_with()
    assert reserve(core, "soft", soft(90, 50, 60))
    assert not reserve(core, "hard", KVCost(41, 1, 0))
    assert reserve(core, "small", KVCost(40, 1, 0))
    core.end("soft")
    assert [request_id for request_id, _ in core.take_decisions()] == ["hard"]
    use = core.view(0.0).engines[0]
    assert use.reserved == KVCost(81, 2, 0), "only guaranteed ones are left, so the sum is of peaks"


def test_an_empty_engine_takes_what_it_covers_however_wide_the_forecast():
    core = core_with()
    wild = KVCost(100, 1, 0, Occupancy((SCALE * 90,) * len(GRID), (SCALE * 10_000,) * len(GRID)))
    assert reserve(core, "wild", wild)
    assert not reserve(core, "next", KVCost(1, 1, 0))


def test_growth_is_never_refused_and_blocks_grants_until_it_is_down_again():
    core = core_with()
    assert reserve(core, "a", soft(100, 50, 50))
    core.renew_many({"a": soft(120, 120, 120), "nobody": soft(1, 1)})
    assert not reserve(core, "b", soft(10, 1))
    core.renew_many({"a": soft(100, 99, 0)})
    assert [request_id for request_id, _ in core.take_decisions()] == ["b"]


def test_what_may_be_filled_is_less_where_the_engine_is_not_trusted():
    core = core_with(EngineLimits("a", SHAPE, 100, 16, 1000, blocks_usable=50))
    assert reserve(core, "a", soft(100, 30, 30))
    assert not reserve(core, "b", soft(100, 30, 30))
    core.observe(EngineLimits("a", SHAPE, 100, 16, 1000, blocks_usable=60))
    assert [request_id for request_id, _ in core.take_decisions()] == ["b"]
    core = core_with(EngineLimits("a", SHAPE, 100, 16, 1000, blocks_usable=50))
    assert reserve(core, "whole", KVCost(100, 1, 0)), "an empty engine takes what the whole of it covers"
    assert not reserve(core, "b", KVCost(1, 1, 0))


def test_a_tenant_uses_the_largest_mean_of_each_of_its_requests():
    core = core_with()
    core.set_tenants({"t": TenantRules(limit=0.5)})
    assert reserve(core, "a", soft(100, 10, 20, 30))
    assert reserve(core, "b", KVCost(20, 1, 0))
    assert core.view(0.0).tenants[0].blocks == 50
    assert not reserve(core, "c", soft(100, 1)), "at its limit"
    core.renew_many({"a": soft(100, 10, 20)})
    assert [request_id for request_id, _ in core.take_decisions()] == ["c"]
    assert core.view(0.0).tenants[0].blocks == 41


def test_a_preferred_engine_is_taken_while_it_is_not_much_fuller():
    core = core_with(engine("a"), engine("b"))
    assert reserve(core, "1", KVCost(24, 1, 0), prefer=("b",))
    assert reserve(core, "2", KVCost(5, 1, 0), prefer=("b", "a"))
    assert core.view(0.0).engines[1].reserved.blocks == 29
    assert reserve(core, "3", KVCost(5, 1, 0), prefer=("b",))
    assert core.view(0.0).engines[0].reserved.blocks == 5, "b would be 28 % fuller than a: that is too much"


@pytest.mark.parametrize("seed", range(20))
def test_the_inequality_holds_at_every_grant_and_sums_come_back_to_nothing(seed: int):
    rng = random.Random(seed)
    core = core_with(engine("a", blocks=100, seqs=50), engine("b", blocks=60, seqs=50))
    held: dict[str, KVCost] = {}
    asked: dict[str, KVCost] = {}
    beside = 0
    for number in range(300):
        if held and rng.random() < 0.45:
            gone = rng.choice(sorted(held))
            del held[gone]
            core.end(gone)
        else:
            blocks = rng.randint(1, 60)
            expected = some_occupancy(rng, blocks) if rng.random() < 0.7 else None
            asked[f"r{number}"] = KVCost(blocks, 1, 0, expected)
            core.reserve(Ask(f"r{number}", "t", {SHAPE: asked[f"r{number}"]}, 1000), 0.0)
        for request_id, decision in core.take_decisions():
            assert isinstance(decision, Grant)
            held[request_id] = asked[request_id]
        for use in core.view(0.0).engines:
            if use.reservations > 1:
                beside += 1
                assert load(use.reserved.occupancy, use.limits.blocks, (0.0,) * len(GRID)) <= 1.0
            if use.reservations > 1 and use.reserved.expected is None:
                assert use.reserved.blocks <= use.limits.blocks
    assert beside > 50
    while held or asked:
        for request_id in list(asked):
            core.end(request_id)
            asked.pop(request_id)
        held.clear()
        core.take_decisions()
    assert all(use.reserved == ZERO_COST and not use.reservations for use in core.view(0.0).engines)


def test_default_risk_is_what_an_ask_has():
    assert Ask("r", "t", {}, 1).z == Z_DEFAULT
