"""What could grow beyond every engine, or beyond its tenant's limit, is priced as no more than it may have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvgate.admission.oversize import within_reach
from kvgate.admission.pricing import Priced
from kvgate_policies.forecast_request import Outlook
from kvgate_policies.kv_cost import price
from kvgate_policies.tenancy import OutputBudget
from kvgate_policies.types import (
    ZERO_COST,
    EngineLimits,
    EngineShape,
    EngineUse,
    LedgerView,
    TenantPolicy,
    TenantRules,
    TenantUse,
    TokenCount,
)

SHAPE = EngineShape(block_size=16, max_model_len=4096)
WINDOW = 256
FORECAST = TenantPolicy("t", reservation="forecast")


def priced(*prompts: int, output: int = 4000, n: int = 1, ignore_eos: bool = False) -> Priced:
    cost = price(SHAPE, prompts, output, n)
    outlook = Outlook(prompts, output, n, ignore_eos=ignore_eos)
    return Priced({SHAPE: cost}, TokenCount(prompts, exact=True), OutputBudget(output, None), n, outlook)


def view(*blocks: int, limit: int | None = None) -> LedgerView:
    engines = tuple(
        EngineUse(EngineLimits(f"e{number}", SHAPE, size, 256, 8192), ZERO_COST, 0)
        for number, size in enumerate(blocks)
    )
    tenants = () if limit is None else (TenantUse("t", TenantRules(), 0, 0, limit, 0, 0, 0.0, 0.0),)
    return LedgerView(engines, 0, tenants=tenants)


def blocks(found: Priced | None) -> int | None:
    return None if found is None else found.costs[SHAPE].blocks


@pytest.mark.parametrize(
    ("asked", "seen", "expected"),
    [
        (priced(96, n=4), view(400), 400),
        (priced(96, n=4), view(400, 600), 600),
        (priced(96, n=4), view(400, limit=100), 100),
        (priced(96), view(400, limit=100), 100),
        (priced(96, output=2000), view(400, limit=100), 100),
        (priced(96, 96, 96), view(400), 400),
        # Nothing to mend.
        (priced(96), view(400), None),
        (priced(96, n=4), view(), None),
        # A limit of its own that is more than there is; one that is only the rest of the window.
        (priced(96, output=3999), view(200), None),
        (priced(96, n=4, output=2000), view(400), None),
        (priced(96, output=4000), view(200), 200),
        # What it surely takes is more than there is.
        (priced(1600, n=4), view(300), None),
        (priced(1700), view(400, limit=100), None),
        (priced(96, n=4, ignore_eos=True), view(400), None),
    ],
)
def test_the_most_it_may_have_is_its_peak(asked: Priced, seen: LedgerView, expected: int | None):
    assert blocks(within_reach(asked, FORECAST, seen)) == expected


def test_a_peak_that_is_promised_is_not_cut():
    assert within_reach(priced(96, n=4), replace(FORECAST, reservation="guaranteed"), view(400)) is None


def test_what_generates_nothing_has_no_forecast():
    assert within_reach(replace(priced(96, n=4), outlook=None), FORECAST, view(400)) is None
