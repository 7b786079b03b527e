"""What the pool tells after each scrape: how many KV blocks an engine has in use by its own gauge, and sequences."""

from __future__ import annotations

from support.upstream import EngineFace
from support.virtual_loop import run_virtual
from unit.engines.world import Server, World


def test_the_blocks_in_use_are_told_after_each_scrape() -> None:
    async def run() -> list[tuple[str, int, int | None]]:
        world = World(
            {"a": Server(), "b": Server(EngineFace(metrics=False))}, block_size=32, num_gpu_blocks=121
        )
        face = world.servers["a"].face
        face.usage, face.running, face.waiting = 0.5, 3, 1
        await world.pool.discover_once()
        world.servers["a"].face.usage = 0.001
        await world.pool.discover_once()
        world.servers["a"].refuses = True
        await world.pool.discover_once()
        return world.ledger.settled

    told = run_virtual(run())
    assert told == [("http://a", 60, 4), ("http://a", 1, 4)]
