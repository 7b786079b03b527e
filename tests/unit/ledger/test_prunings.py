"""The looks that the grant loop spares itself must never change an answer: both are run, and compared."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from kvgate.ledger.base import Ask
from kvgate.ledger.core import LedgerCore
from kvgate.ledger.grants import GrantLoop
from kvgate_policies.forecast_fit import Z_DEFAULT, z_of
from kvgate_policies.placement import place
from kvgate_policies.types import CLASSES, EngineLimits, KVCost, PriorityClass
from unit.ledger.conformance_tenants import some_rules
from unit.ledger.pool import OTHER_SHAPE, SHAPE, some_occupancy

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvgate.ledger.core import Decision

BOUNDS = {"bypass_max": 1, "scan_depth": 3, "grants_max": 4, "tie": 0}


class PlainLoop(GrantLoop):
    """Looks at every engine for every entry, after every change."""

    def reaches(self, entry):
        return True

    def could_start(self, entry, costs=None):
        entry.startable_on = None
        return super().could_start(entry, costs)

    def _place(self, entry, costs, walk):
        uses = self._book.uses()
        engine_id = place(costs, uses, entry.request_id, entry.avoid, self._tie, entry.z, entry.prefer)
        return None if engine_id is None else self._book.use(engine_id)


def plain_core() -> LedgerCore:
    core = LedgerCore(**BOUNDS)
    core._loop = PlainLoop(core._book, core._queue, core._turns, core._tenants, **BOUNDS)
    return core


class Script:
    """One random sequence of operations, applied to two ledgers at once; `forecasts` is the share of those."""

    def __init__(self, seed: int, forecasts: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.forecasts = forecasts
        self.cores = (LedgerCore(**BOUNDS), plain_core())
        self.count = 0
        self.waiting: dict[str, int] = {}
        self.running: dict[str, int] = {}
        self.flow_of: dict[str, tuple[str, PriorityClass]] = {}

    def cost(self) -> KVCost:
        blocks = self.rng.choice([5, 20, 30, 40, 60, 60, 90])
        expected = some_occupancy(self.rng, blocks) if self.rng.random() < self.forecasts else None
        return KVCost(blocks, self.rng.choice([1, 1, 3]), self.rng.choice([0, 30, 70]), expected)

    def costs(self):
        return {SHAPE: self.cost()} | ({OTHER_SHAPE: self.cost()} if self.rng.random() < 0.2 else {})

    def avoid(self) -> frozenset[str]:
        return frozenset(self.rng.choice(["", "", "", "a", "b", "ab"]))

    def both(self, operation: Callable[[LedgerCore], object]) -> None:
        """Apply, let both finish, and compare everything that can be seen."""
        seen: list[tuple[object, list[Decision], object]] = []
        for core in self.cores:
            answer = operation(core)
            while core.unfinished:
                core.go_on()
            seen.append((answer, core.take_decisions(), core.view(0.0)))
        assert seen[0] == seen[1]
        for request_id, decision in seen[0][1]:
            seq = self.waiting.pop(request_id)
            if not isinstance(decision, str):
                self.running[request_id] = seq

    def reserve(self, request_id: str, seq: int | None) -> None:
        avoid = self.avoid() if seq is None else frozenset[str]()
        tenant, priority = self.flow_of.setdefault(
            request_id, (self.rng.choice("tuv"), self.rng.choice(CLASSES))
        )
        work = self.rng.randint(1, 100)
        z = z_of(self.rng.choice([0.001, 0.01, 0.3])) if self.forecasts else Z_DEFAULT
        prefer = tuple(self.rng.sample("abc", self.rng.randint(0, 2))) if self.forecasts else ()
        ask = Ask(request_id, tenant, self.costs(), 8, seq, priority, work, avoid=avoid, z=z, prefer=prefer)
        self.waiting[request_id] = -1

        def operation(core: LedgerCore) -> object:
            answer = core.reserve(ask, 0.0)
            if not isinstance(answer, int):
                self.waiting.pop(request_id, None)
            else:
                self.waiting[request_id] = answer
            return answer

        self.both(operation)

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.4:
            self.count += 1
            self.reserve(f"r{self.count}", None)
        elif kind < 0.8 and self.running:
            request_id = self.rng.choice(sorted(self.running))
            self.end_or_change(request_id)
        elif kind < 0.86 and self.waiting:
            request_id = self.rng.choice(sorted(self.waiting))
            if self.rng.random() < 0.5:
                del self.waiting[request_id]
                self.both(lambda core: core.end(request_id))
            else:
                costs = self.costs()
                self.both(lambda core: core.reprice(request_id, costs))
        elif kind < 0.89:
            rules = {tenant: some_rules(self.rng) for tenant in "tuv" if self.rng.random() < 0.5}
            self.both(lambda core: core.set_tenants(rules))
        else:
            self.change_an_engine()

    def end_or_change(self, request_id: str) -> None:
        kind = self.rng.random()
        if kind < 0.2:
            cost = self.cost()
            self.both(lambda core: core.renew(request_id, cost))
            return
        if kind < 0.2 + 0.2 * self.forecasts:
            costs = {each: self.cost() for each in sorted(self.running) if self.rng.random() < 0.5}
            self.both(lambda core: core.renew_many(costs))
            return
        seq = self.running.pop(request_id)
        self.both(lambda core: core.end(request_id))
        if kind < 0.6:
            self.reserve(request_id, seq)

    def change_an_engine(self) -> None:
        engine_id = self.rng.choice("abc")
        if self.rng.random() < 0.1:
            self.both(lambda core: core.void(engine_id))
            self.running = {
                key: seq for key, seq in self.running.items() if self.cores[0]._book.grant_of(key) is not None
            }
            return
        shape = self.rng.choice([SHAPE, SHAPE, SHAPE, OTHER_SHAPE])
        blocks = self.rng.choice([60, 100, 100])
        usable = self.rng.choice([None, 30, 80]) if self.forecasts else None
        limits = EngineLimits(engine_id, shape, blocks, 8, 100, self.rng.random() < 0.8, usable)
        self.both(lambda core: core.observe(limits))


@pytest.mark.parametrize("forecasts", [0.0, 0.6])
@pytest.mark.parametrize("block", range(4))
def test_prunings_change_no_answer(block, forecasts):
    grants = pins = 0
    for seed in range(block * 40, block * 40 + 40):
        script = Script(seed, forecasts)
        for _ in range(120):
            script.step()
        totals = script.cores[0].view(0.0).totals
        grants, pins = grants + totals["grants"], pins + totals["pins"]
    assert grants > 1000, "the script is busy enough to mean something"
    assert pins > 200
