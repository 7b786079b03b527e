"""The shared ledger keeps every promise that the one in memory keeps, sentence by sentence."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from integration.ledger.ledgers import Exact, refresh, shared
from integration.ledger.process import CLOCK, START_MS, hold_clock
from kvgate.clock import SystemClock
from kvgate.ledger.redis import RedisLedger
from unit.ledger.conformance import LedgerConformance
from unit.ledger.conformance_forecasts import ForecastConformance
from unit.ledger.conformance_tenants import TenantConformance
from unit.ledger.pool import ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration


class OverRedis:
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url

    @asynccontextmanager
    async def open(self, **bounds: Any) -> AsyncIterator[Any]:
        async with shared(self.url, "p", heartbeat_s=0.02, **bounds) as ledger:
            self.ledger = ledger
            yield Exact(ledger)

    async def settle(self) -> None:
        await refresh(self.ledger)


class TestRedisForecasts(OverRedis, ForecastConformance):
    """As in memory."""


class TestRedisLedger(OverRedis, LedgerConformance):
    async def test_a_grant_that_crosses_a_cancel_is_given_back_by_it(self, probe):
        """Here a release takes a while, in which a waiter may well get its grant: the two leave together."""
        await probe.start(ask("x", blocks=100))
        ticket = await probe.wait(ask("r"))
        waiter = asyncio.ensure_future(ticket.granted())
        await asyncio.sleep(0)
        await asyncio.gather(self.ledger.release("x"), self.ledger.cancel("r"))
        await self.settle()
        probe.assert_empty()
        assert probe.ledger.view().totals["grants"] == 2, "it was granted, and given back"
        with pytest.raises(RuntimeError, match="r"):
            await waiter


@pytest.mark.timeout(300)
class TestRedisTenants(TenantConformance):
    """The clock of the server is held, so that a busy machine fills no budget."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.server = redis_server

    @asynccontextmanager
    async def open(self, **bounds: Any) -> AsyncIterator[Any]:
        self.now_ms = START_MS
        await self.pass_time(0)
        ledger = RedisLedger(
            self.server.url, pool="p", clock=SystemClock(), heartbeat_s=0.05, lease_s=300, grace_s=0, **bounds
        )
        hold_clock(ledger._scripts)
        async with ledger.running():
            self.ledger = ledger
            await self.settle()
            yield Exact(ledger)

    async def settle(self) -> None:
        await refresh(self.ledger)

    async def pass_time(self, seconds: float) -> None:
        self.now_ms += round(1000 * seconds)
        with self.server.client() as client:
            client.set(CLOCK, self.now_ms)
