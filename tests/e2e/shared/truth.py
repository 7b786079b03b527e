"""The ledger in Redis, looked at from outside of all replicas."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from kvgate.ledger.scripts import LedgerScripts
from kvgate_policies.types import ZERO_COST, LedgerView
from support.redis_server import RedisServer
from support.replicas import POOL

LOOK_S = 0.25


class Truth:
    """One connection of its own to one server."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._scripts = LedgerScripts(client, POOL)
        self.problems: list[str] = []
        """All that `watch` found."""
        self.looks = 0

    async def view(self) -> LedgerView:
        return await self._scripts.view()

    async def verify(self) -> list[str]:
        return await self._scripts.verify()

    async def is_zero(self) -> bool:
        view = await self.view()
        return view.queued == 0 and all(
            use.reserved == ZERO_COST and use.reservations == 0 for use in view.engines
        )

    async def watch(self) -> None:
        """Check every invariant four times a second until cancelled, whatever else goes on."""
        while True:
            self.problems += await self.verify()
            self.looks += 1
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def truth(server: RedisServer) -> AsyncIterator[Truth]:
    client = redis.asyncio.Redis(port=server.port, retry=Retry(NoBackoff(), 1), socket_timeout=5.0)
    async with client:
        yield Truth(client)


async def verified_by_command(url: str) -> tuple[int, str]:
    """`kvgate ledger verify`: its exit code and what it printed."""
    command = [sys.executable, "-m", "kvgate", "ledger", "verify", "--ledger", url, "--pool", POOL]
    done = await anyio.run_process(command, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


def calls(server: RedisServer, command: str = "evalsha") -> int:
    """How often a command ran on this server since its start."""
    with server.client() as client:
        stats = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])
