"""One process of many scrapes a backend; the others look at its health, and scrape where they must."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kvgate.engines.looks import OTHERS_SCRAPE_S
from support.upstream import EngineFace
from unit.engines.world import Server, World, virtual


async def counted(world: World, seconds: float) -> tuple[int, int]:
    """Scrapes and looks at its health in that time."""
    server = world.servers["a"]
    before = server.asked("/metrics"), server.asked("/health")
    await asyncio.sleep(seconds)
    return server.asked("/metrics") - before[0], server.asked("/health") - before[1]


def blocks_known(world: World) -> int | None:
    limits = world.status().limits
    return None if limits is None else limits.blocks


@virtual
async def test_the_elected_one_scrapes_with_every_probe() -> None:
    async with World({"a": Server()}).running() as world:
        scrapes, glances = await counted(world, 100)
        assert 90 <= scrapes <= 112
        assert glances == 0


@virtual
async def test_the_others_scrape_now_and_then() -> None:
    world = World({"a": Server()})
    world.ledger.elects = False
    async with world.running():
        assert world.accepting(), "it has to learn the size by itself"
        scrapes, glances = await counted(world, 100)
        assert scrapes <= 100 / OTHERS_SCRAPE_S
        assert glances >= 80
        world.ledger.elects = True
        assert (await counted(world, 3))[0] >= 2, "it takes over with the next probe"


@virtual
async def test_the_others_see_a_death_at_once_and_a_new_size_with_the_first_answer() -> None:
    world = World({"a": Server()})
    world.ledger.elects = False
    async with world.running():
        await asyncio.sleep(3)
        server = world.servers["a"]
        server.refuses = True
        assert await world.until(lambda: world.state() == "down") <= 1.2
        server.face.start_time_s += 60
        server.face.num_gpu_blocks = 241
        server.refuses = False
        await world.until(world.accepting, timeout_s=1.2)
        assert world.use().limits.blocks == 240


@virtual
async def test_the_others_scrape_until_they_know_its_size() -> None:
    world = World({"a": Server(EngineFace(num_gpu_blocks=None))})
    world.ledger.elects = False
    async with world.running():
        assert world.state() == "error"
        assert (await counted(world, 10))[0] >= 8
        world.servers["a"].face.num_gpu_blocks = 121
        await world.until(lambda: world.state() == "up", timeout_s=1.2)


@virtual
async def test_a_server_that_is_unhealthy_is_down_for_the_others_too() -> None:
    world = World({"a": Server()})
    world.ledger.elects = False
    async with world.running():
        world.servers["a"].face.healthy = False
        await world.until(lambda: world.state() == "down", timeout_s=1.2)


@virtual
async def test_one_that_comes_back_from_being_unhealthy_is_asked_its_size_at_once() -> None:
    """Behind a service that answers for it: nothing is refused while it restarts."""
    world = World({"a": Server()})
    world.ledger.elects = False
    async with world.running():
        await asyncio.sleep(3)
        face = world.servers["a"].face
        face.healthy, face.metrics = False, False
        await world.until(lambda: world.state() == "down", timeout_s=1.2)
        told = len(world.ledger.told)
        face.start_time_s += 60
        face.num_gpu_blocks = 241
        face.healthy = face.metrics = True
        await world.until(world.accepting, timeout_s=1.2)
        assert {limits.blocks for limits in world.ledger.told[told:] if limits.accepting} == {240}


@virtual
async def test_a_size_that_another_process_found_is_looked_at_with_the_next_probe() -> None:
    """It restarted between two looks at its health: nothing was to be seen of it here."""
    world = World({"a": Server()})
    world.ledger.elects = False
    async with world.running():
        await asyncio.sleep(3)
        face = world.servers["a"].face
        face.start_time_s += 60
        face.num_gpu_blocks = 241
        await world.ledger.observe(replace(world.use().limits, blocks=240))
        await world.until(lambda: blocks_known(world) == 240, timeout_s=2.4)
        scrapes, _ = await counted(world, 30)
        assert scrapes <= 30 / OTHERS_SCRAPE_S + 1
