"""What an engine's gauges do to what the ledger fills of it: a brake, for as long as they say something."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace

import pytest

from kvgate.engines.feedback import RISE_STEPS, STALE_S, STEPS, quantised
from kvgate_policies.feedback import TRUST_CUT, TRUST_MIN, USABLE_MIN
from support.upstream import EngineFace
from support.virtual_loop import run_virtual
from unit.engines.world import Server, World, virtual

BLOCKS = 1280
"""Of the engine, so that a part that is told apart is 20 blocks."""
PART = BLOCKS // STEPS


def a_world(**face: float) -> World:
    made = EngineFace(num_gpu_blocks=BLOCKS + 1)
    for name, value in face.items():
        setattr(made, name, value)
    return World({"a": Server(made)})


async def work(world: World, seconds: int, *, tokens: int = 100, preemptions: int = 0) -> None:
    """Let the engine work on: each second its counters move."""
    face = world.servers["a"].face
    for _ in range(seconds):
        face.generation_tokens += tokens
        face.preemptions += preemptions
        await asyncio.sleep(1)


def usable(world: World) -> int:
    return world.use().limits.blocks_open


@virtual
async def test_preemptions_take_room_and_it_comes_back() -> None:
    world = a_world(running=3)
    async with world.running():
        await work(world, 5)
        assert world.use().limits.blocks_usable is None
        world.servers["a"].face.preemptions += 5
        await work(world, 5)
        assert TRUST_CUT - 1 / STEPS <= usable(world) / BLOCKS <= TRUST_CUT + 0.02
        assert world.status().trust == pytest.approx(TRUST_CUT, abs=0.02)
        await work(world, 120, preemptions=1)
        assert usable(world) == TRUST_MIN * BLOCKS
        await work(world, 140)
        assert world.use().limits.blocks_usable is None


@virtual
async def test_the_ledger_is_told_in_parts_not_at_every_scrape() -> None:
    world = a_world(running=3)
    async with world.running():
        await work(world, 60, preemptions=1)
        told = len(world.ledger.told)
        await work(world, 125)
        calls = len(world.ledger.told) - told
    assert world.use().limits.blocks_usable is None, "it has all its room again"
    assert calls <= (1 - TRUST_MIN) * STEPS, "a rise of one part or more for each call, of 125 scrapes"
    amounts = [limits.blocks_usable for limits in world.ledger.told if limits.blocks_usable is not None]
    assert all(amount % PART == 0 for amount in amounts)


@virtual
async def test_foreign_traffic_is_charged_when_it_is_seen_twice() -> None:
    world = a_world(running=3, usage=0.25)
    async with world.running():
        assert world.use().limits.blocks_usable is None
        await work(world, 5)
        assert usable(world) == 0.75 * BLOCKS
        assert world.status().foreign_blocks == 0.25 * BLOCKS
        world.servers["a"].face.usage = 0.0
        await work(world, 2)
        assert world.use().limits.blocks_usable is None


@virtual
async def test_drift_sets_a_gauge_beside_what_was_reserved_when_it_was_read() -> None:
    """Not beside the peaks, which are ten times that; nor beside what is reserved once it is over."""
    world = a_world()
    async with world.running():
        assert await world.grant("one", blocks=BLOCKS, expected=BLOCKS // 10)
        face = world.servers["a"].face
        face.running, face.usage = 1, 0.15
        await work(world, 3)
        assert world.status().drift_blocks == pytest.approx(0.05 * BLOCKS)
        await world.ledger.release("one")
        assert world.status().drift_blocks == pytest.approx(0.05 * BLOCKS)
        face.running, face.usage = 0, 0.0
        await work(world, 3)
        assert world.status().drift_blocks == 0
        world.servers["a"].lies["vllm:kv_cache_usage_perc"] = "NaN"
        await work(world, 3)
        assert world.status().drift_blocks is None


class Turnover:
    """One session goes and another comes around each scrape: while its answer is on its way, or just before it began.

    The gauge has what was there when it was read; the ledger never knew of less at that moment.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.number = 0
        self.is_there = False

    async def come(self) -> None:
        if not self.is_there:
            self.is_there, self.number = True, self.number + 1
            assert await self.world.grant(str(self.number), blocks=BLOCKS // 4)
            self.world.servers["a"].face.usage += 0.25

    async def go(self) -> None:
        if self.is_there:
            self.is_there = False
            await self.world.ledger.release(str(self.number))
            self.world.servers["a"].face.usage -= 0.25


@virtual
async def test_what_ends_while_it_is_scraped_is_nobody_elses() -> None:
    world = a_world(running=1, usage=0.5)
    assert await turned_over(world, "come", after="go") > 10


@virtual
async def test_what_came_just_before_a_scrape_is_nobody_elses() -> None:
    """`VIEW_S_MAX` old is what the pool's other questions are answered by."""
    world = a_world(running=1, usage=0.5)
    assert await turned_over(world, "go", before="come") > 10


async def turned_over(world: World, meanwhile: str, *, before: str = "", after: str = "") -> int:
    """How often a session came: one stays, one comes and goes, and none of it is foreign."""
    turns, server = Turnover(world), world.servers["a"]
    async with world.running():
        assert await world.grant("stays", blocks=BLOCKS // 2)
        await turns.come()
        server.before_scrape, server.after_scrape = getattr(turns, before, None), getattr(turns, after, None)
        for _ in range(20):
            await work(world, 1)
            assert world.use().limits.blocks_usable is None
            assert (world.status().drift_blocks or 0) <= 0
            await getattr(turns, meanwhile)()
    return turns.number


@virtual
async def test_of_guaranteed_reservations_only_what_is_above_their_peaks_is_foreign() -> None:
    world = a_world()
    async with world.running():
        assert await world.grant("one", blocks=BLOCKS // 2)
        face = world.servers["a"].face
        face.running, face.usage = 1, 0.5
        await work(world, 5)
        assert world.use().limits.blocks_usable is None
        face.usage = 0.625
        await work(world, 5)
        assert usable(world) == BLOCKS * 7 // 8
        assert world.status().bias == 1.0
        assert not await world.grant("large", blocks=BLOCKS // 2)
        assert await world.grant("fits", blocks=BLOCKS * 3 // 8)


@virtual
async def test_preemptions_beside_foreign_traffic_say_nothing_of_the_ledgers_sums() -> None:
    world = a_world(running=30, usage=1.0)
    async with world.running():
        await work(world, 20, preemptions=3)
        assert world.status().trust == 1.0
        face = world.servers["a"].face
        face.running, face.usage = 0, 0.0
        await work(world, 5)
        assert world.use().limits.blocks_usable is None, (
            "all its room is there again as soon as the others are gone"
        )


@virtual
async def test_a_gauge_that_shows_it_full_for_ever_does_not_starve_the_pool() -> None:
    world = a_world(running=3, usage=1.0)
    async with world.running():
        await work(world, 60)
        assert usable(world) == USABLE_MIN * BLOCKS
        assert await world.grant("whole", blocks=BLOCKS), (
            "an empty engine takes what its whole capacity covers"
        )


@virtual
async def test_a_gauge_that_lies_low_changes_nothing() -> None:
    world = a_world(usage=0.0, running=0)
    async with world.running():
        assert await world.grant("one", blocks=BLOCKS - 10)
        await work(world, 60)
        assert world.use().limits.blocks_usable is None
        assert not await world.grant("two", blocks=11)
        assert await world.grant("three", blocks=10)


@virtual
async def test_numbers_that_stand_still_count_no_longer_than_a_while() -> None:
    world = a_world(running=3, usage=0.5)
    async with world.running():
        await work(world, 5)
        assert usable(world) == 0.5 * BLOCKS
        await asyncio.sleep(STALE_S + 5)
        assert world.use().limits.blocks_usable is None
        assert world.status().trust is None
        await asyncio.sleep(60)
        assert world.accepting()
        assert await world.grant("one", blocks=BLOCKS)


@pytest.mark.parametrize("how", ["missing", "slow"])
def test_metrics_that_go_away_count_no_longer_than_a_while(how: str) -> None:
    async def run() -> None:
        world = a_world(running=3, usage=0.5)
        async with world.running():
            await work(world, 5)
            server = world.servers["a"]
            if how == "missing":
                server.face.metrics = False
            else:
                server.slow_metrics = True
            await asyncio.sleep(STALE_S + 5)
            assert world.use().limits.blocks_usable is None
            assert world.accepting()
            assert world.status().current is False
            age_s = world.status().gauges_age_s
            assert age_s is not None
            assert age_s > STALE_S
            assert await world.grant("one", blocks=BLOCKS)

    run_virtual(run())


@dataclass
class Lie:
    name: str
    lines: dict[str, str]


LIES = [
    Lie("not a number", {"vllm:kv_cache_usage_perc": "NaN", "vllm:num_preemptions_total": "NaN"}),
    Lie("infinite", {"vllm:kv_cache_usage_perc": "+Inf", "vllm:num_preemptions_total": "+Inf"}),
    Lie("negative", {"vllm:kv_cache_usage_perc": "-0.5", "vllm:num_preemptions_total": "-7"}),
    Lie("a percentage", {"vllm:kv_cache_usage_perc": "87.5"}),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_numbers_that_cannot_be_true_are_left_out_and_named(lie: Lie) -> None:
    async def run() -> None:
        world = a_world(running=3, usage=0.0)
        async with world.running():
            await work(world, 2)
            world.servers["a"].lies = lie.lines
            await work(world, 20)
            assert world.use().limits.blocks_usable is None
            assert all(name in str(world.status().last_error) for name in lie.lines)
            assert await world.grant("one", blocks=BLOCKS)

    run_virtual(run())


@virtual
async def test_a_counter_that_jumps_is_one_event() -> None:
    world = a_world(running=3)
    async with world.running():
        await work(world, 2)
        world.servers["a"].face.preemptions = 10**15
        await work(world, 2)
        assert world.status().trust == pytest.approx(TRUST_CUT, abs=0.01)


@virtual
async def test_a_restart_begins_without_a_past() -> None:
    world = a_world(running=3)
    async with world.running():
        await work(world, 30, preemptions=1)
        face = world.servers["a"].face
        face.start_time_s += 100
        face.preemptions = face.generation_tokens = face.running = 0
        await asyncio.sleep(1.2)
        assert world.use().limits.blocks_usable is None
        assert world.status().trust == 1.0


@virtual
async def test_who_is_not_elected_says_nothing_of_it_and_takes_nothing_back() -> None:
    world = a_world(running=3)
    async with world.running():
        await work(world, 5)
        world.ledger.elects = False
        limits = world.use().limits
        await world.ledger.observe(replace(limits, blocks_usable=640))
        told = len(world.ledger.told)
        await work(world, 30, preemptions=1)
        assert len(world.ledger.told) == told
        assert world.status().blocks_usable == 640
        await world.pool.drain("http://a")
        assert world.ledger.told[-1].blocks_usable == 640
        world.ledger.elects = True
        await work(world, 2, preemptions=1)
        assert usable(world) > 640


@virtual
async def test_what_another_process_said_is_put_right_by_the_elected_one() -> None:
    world = a_world(running=3, usage=0.5)
    async with world.running():
        await work(world, 5)
        limits = world.use().limits
        await world.ledger.observe(replace(limits, blocks_usable=None))
        assert usable(world) == BLOCKS
        await work(world, 2)
        assert usable(world) == 0.5 * BLOCKS


@virtual
async def test_gauges_that_stand_still_are_not_told_as_new() -> None:
    world = a_world(running=3, usage=0.5)
    told = world.ledger.settled
    async with world.running():
        await work(world, 5)
        told.clear()
        await asyncio.sleep(20)
        assert not told[1:]
        world.servers["a"].face.running = 0
        world.servers["a"].face.usage = 0.0
        await asyncio.sleep(10)
        assert len(told) > 5, "an idle engine's numbers repeat and are true"


@pytest.mark.parametrize("blocks", [1, 10, 63, 64, 1000, 123_457])
def test_parts_are_never_more_than_there_is(blocks: int) -> None:
    told: int | None = None
    for number in range(401):
        amount = blocks * number / 400
        told = quantised(amount, blocks, told)
        if told is None:
            assert amount > 0.99 * blocks
        else:
            assert told <= amount
            assert amount - told <= RISE_STEPS * max(blocks / STEPS, 1) + 1
    assert told is None
    assert quantised(math.nextafter(0, 1), blocks, None) == 0
