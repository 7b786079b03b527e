"""Whatever happens to a client, the ledger ends empty: errors, cancels at every await point, dropped tickets."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import anyio
import pytest

from kvgate.ledger.base import Grant, RateSpent, Refusal
from kvgate.ledger.memory import MemoryLedger
from unit.ledger.pool import HandClock, Probe, ask, engine

if TYPE_CHECKING:
    from kvgate.ledger.base import Ask

STEPS_MAX = 12
"""More turns of the loop than a client lives for."""


@pytest.fixture
async def probe() -> Probe:
    ledger = MemoryLedger(HandClock())
    await ledger.observe(engine())
    return Probe(ledger)


async def client(probe: Probe, asked: Ask, *, fail: bool = False) -> None:
    """The shape of every user of a ledger: ask, wait, work in a few steps, give back by every door."""
    try:
        ticket = await probe.ledger.reserve(asked)
        if isinstance(ticket, Refusal | RateSpent):
            return
        assert isinstance(await ticket.granted(), Grant)
        for _ in range(3):
            await asyncio.sleep(0)
        if fail:
            raise ConnectionResetError(asked.request_id)
    finally:
        with anyio.CancelScope(shield=True):
            await probe.ledger.release(asked.request_id)


@pytest.mark.parametrize("steps", range(STEPS_MAX))
@pytest.mark.parametrize("busy", [False, True], ids=["granted at once", "has to wait"])
async def test_cancel_at_every_await_point(probe, steps, busy):
    if busy:
        await probe.start(ask("x", blocks=100))
    task = asyncio.create_task(client(probe, ask("r", blocks=60)))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await probe.ledger.release("x")
    probe.assert_empty()


@pytest.mark.parametrize("steps", range(STEPS_MAX))
async def test_cancel_at_every_turn_around_the_grant(probe, steps):
    """The grant comes two turns in, the cancel before, with and after it; the next in line is never forgotten."""
    await probe.start(ask("x", blocks=100))
    task = asyncio.create_task(client(probe, ask("r", blocks=100)))
    following = asyncio.create_task(client(probe, ask("next", blocks=100)))
    for step in range(STEPS_MAX):
        await asyncio.sleep(0)
        if step == 2:
            await probe.ledger.release("x")
        if step == steps:
            task.cancel()
    await asyncio.wait_for(following, 1)
    await asyncio.gather(task, return_exceptions=True)
    probe.assert_empty()


async def test_an_error_of_the_work_gives_everything_back(probe):
    tasks = [asyncio.create_task(client(probe, ask(f"r{n}", blocks=40), fail=n % 2 == 0)) for n in range(20)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, ConnectionResetError) for result in results) == 10
    probe.assert_empty()


async def test_a_waiter_that_is_cancelled_keeps_its_place_until_its_owner_leaves(probe):
    await probe.start(ask("x", blocks=100))
    ticket = await probe.wait(ask("r", blocks=100))
    behind = await probe.wait(ask("behind", blocks=100))
    waiter = asyncio.create_task(ticket.granted())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    await probe.ledger.release("x")
    assert await probe.started(behind) == []
    assert probe.use().reservations == 1
    await probe.ledger.cancel("r")
    assert await probe.started(behind) == ["behind"]


async def test_a_dropped_ticket_is_ended_by_its_id(probe):
    await probe.start(ask("x", blocks=100))
    for number in range(5):
        await probe.ledger.reserve(ask(f"r{number}"))
    gc.collect()
    assert probe.ledger.view().queued == 5
    await probe.ledger.release("x")
    for number in range(5):
        await probe.ledger.cancel(f"r{number}")
    probe.assert_empty()


async def test_a_whole_group_that_is_torn_down_leaves_nothing(probe):
    with anyio.move_on_after(0.02):
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(client, probe, ask(f"r{number}", blocks=100))
            group.start_soon(asyncio.Event().wait)
    probe.assert_empty()


async def test_a_waiter_left_behind_by_its_owner_is_told_so(probe):
    await probe.start(ask("x", blocks=100))
    ticket = await probe.wait(ask("r"))
    waiter = asyncio.create_task(ticket.granted())
    await asyncio.sleep(0)
    await probe.ledger.cancel("r")
    with pytest.raises(RuntimeError, match="request r was ended"):
        await asyncio.wait_for(waiter, 1)
