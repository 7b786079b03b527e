"""The ledger in memory keeps what every ledger promises of forecasts."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kvgate.ledger.memory import MemoryLedger
from unit.ledger.conformance_forecasts import ForecastConformance
from unit.ledger.pool import HandClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvgate.ledger.base import Ledger


class TestMemoryForecasts(ForecastConformance):
    @asynccontextmanager
    async def open(self, **bounds: int) -> AsyncIterator[Ledger]:
        yield MemoryLedger(HandClock(), **bounds)
