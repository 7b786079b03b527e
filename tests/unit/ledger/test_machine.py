from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from kvgate.ledger.memory import MemoryLedger
from kvgate.ledger.turns import BY_GUARANTEE
from kvgate_policies.fairness import AGEING
from unit.ledger.machine import LedgerMachine
from unit.ledger.pool import HandClock

if TYPE_CHECKING:
    from kvgate.ledger.base import Ledger
    from kvgate.ledger.book import Book
    from kvgate.ledger.queue import Queue
    from kvgate.ledger.tenants import Tenants
    from kvgate.ledger.turns import Turns

pytestmark = pytest.mark.timeout(300)
"""A failure is shrunk, which takes longer than finding it."""

STEPS = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class MemoryMachine(LedgerMachine):
    def open(self) -> Ledger:
        return MemoryLedger(HandClock(), self.bypass_max, self.scan_depth, self.grants_per_call_max)

    def check_inside(self) -> None:
        assert isinstance(self.ledger, MemoryLedger)
        core = self.ledger._core
        check_order(core._turns, core._queue)
        check_shares(core._turns, core._tenants, core._book)


def check_order(turns: Turns, queue: Queue) -> None:
    """Each flow with an active entry is in the walk once, in its tier and at its tag, or suspended."""
    active = {key for key, lane in queue._lanes.items() if lane.active}
    assert set(turns._listed) | turns._suspended == active
    assert not set(turns._listed) & turns._suspended
    for (level, tenant), (tier, tag) in turns._listed.items():
        assert (tag, tenant) in turns._order[tier][level]
        assert (tier == BY_GUARANTEE) == (tenant in turns._below)
    for lists in turns._order:
        assert all(flows == sorted(flows) for flows in lists)
    assert sum(len(flows) for lists in turns._order for flows in lists) == len(turns._listed)
    assert not turns._tags.keys() & turns._listed.keys(), "a flow in the walk has one tag"
    assert all(0 <= count <= AGEING for count in turns.overtaken)


def check_shares(turns: Turns, tenants: Tenants, book: Book) -> None:
    accounts = tenants._accounts
    assert tenants._blocks == sum(grant.cost.use_blocks for grant in book._grants.values())
    assert tenants._blocks == sum(account.blocks for account in accounts.values())
    assert tenants._spare == sum(account.spare for account in accounts.values())
    assert tenants._partitions == sum(account.partition for account in accounts.values())
    below = {name for name, account in accounts.items() if account.blocks < account.guaranteed}
    assert turns._below == below


class OneEngineMachine(MemoryMachine):
    engine_ids = ("a",)


class StrictMachine(MemoryMachine):
    """Every head that does not fit pins at once; a call looks at one entry and grants one."""

    bypass_max = 0
    scan_depth = 1
    grants_per_call_max = 1
    engine_ids = ("a", "b")


TestManyEngines = MemoryMachine.TestCase
TestManyEngines.settings = STEPS
TestOneEngine = OneEngineMachine.TestCase
TestOneEngine.settings = STEPS
TestStrict = StrictMachine.TestCase
TestStrict.settings = STEPS


@pytest.mark.soak
@pytest.mark.timeout(1700)
@pytest.mark.skipif(os.environ.get("KVGATE_SOAK") != "1", reason="the short form runs above")
@pytest.mark.parametrize("machine", [MemoryMachine, OneEngineMachine, StrictMachine])
def test_with_ever_new_operations(machine):
    long = settings(STEPS, max_examples=3000, stateful_step_count=80, derandomize=False, database=None)
    run_state_machine_as_test(machine, settings=long)
