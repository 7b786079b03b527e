"""While the shared ledger is away a request that needs more than its process's share is told so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvgate.admission.contract import Ended, Reason
from kvgate.admission.cut_off import CutOff, cut_off
from kvgate.admission.pricing import Priced
from kvgate.ledger.fallback import Fallback, OnFailure
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.forecast_fit import Z_DEFAULT
from kvgate_policies.tenancy import OutputBudget
from kvgate_policies.types import (
    EngineLimits,
    KVCost,
    LedgerView,
    Outcome,
    TenantPolicy,
    TenantRules,
    TokenCount,
)
from support.virtual_loop import run_virtual
from unit.admission.test_line import SHAPE, House
from unit.ledger.conformance_forecasts import flat
from unit.ledger.pool import ask, cost, engine

PROCESSES = 3


def view(mode: OnFailure = OnFailure.LOCAL, rules: TenantRules | None = None) -> LedgerView:
    """Of one of three processes, on an engine of 300 blocks: its share is 90 of them."""
    bounds = {"bypass_max": 8, "scan_depth": 4, "grants_max": 16}
    alone = Fallback(
        mode, PROCESSES, [engine(blocks=300)], floors={}, leased_until_s=5.0, orphan_hold_s=60.0, **bounds
    )
    alone.set_tenants({} if rules is None else {"t": rules})
    alone.reserve(ask("r", blocks=1, tenant="t"), None, 0.0)
    return alone.view(0.0)


def priced(price: KVCost) -> Priced:
    return Priced({SHAPE: price}, TokenCount((96,), exact=True), OutputBudget(100, None))


@pytest.mark.parametrize(
    ("price", "needs", "for_ledger"),
    [
        (cost(91), 91, True),
        (cost(90), 90, False),
        (cost(10, seqs=5), 10, True),  # 4 of 16 slots
        (cost(10, seqs=4), 10, False),
        (flat(300, 80), 80, False),
        (flat(300, 80, deviation=10), None, True),
    ],
)
def test_it_is_for_the_ledger_alone_when_it_needs_more_than_the_share(
    price: KVCost, needs: int | None, for_ledger: bool
):
    found = cut_off(priced(price), "t", view(), Z_DEFAULT)
    assert found is not None
    assert (found.most.blocks, found.blocks, found.most.seqs, found.seqs) == (90, 300, 4, 16)
    assert found.for_ledger is for_ledger
    assert needs is None or found.needs_blocks == needs


@pytest.mark.parametrize("price", [cost(30), cost(90), cost(91), flat(300, 80), flat(300, 80, 10)])
def test_it_says_what_the_fallback_does(price: KVCost):
    """With gauges that show an idle engine, what is not for the ledger starts, and what is waits."""
    bounds = {"bypass_max": 8, "scan_depth": 4, "grants_max": 16}
    alone = Fallback(
        OnFailure.LOCAL,
        PROCESSES,
        [engine(blocks=300)],
        floors={},
        leased_until_s=5.0,
        orphan_hold_s=60.0,
        **bounds,
    )
    alone.gauge("a", 0, 0, 0.0)
    asked = replace(ask("r", tenant="t"), costs={SHAPE: price})
    assert alone.reserve(asked, None, 0.0) is None
    found = cut_off(priced(price), "t", alone.view(0.0), Z_DEFAULT)
    assert found is not None
    assert found.for_ledger is not bool(alone.take_decisions())


def test_a_limit_is_divided_too():
    found = cut_off(priced(cost(70)), "t", view(rules=TenantRules(limit=0.5)), Z_DEFAULT)
    assert found == CutOff(70, 1, KVCost(45, 4, 300), 300, 16, by_limit=True)
    assert found is not None
    assert found.for_ledger
    assert cut_off(priced(cost(45)), "t", view(rules=TenantRules(limit=0.5)), Z_DEFAULT) == CutOff(
        45, 1, KVCost(90, 4, 300), 300, 16
    )


def test_nothing_is_said_where_nothing_is_bounded():
    assert cut_off(priced(cost(91)), "t", view(OnFailure.OPEN), Z_DEFAULT) is None
    assert cut_off(priced(cost(91)), "t", LedgerView(), Z_DEFAULT) is None
    assert cut_off(priced(cost(301)), "t", view(), Z_DEFAULT) is None, "larger than the engine"


# What the client is told.


class LedgerAway(MemoryLedger):
    """As one in mode `local` whose engine is idle and takes nothing of this process."""

    @property
    def mode(self) -> str:
        return "local"

    def view(self) -> LedgerView:
        seen = super().view()
        uses = tuple(replace(use, share=KVCost(90, 16, 2500)) for use in seen.engines)
        return replace(seen, engines=uses, mode="local", processes=PROCESSES)


async def told(**asked: Any) -> Ended:
    house = House((0.1,), blocks=300)
    house.ledger = LedgerAway(house.clock)
    house.admission._ledger = house.admission._refusing._ledger = house.ledger
    await house.ledger.observe(EngineLimits("http://e:1", SHAPE, 300, 64, 100_000, accepting=False))
    start_s = house.clock.monotonic()
    tenant = TenantPolicy("t", queue_wait_s_max=20.0, reservation="guaranteed")
    ended = await house.serve("r", tenant, **asked)
    assert house.clock.monotonic() - start_s == pytest.approx(20.0), "the ledger might have come back"
    return ended


def test_one_above_the_share_is_told_that_it_waited_for_the_ledger():
    async def main() -> None:
        ended = await told(prompt=100, max_tokens=2000)
        assert ended.outcome is Outcome.REJECTED_LEDGER_UNAVAILABLE
        assert ended.answer is not None
        assert (ended.answer.reason, ended.answer.status) == (Reason.LEDGER_UNAVAILABLE, None)
        assert ended.answer.message == (
            "The request waited 20 s for the shared ledger, which cannot be reached: until it is back each process may "
            "use at most 90 of the 300 KV blocks and 16 of the 64 sequence slots of an engine, and the request needs "
            "132 KV blocks and 1 sequence slot. Retry after the time in Retry-After, or ask for less: lower max_tokens."
        )
        assert ended.answer.retry_after_s is not None

    run_virtual(main())


def test_where_nothing_smaller_would_do_nothing_is_advised():
    async def main() -> None:
        ended = await told(prompt=3000, max_tokens=50)
        assert ended.answer is not None
        assert ended.answer.message.endswith("ask for less: shorten the prompt.")
        assert "max_tokens" not in ended.answer.message

    run_virtual(main())


def test_one_within_the_share_waited_for_room_in_it():
    async def main() -> None:
        ended = await told(prompt=100, max_tokens=50)
        assert ended.outcome is Outcome.EVICTED_QUEUE_TIMEOUT
        assert ended.answer is not None
        assert ended.answer.reason is Reason.QUEUE_TIMEOUT
        assert "The shared ledger cannot be reached: until it is back each process" in ended.answer.message
        assert "90 of the 300 KV blocks" in ended.answer.message

    run_virtual(main())
