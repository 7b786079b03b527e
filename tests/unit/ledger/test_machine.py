from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from kvgate.ledger.memory import MemoryLedger
from unit.ledger.machine import LedgerMachine
from unit.ledger.pool import HandClock

if TYPE_CHECKING:
    from kvgate.ledger.base import Ledger

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
