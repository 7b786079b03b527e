"""The ledger in memory keeps what is promised to tenants."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kvgate.ledger.memory import MemoryLedger
from unit.ledger.conformance_tenants import TenantConformance
from unit.ledger.pool import HandClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvgate.ledger.base import Ledger


class TestMemoryLedger(TenantConformance):
    @asynccontextmanager
    async def open(self, **bounds: int) -> AsyncIterator[Ledger]:
        self.clock = HandClock()
        yield MemoryLedger(self.clock, **bounds)

    async def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds
