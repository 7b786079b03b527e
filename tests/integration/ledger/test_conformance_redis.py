"""The shared ledger keeps every promise that the one in memory keeps, sentence by sentence."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kvgate.clock import SystemClock
from kvgate.ledger.redis import RedisLedger
from unit.ledger.conformance import LedgerConformance
from unit.ledger.pool import ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration
POOLS = itertools.count()
VERBS = frozenset({"reserve", "cancel", "renew", "reprice", "release", "observe", "forget", "void", "close"})


class Exact:
    """A `RedisLedger` whose calls return when all that they set off has arrived, so that `view` is of now."""

    def __init__(self, ledger: RedisLedger) -> None:
        self.inner = ledger

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if name not in VERBS:
            return call

        async def exact(*args: Any) -> Any:
            try:
                return await call(*args)
            finally:
                await self.inner.refresh()

        return exact


class TestRedisLedger(LedgerConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url

    @asynccontextmanager
    async def open(self, **bounds: int) -> AsyncIterator[Any]:
        ledger = RedisLedger(
            self.url, pool=f"p{next(POOLS)}", clock=SystemClock(), heartbeat_s=0.02, lease_s=2.0, **bounds
        )
        async with ledger.running():
            await ledger_without_grace(ledger)
            self.ledger = ledger
            yield Exact(ledger)

    async def settle(self) -> None:
        await self.ledger.refresh()

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


async def ledger_without_grace(ledger: RedisLedger) -> None:
    """A new epoch begins with a grace in which nothing is granted: wait for its end."""
    while (await ledger._scripts.pump()).grace:
        await ledger._keeper.beat()
