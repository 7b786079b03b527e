"""Tenants while a process decides alone: the same rules, and its part of every share and budget."""

from __future__ import annotations

import pytest

from kvgate.ledger.base import Grant, RateSpent, Refusal
from kvgate.ledger.fallback import Fallback, OnFailure
from kvgate_policies.types import TenantRules
from unit.ledger.pool import SHAPE, ask, cost, engine


def alone(
    rules: TenantRules, live: int = 2, mode: OnFailure = OnFailure.LOCAL, blocks: int = 1000
) -> Fallback:
    """An engine with room for the whole share, and tenant `t` with these rules."""
    made = Fallback(
        mode,
        live,
        [engine(blocks=blocks, seqs=1000, prefill_tokens=1_000_000)],
        floors={"a": cost(blocks, 1000)},
        leased_until_s=1e9,
        orphan_hold_s=60.0,
        bypass_max=8,
        scan_depth=4,
        grants_max=100,
    )
    made.set_tenants({"t": rules})
    return made


def granted(made: Fallback, request_id: str, blocks: int = 10, tenant: str = "t", tokens: int = 0) -> bool:
    answer = made.reserve(ask(request_id, blocks=blocks, tenant=tenant, tokens=tokens), None, 0.0)
    assert answer is None, answer
    return any(isinstance(decision, Grant) for _, decision in made.take_decisions())


def blocks_of(made: Fallback, tenant: str) -> int:
    return sum(use.blocks for use in made.view(0.0).tenants if use.name == tenant)


@pytest.mark.parametrize("live", [1, 2, 3, 5])
def test_all_processes_together_stay_within_nine_tenths_of_a_limit(live):
    together = 0
    for _ in range(live):
        made = alone(TenantRules(limit=0.5), live)
        for number in range(100):
            granted(made, f"r{number}")
        together += blocks_of(made, "t")
    assert 450 - 10 * live <= together <= 450


def test_an_absolute_limit_is_divided_too():
    made = alone(TenantRules(limit_tokens=16 * 400))
    for number in range(100):
        granted(made, f"r{number}")
    assert blocks_of(made, "t") == 180


def test_others_go_on_beside_one_at_its_limit():
    made = alone(TenantRules(limit=0.1))
    assert [granted(made, f"r{number}") for number in range(6)] == [True] * 4 + [False] * 2
    assert granted(made, "other", blocks=300, tenant="other")


def test_above_its_part_of_a_limit_one_waits_for_redis():
    made = alone(TenantRules(limit=0.5))
    assert not granted(made, "large", blocks=400)
    assert granted(made, "small", blocks=200)
    assert made.reserve(ask("huge", blocks=1001, tenant="t"), None, 0.0) is Refusal.NEVER_FITS
    made.end("large", 0.0)


def test_a_budget_is_divided_among_the_processes():
    made = alone(TenantRules(tokens_per_minute=6000), live=2)
    assert granted(made, "r1", tokens=3000)
    spent = made.reserve(ask("r2", tenant="t", tokens=50), None, 0.0)
    assert spent == RateSpent(1.0, "tokens_per_minute")
    assert made.reserve(ask("r2", tenant="t", tokens=50), None, 1.0) is None


def test_who_has_a_place_is_asked_for_no_budget():
    made = alone(TenantRules(requests_per_minute=1), live=1)
    assert granted(made, "r1")
    assert made.reserve(ask("r2", tenant="t"), (7, 0), 0.0) is None


def test_who_lets_everything_pass_asks_neither_limit_nor_budget():
    made = alone(TenantRules(limit=0.1, tokens_per_minute=1, limit_tokens=16), mode=OnFailure.OPEN, live=3)
    assert all(granted(made, f"r{number}", blocks=100, tokens=100) for number in range(30))


def test_a_guarantee_holds_in_its_part():
    made = alone(TenantRules(guarantee=0.5), live=1)
    assert granted(made, "x", blocks=900, tenant="other")
    for number in range(3):
        assert not granted(made, f"other{number}", blocks=100, tenant="other")
        assert not granted(made, f"r{number}", blocks=100)
    made.end("x", 0.0)
    names = [name for name, decision in made.take_decisions() if isinstance(decision, Grant)]
    assert names[:3] == ["r0", "r1", "r2"]


def test_a_hard_partition_is_kept():
    """Of what this process may use: 450 blocks, of which 225 are for nobody else."""
    made = alone(TenantRules(guarantee=0.5, borrow=False))
    others = sum(granted(made, f"other{number}", tenant="other") for number in range(60))
    mine = sum(granted(made, f"r{number}") for number in range(60))
    assert (others, mine) == (22, 22)


def test_a_hard_partition_of_all_is_kept_from_those_that_have_none():
    made = alone(TenantRules(guarantee=1.0, borrow=False))
    assert not granted(made, "other", tenant="other")
    assert granted(made, "r")


def test_what_is_held_already_counts_for_its_tenant():
    made = alone(TenantRules(limit=0.1), live=1)
    made.adopt(Grant("x", "a", SHAPE, cost(85), 0, "t"))
    assert not granted(made, "r")
    made.end("x", 0.0)
    assert [name for name, _ in made.take_decisions()] == ["r"]


@pytest.mark.parametrize("mode", list(OnFailure))
@pytest.mark.parametrize("live", [0, 1, 3])
def test_no_bound_that_is_shown_is_above_the_pool(mode: OnFailure, live: int):
    """The core has each engine as a share and as a whole, or as many times what it is: nobody else does."""
    made = alone(TenantRules(guarantee=0.3), live, mode, blocks=300)
    made.reserve(ask("r", blocks=1, tenant="other"), None, 0.0)
    view = made.view(0.0)
    assert sum(use.limits.blocks for use in view.engines) == 300
    shown = {use.name: (use.blocks_guaranteed, use.blocks_limit) for use in view.tenants}
    assert {limit for _, limit in shown.values()} == {300}
    assert shown["t"][0] <= 90


def test_the_share_of_a_process_is_shown():
    [use] = alone(TenantRules(), 3, blocks=300).view(0.0).engines
    assert (use.share, use.limits.blocks) == (cost(90, 300, 300_000), 300)
    [use] = alone(TenantRules(), 3, OnFailure.CLOSED).view(0.0).engines
    assert use.share == cost(0, 0)
    [use] = alone(TenantRules(), 3, OnFailure.OPEN).view(0.0).engines
    assert use.share is None
