"""Engines that get no new work: here at once, everywhere by the ledger, and not forgotten while it is away."""

from __future__ import annotations

import anyio
import pytest

from kvgate.assembly.drains import Drains
from kvgate.assembly.shared import DRAIN_S_MAX, SharedChanges
from unit.assembly.fakes import Hand, a_house, ledger_of, settings

ONE, TWO = "http://a-1:8000", "http://a-2:8000"


class Process:
    """What one process knows; two of them may share the ledgers."""

    def __init__(self, like: Process | None = None) -> None:
        self.clock: Hand = Hand() if like is None else like.clock
        self.house = a_house(settings("a"), self.clock)
        self.ledger = ledger_of(self.house)
        if like is not None:
            object.__setattr__(self.house.pools.lines[0], "ledger", like.ledger)
        self.shared = SharedChanges(self.house.pools, self.clock)
        self.drains = Drains(self.house.pools, self.shared)

    async def follow(self) -> None:
        await self.drains.pass_on()
        await self.shared.read()
        await self.drains.apply()

    def draining(self) -> set[str]:
        backends = self.house.pools.lines[0].engine_pool._backends.values()
        return {engine.id for backend in backends for engine in backend.engines if engine.draining}


async def test_what_one_is_told_all_do() -> None:
    one = Process()
    two = Process(like=one)
    assert await one.drains.tell("a", ONE, drained=True) is True
    assert (one.draining(), two.draining()) == ({ONE}, set())
    await two.follow()
    assert two.draining() == {ONE}
    await two.drains.tell("a", ONE, drained=False)
    await one.follow()
    assert (one.draining(), two.draining()) == (set(), set())


async def test_it_holds_here_while_the_ledger_is_away_and_is_passed_on_then() -> None:
    one = Process()
    two = Process(like=one)
    await one.follow()
    one.ledger.away = True
    assert await one.drains.tell("a", ONE, drained=True) is False
    await one.follow()
    assert one.draining() == {ONE}
    one.ledger.away = False
    await one.follow()
    await two.follow()
    assert (one.draining(), two.draining()) == ({ONE}, {ONE})


async def test_the_last_word_counts_when_several_could_not_be_passed_on() -> None:
    one = Process()
    one.ledger.away = True
    await one.drains.tell("a", ONE, drained=True)
    await one.drains.tell("a", TWO, drained=True)
    await one.drains.tell("a", ONE, drained=False)
    one.ledger.away = False
    await one.follow()
    assert one.draining() == {TWO}
    assert set(await one.ledger.overrides()) == {f"engine:{TWO}"}


async def test_it_is_kept_for_longer_than_the_ledger_would() -> None:
    one = Process()
    await one.drains.tell("a", ONE, drained=True)
    for _ in range(5):
        one.clock.now_s += DRAIN_S_MAX * 0.6
        await one.follow()
        await one.follow()
        assert one.draining() == {ONE}


async def test_what_a_predecessor_knew_holds_until_the_ledger_says_otherwise() -> None:
    one = Process()
    one.ledger.away = True
    one.drains.assume(ONE)
    one.drains.assume("http://not-there")
    await one.follow()
    assert one.draining() == {ONE}
    one.ledger.away = False
    await one.follow()
    assert one.draining() == set()


async def test_an_order_that_falls_into_a_look_is_not_undone_by_it() -> None:
    one = Process()
    for engine_id in (ONE, TWO):
        await one.drains.tell("a", engine_id, drained=True)
    pool = one.house.pools.lines[0].engine_pool
    drain, begun, go_on = pool.drain, anyio.Event(), anyio.Event()

    async def slow(engine_id: str) -> None:
        begun.set()
        await go_on.wait()
        await drain(engine_id)

    pool.drain = slow  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.follow)
        await begun.wait()
        tasks.start_soon(lambda: one.drains.tell("a", TWO, drained=False))
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    assert one.draining() == {ONE}


async def test_a_backend_on_its_way_out_is_not_called_back() -> None:
    one = Process()
    pool = one.house.pools.lines[0].engine_pool
    await one.drains.tell("a", ONE, drained=True)
    pool._backends[ONE].leaving = True
    await one.drains.tell("a", ONE, drained=False)
    assert one.draining() == {ONE}


@pytest.mark.parametrize(("pool", "engine"), [("x", ONE), ("a", "http://x")])
async def test_unknown_pools_and_engines(pool: str, engine: str) -> None:
    one = Process()
    with pytest.raises(KeyError):
        await one.drains.tell(pool, engine, drained=True)
    assert dict(await one.ledger.overrides()) == {}
