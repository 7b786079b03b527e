"""`reserved` is one number wherever it is told: the ledger's. The sum of the peaks has a name of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from kvgate.admin.state import PoolState
from kvgate.admin.tenants import queue_view
from kvgate.admin.views import engines_json, ledger_json, pool_view
from kvgate.console.engines import engines_shown
from kvgate.engines.health import State
from kvgate.engines.metrics import Gauges
from kvgate.engines.status import EngineStatus
from kvgate.ledger.base import Ask
from kvgate.ledger.memory import MemoryLedger
from kvgate.telemetry import Telemetry
from kvgate_policies.types import EngineLimits, EngineShape, KVCost, LedgerView
from unit.ledger.conformance_forecasts import soft
from unit.ledger.pool import HandClock

SHAPE = EngineShape(16, 4096)
LIMITS = EngineLimits("http://a:1", SHAPE, blocks=300, seqs=64, prefill_tokens=8192)
STATUS = EngineStatus("http://a:1", "http://a:1", State.UP, "well", LIMITS, Gauges(kv_usage=0.5))
COUNT, PEAK, EXPECTED = 20, 256, 10


async def forecasts() -> MemoryLedger:
    """A pool of one engine, and requests that could each fill most of it and are not expected to."""
    ledger = MemoryLedger(HandClock())
    await ledger.observe(LIMITS)
    for number in range(COUNT):
        asked = {SHAPE: soft(PEAK, EXPECTED - 2, EXPECTED, deviation=1)}
        await ledger.reserve(Ask(f"r{number}", "t", asked, 100))
    return ledger


def in_json(view: LedgerView) -> dict[str, Any]:
    """Its engine, in `/admin/ledger` and `kvgate ledger show --json`."""
    engines: Any = ledger_json("p", view)["engines"]
    [engine] = engines
    told: dict[str, Any] = engine
    return told


async def test_everyone_tells_the_ledgers_number() -> None:
    ledger = await forecasts()
    view = ledger.view()
    pool = PoolState("p", (), ledger.view, lambda: [STATUS], lambda: ())
    telemetry = Telemetry("p", CollectorRegistry())
    telemetry.watch(ledger.view, lambda: [STATUS])
    metric = telemetry.registry.get_sample_value(
        "kvgate_ledger_reserved_blocks", {"pool": "p", "engine": STATUS.id}
    )
    [engine], _ = engines_shown([STATUS], view)
    in_ledger = in_json(view)
    [in_engines] = engines_json(pool)
    told = {
        "metrics": metric,
        "ledger": in_ledger["reserved_blocks"],
        "engines": in_engines["reserved_blocks"],
        "pools": pool_view(pool, view).reserved_blocks,
        "queue": queue_view("p", view).reserved_blocks,
        "console": engine.blocks_reserved,
    }
    assert set(told.values()) == {COUNT * EXPECTED}, told


async def test_the_sum_of_the_peaks_stands_beside_it() -> None:
    ledger = await forecasts()
    view = ledger.view()
    pool = PoolState("p", (), ledger.view, lambda: [STATUS], lambda: ())
    in_ledger = in_json(view)
    [in_engines] = engines_json(pool)
    peaks = (in_ledger["peak_blocks"], in_engines["peak_blocks"])
    assert peaks == (COUNT * PEAK, COUNT * PEAK)
    assert pool_view(pool, view).peak_blocks == queue_view("p", view).peak_blocks == COUNT * PEAK


async def test_what_all_tenants_hold_may_be_more_than_what_is_reserved() -> None:
    """One request is largest now and the other one later: added up, their largest are more than they ever hold."""
    ledger = MemoryLedger(HandClock())
    await ledger.observe(LIMITS)
    early, late = soft(100, 40), soft(100, 0, 0, 40)
    for name, price in (("early", early), ("late", late)):
        await ledger.reserve(Ask(name, name, {SHAPE: price}, 100))
    view = ledger.view()
    assert view.engines[0].reserved.use_blocks == 40
    assert sum(tenant.blocks for tenant in view.tenants) == 80


async def test_a_guaranteed_one_reserves_its_peak() -> None:
    ledger = MemoryLedger(HandClock())
    await ledger.observe(LIMITS)
    await ledger.reserve(Ask("r", "t", {SHAPE: KVCost(70, 1, 0)}, 100))
    told = in_json(ledger.view())
    assert (told["reserved_blocks"], told["peak_blocks"]) == (70, 70)


async def test_what_still_runs_on_drained_engines_is_counted() -> None:
    ledger = MemoryLedger(HandClock())
    await ledger.observe(LIMITS)
    await ledger.reserve(Ask("r", "t", {SHAPE: KVCost(70, 2, 500)}, 100))
    open_ = queue_view("p", ledger.view())
    assert (open_.blocks, open_.reserved_blocks, open_.closed_blocks, open_.closed_seqs) == (300, 70, 0, 0)
    await ledger.observe(replace(LIMITS, accepting=False))
    view = ledger.view()
    told = queue_view("p", view)
    assert (told.blocks, told.seqs, told.prefill_tokens) == (0, 0, 0), "nothing can be started"
    assert (told.reserved_blocks, told.reserved_seqs, told.reserved_prefill_tokens) == (70, 2, 500)
    assert (told.closed_blocks, told.closed_seqs, told.closed_prefill_tokens, told.peak_blocks) == (
        70,
        2,
        500,
        70,
    )
    pool = pool_view(PoolState("p", (), ledger.view, lambda: [STATUS], lambda: ()), view)
    assert (pool.blocks, pool.reserved_blocks, pool.reservations) == (300, 70, 1)
    assert (in_json(view)["reserved_blocks"], in_json(view)["accepting"]) == (70, False)
    [engine], _ = engines_shown([STATUS], view)
    assert (engine.blocks_reserved, engine.seqs_reserved) == (70, 2)
