"""The shared ledger keeps every promise that the one in memory keeps, sentence by sentence."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from integration.ledger.ledgers import Exact, refresh, shared
from unit.ledger.conformance import LedgerConformance
from unit.ledger.pool import ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration


class TestRedisLedger(LedgerConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url

    @asynccontextmanager
    async def open(self, **bounds: int) -> AsyncIterator[Any]:
        async with shared(self.url, "p", heartbeat_s=0.02, **bounds) as ledger:
            self.ledger = ledger
            yield Exact(ledger)

    async def settle(self) -> None:
        await refresh(self.ledger)

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
