"""Many tenants cost no more than a few, and nothing is kept of those that are gone. Counted, not timed."""

from __future__ import annotations

import itertools

import pytest

from kvgate.ledger.core import LedgerCore
from kvgate.ledger.grants import SET_ASIDE_MAX
from kvgate.ledger.memory import MemoryLedger
from kvgate.ledger.overrides import OVERRIDES_MAX, TEXT_MAX, Overrides
from kvgate.ledger.tenants import ACCOUNTS_MIN
from kvgate.ledger.turns import KEPT_TAGS_MIN, Turns
from kvgate_policies.types import TENANTS_SHOWN_MAX, TenantRules
from unit.ledger.pool import HandClock, ask, engine
from unit.ledger.test_waiting import count_calls


def core_of(**bounds: int) -> LedgerCore:
    return LedgerCore(**({"bypass_max": 8, "scan_depth": 4, "grants_max": 16, "tie": 0} | bounds))


def finish(core: LedgerCore) -> int:
    """Go on until nothing is unfinished; how often."""
    calls = 0
    while core.unfinished:
        core.go_on()
        calls += 1
    return calls


def calls_per_cycle(tenants: int, rules: TenantRules | None = None, cycles: int = 60) -> float:
    """Function calls of one release, grant and reserve of a full pool with two waiting for each tenant."""
    core = core_of()
    core.observe(engine())
    core.set_tenants({f"t{number}": rules for number in range(tenants)} if rules else {})
    names = itertools.cycle(f"t{number}" for number in range(tenants))
    ids = itertools.count()

    def arrive() -> None:
        core.reserve(ask(f"r{next(ids)}", tenant=next(names), depth=10**6), 0)

    for _ in range(10 + 2 * tenants):
        arrive()
    running = [request_id for request_id, _ in core.take_decisions()]

    def turn() -> None:
        for _ in range(cycles):
            core.end(running.pop(0))
            arrive()
            running.extend(request_id for request_id, _ in core.take_decisions())

    return count_calls(turn) / cycles


@pytest.mark.parametrize(
    "rules",
    [None, TenantRules(weight=2, guarantee=0.001, limit=0.9), TenantRules(guarantee=0.0005, borrow=True)],
    ids=str,
)
def test_a_thousand_tenants_cost_as_much_as_ten(rules):
    assert calls_per_cycle(1000, rules) <= 1.5 * calls_per_cycle(10, rules)


def test_an_arrival_of_a_tenant_far_behind_runs_no_grant_loop():
    core = core_of()
    core.observe(engine())
    core.reserve(ask("x", blocks=100), 0)
    for number in range(100):
        core.reserve(ask(f"r{number}", tenant=f"t{number:03}"), 0)
    near = count_calls(core._loop.run)
    late = count_calls(lambda: core.reserve(ask("late", tenant="t999"), 0))
    assert late < near


def test_many_that_reach_their_limit_are_set_aside_in_bounded_steps():
    core = core_of()
    core.observe(engine("a", blocks=10_000, seqs=10_000))
    tenants = 2 * SET_ASIDE_MAX
    for number in range(tenants):
        core.reserve(ask(f"held{number}", tenant=f"t{number}"), 0)
    finish(core)
    core.observe(engine("a", blocks=10 * tenants, seqs=10_000))
    for number in range(tenants):
        core.reserve(ask(f"r{number}", tenant=f"t{number}"), 0)
    core.observe(engine("a", blocks=10_000, seqs=10_000, accepting=False))
    core.set_tenants({f"t{number}": TenantRules(limit=0.001) for number in range(tenants)})
    assert core.view(0).queued == tenants
    core.observe(engine("a", blocks=10_000, seqs=10_000))
    assert 1 <= finish(core) <= 3, "one call does not look at all of them"
    assert core.view(0).queued == tenants
    core.end("held7")
    assert [request_id for request_id, _ in core.take_decisions()][-1] == "r7"


def test_those_at_their_limit_are_not_looked_at_for_what_an_engine_may_be_filled_with():
    core, tenants = core_of(), SET_ASIDE_MAX + 40
    core.observe(engine(blocks=10 * tenants, seqs=2 * tenants))
    core.set_tenants({f"t{number}": TenantRules(limit=1 / tenants) for number in range(tenants)})
    for number in range(tenants):
        for name in ("runs", "waits"):
            core.reserve(ask(f"{name}{number}", tenant=f"t{number}"), 0)
    finish(core)
    core.observe(engine(blocks=10 * tenants, seqs=2 * tenants, blocks_usable=20 * tenants))
    assert finish(core) == 0
    core.observe(engine(blocks=10 * tenants, seqs=3 * tenants))
    assert finish(core) > 0, "more slots are another matter"


def test_tags_that_do_not_matter_are_forgotten():
    turns = Turns()
    for number in range(10_000):
        flow = (1, f"t{number}")
        turns.enter(flow)
        turns.grant(flow, 1.0)
        turns.leave(flow)
        later = (1, "later")
        turns.enter(later)
        turns.grant(later, 1.0)
        turns.leave(later)
    assert len(turns._tags) <= 2 * KEPT_TAGS_MIN
    assert turns.tag((1, "t3")) == turns.virtual[1]


def test_forgetting_a_tag_changes_no_answer():
    """One that idles at or below the virtual time is as one that was never there, also for a correction."""
    turns = Turns()
    turns.enter((1, "known"))
    turns.grant((1, "known"), 5.0)
    turns.leave((1, "known"))
    for _ in range(2):
        turns.enter((1, "other"))
        turns.grant((1, "other"), 9.0)
        turns.leave((1, "other"))
    for tenant in ("known", "never"):
        turns.correct((1, tenant), 2.0)
        assert turns.tag((1, tenant)) == 11.0
        turns.correct((1, tenant), -4.0)
        assert turns.tag((1, tenant)) == 9.0


def test_accounts_of_tenants_without_rules_are_forgotten_some_time():
    core = core_of()
    core.observe(engine())
    core.set_tenants({"named": TenantRules()})
    for number in range(5000):
        core.reserve(ask(f"r{number}", tenant=f"t{number}"), 0)
        core.end(f"r{number}")
    assert len(core._tenants._accounts) <= 2 * ACCOUNTS_MIN
    assert "named" in core._tenants._accounts
    assert not core._queue._lanes
    assert not core._queue._by_tenant


async def test_a_view_shows_a_bounded_page_the_busy_ones_first():
    ledger = MemoryLedger(HandClock())
    await ledger.observe(engine())
    await ledger.set_tenants({f"t{number:04}": TenantRules() for number in range(2 * TENANTS_SHOWN_MAX)})
    await ledger.reserve(ask("r", tenant="t0999"))
    shown = ledger.view().tenants
    assert len(shown) == TENANTS_SHOWN_MAX
    assert [use.name for use in shown[:3]] == ["t0999", "t0000", "t0001"]


def test_overrides_are_bounded():
    overrides = Overrides()
    for number in range(OVERRIDES_MAX):
        overrides.put(f"n{number}", "x", 10, 0)
    overrides.put("n0", "y", 10, 0)
    with pytest.raises(ValueError, match="already"):
        overrides.put("one more", "x", 10, 0)
    overrides.put("one more", "x", 10, 10)
    assert set(overrides.current(11)) == {"one more"}
    with pytest.raises(ValueError, match="ahead"):
        overrides.put("over", "x", 0, 11)
    with pytest.raises(ValueError, match="characters"):
        overrides.put("long", "x" * (TEXT_MAX + 1), 1, 11)
