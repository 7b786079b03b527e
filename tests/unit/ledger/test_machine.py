from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from kvgate.ledger.memory import MemoryLedger
from unit.ledger.machine import LedgerMachine
from unit.ledger.pool import HandClock

if TYPE_CHECKING:
    from kvgate.ledger.base import Ledger

pytestmark = pytest.mark.timeout(300)
"""A failure is shrunk, which takes longer than finding it."""

STEPS = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class MemoryMachine(LedgerMachine):
    def open(self) -> Ledger:
        return MemoryLedger(HandClock(), self.bypass_max, self.scan_depth, self.grants_per_call_max)


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
