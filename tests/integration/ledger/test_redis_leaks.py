"""Whatever happens to a client of a shared ledger, at whichever await: nothing stays behind."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from integration.ledger.ledgers import queue, refresh, shared, start
from kvgate.ledger.base import Grant, RateSpent, Refusal
from support.redis_server import FaultProxy
from unit.ledger.pool import ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvgate.ledger.base import Ask
    from kvgate.ledger.redis import RedisLedger

pytestmark = pytest.mark.integration
STEPS_MAX = 30
"""More turns of the loop than a reserve, a grant and a release take when nothing else is to be done."""


@pytest.fixture
async def ledger(redis_server) -> AsyncIterator[RedisLedger]:
    async with shared(redis_server.url) as ledger:
        await ledger.observe(engine())
        yield ledger


async def client(ledger: RedisLedger, asked: Ask, *, fail: bool = False) -> None:
    """The shape of every user of a ledger: ask, wait, work in a few steps, give back by every door."""
    try:
        ticket = await ledger.reserve(asked)
        if isinstance(ticket, Refusal | RateSpent):
            return
        assert isinstance(await ticket.granted(), Grant)
        for _ in range(3):
            await asyncio.sleep(0)
        if fail:
            raise ConnectionResetError(asked.request_id)
    finally:
        with anyio.CancelScope(shield=True):
            await ledger.release(asked.request_id)


async def assert_empty(ledger: RedisLedger) -> None:
    for _ in range(2):  # the second beat says what the first one's pump may have brought
        await refresh(ledger)
    view = ledger.view()
    assert (view.queued, [use.reserved for use in view.engines]) == (0, [cost(0, 0)])
    assert [use.pinned_by for use in view.engines] == [None]
    assert (ledger._table.held(), ledger._table.waiting()) == ([], [])
    assert await ledger._scripts.verify() == []


@pytest.mark.parametrize("busy", [False, True], ids=["granted at once", "has to wait"])
async def test_cancel_at_every_turn(ledger, busy):
    for steps in range(STEPS_MAX):
        if busy:
            await start(ledger, ask("x", blocks=100))
        task = asyncio.create_task(client(ledger, ask("r", blocks=60)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await ledger.release("x")
        await assert_empty(ledger)


async def test_cancel_of_a_bare_reserve_leaves_nothing(ledger):
    """Nobody ends it: the owner never got a ticket."""
    for steps in range(STEPS_MAX):
        task = asyncio.create_task(ledger.reserve(ask("r", blocks=60)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            await ledger.cancel("r")
        await assert_empty(ledger)


async def test_cancel_at_every_moment_around_the_grant(ledger):
    """The grant is on its way while the client leaves; the next in line is never forgotten."""
    for steps in range(STEPS_MAX):
        await start(ledger, ask("x", blocks=100))
        task = asyncio.create_task(client(ledger, ask("r", blocks=100)))
        following = asyncio.create_task(client(ledger, ask("next", blocks=100)))
        await refresh(ledger)
        release = asyncio.create_task(ledger.release("x"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(task, release, following, return_exceptions=True)
        assert following.exception() is None
        await assert_empty(ledger)


async def test_a_whole_group_that_is_torn_down_leaves_nothing(ledger):
    for wait_s in (0.0, 0.001, 0.005, 0.02):
        with anyio.move_on_after(wait_s):
            async with anyio.create_task_group() as group:
                for number in range(50):
                    group.start_soon(client, ledger, ask(f"r{number}", blocks=100))
                group.start_soon(asyncio.Event().wait)
        await assert_empty(ledger)


async def test_errors_of_the_work_give_everything_back(ledger):
    tasks = [asyncio.create_task(client(ledger, ask(f"r{n}", blocks=40), fail=n % 2 == 0)) for n in range(20)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, ConnectionResetError) for result in results) == 10
    await assert_empty(ledger)


async def test_a_tangle_of_clients_over_a_line_that_keeps_breaking(redis_server):
    """Cancels, failures, outages and recoveries in random order; in the end nothing is left."""
    dice = random.Random(11)
    async with FaultProxy(redis_server.port) as line, shared(line.url) as ledger:
        await ledger.observe(engine())

        async def restless(name: str) -> None:
            task = asyncio.create_task(
                client(ledger, ask(name, blocks=dice.choice([10, 40, 100]), depth=500))
            )
            await asyncio.sleep(dice.uniform(0, 1.5))
            if dice.random() < 0.5:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def breaking() -> None:
            for _ in range(6):
                await asyncio.sleep(dice.uniform(0.05, 0.3))
                getattr(line, dice.choice(["reset", "hang", "drop"]))()
                await asyncio.sleep(dice.choice([0.05, 0.7]))
                line.heal()

        await asyncio.gather(breaking(), *(restless(f"r{number}") for number in range(150)))
        line.heal()
        while not ledger.up:
            await asyncio.sleep(0.01)
        for _ in range(6):  # withdrawals are repeated for a few beats
            await refresh(ledger)
        await assert_empty(ledger)


async def test_two_at_the_same_id_are_an_error_also_while_the_first_is_on_its_way(ledger):
    answers: Any = await asyncio.gather(
        ledger.reserve(ask("r")), ledger.reserve(ask("r")), return_exceptions=True
    )
    assert isinstance(answers[1], ValueError)
    assert not isinstance(answers[0], BaseException)
    await ledger.cancel("r")
    await assert_empty(ledger)


async def test_a_request_that_queues_again_is_not_taken_for_its_former_self(ledger):
    """Its old grant is cancelled while still unread, and it queues again under the same id and place."""
    for _ in range(20):
        ticket = await queue(ledger, ask("r", blocks=60))
        await ledger.cancel("r")
        grant = await start(ledger, ask("r", blocks=60, seq=ticket.seq))
        assert grant.seq == ticket.seq
        await ledger.release("r")
    await assert_empty(ledger)
