"""The ways in which a Redis goes away and comes back, each with lines from the replicas to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

import anyio

from support.redis_server import FaultProxy, RedisServer, SentinelSet

REPLICAS = 3


class Fault(StrEnum):
    FLUSH = "flush"
    """FLUSHALL: the connections stay, everything else is gone."""
    RESTART = "restart"
    """kill −9, and up again at once, empty."""
    FAILOVER = "failover"
    """kill −9 of the master under three sentinels; its replica takes over after a second or two."""
    PARTITION = "partition"
    """No replica reaches Redis any more; connections hang."""
    PARTITION_OF_ONE = "partition_of_one"
    """One of the replicas doesn't; the others do."""
    FREEZE = "freeze"
    """Redis stands still, then goes on with all that was sent to it meanwhile."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A Redis that can be made to fail once."""

    urls: list[str]
    """One for each replica."""
    strike: Callable[[], Awaitable[None]]
    """Cause the fault, and return when Redis can be reached again."""
    server: Callable[[], RedisServer]
    """The one that counts now."""


@asynccontextmanager
async def outage(fault: Fault, partition_s: float) -> AsyncIterator[Outage]:
    async with AsyncExitStack() as open_now:
        match fault:
            case Fault.FLUSH | Fault.RESTART:
                yield _of_one_server(fault, open_now)
            case Fault.FAILOVER:
                yield await anyio.to_thread.run_sync(_of_sentinels, open_now)
            case Fault.FREEZE:
                yield _of_a_frozen_server(open_now, partition_s)
            case Fault.PARTITION | Fault.PARTITION_OF_ONE:
                yield await _of_lines(fault, open_now, partition_s)


def _of_one_server(fault: Fault, open_now: AsyncExitStack) -> Outage:
    server = open_now.enter_context(RedisServer())
    act = server.flush if fault is Fault.FLUSH else server.restart

    async def strike() -> None:
        await anyio.to_thread.run_sync(act)

    return Outage([server.url] * REPLICAS, strike, lambda: server)


def _of_a_frozen_server(open_now: AsyncExitStack, partition_s: float) -> Outage:
    server = open_now.enter_context(RedisServer())

    async def strike() -> None:
        server.freeze()
        await asyncio.sleep(partition_s)
        server.thaw()

    return Outage([server.url] * REPLICAS, strike, lambda: server)


def _of_sentinels(open_now: AsyncExitStack) -> Outage:
    servers = open_now.enter_context(SentinelSet())
    first = servers.master()

    def fail_over() -> None:
        first.kill()
        while servers.master() is first:
            pass

    async def strike() -> None:
        await anyio.to_thread.run_sync(fail_over)

    return Outage([servers.url] * REPLICAS, strike, servers.master)


async def _of_lines(fault: Fault, open_now: AsyncExitStack, partition_s: float) -> Outage:
    server = open_now.enter_context(RedisServer())
    lines = [await open_now.enter_async_context(FaultProxy(server.port)) for _ in range(REPLICAS)]
    cut = lines if fault is Fault.PARTITION else lines[:1]

    async def strike() -> None:
        for line in cut:
            line.hang()
        await asyncio.sleep(partition_s)
        for line in cut:
            line.heal()

    return Outage([line.url for line in lines], strike, lambda: server)
