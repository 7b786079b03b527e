"""Engines and requests for ledger tests: the numbers in one place, so that a test names only its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal
from kvgate_policies.occupancy import GRID, SCALE, Occupancy
from kvgate_policies.types import EngineLimits, EngineShape, KVCost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from kvgate.ledger.base import Ledger, Ticket
    from kvgate_policies.types import EngineUse, TenantUse

SHAPE = EngineShape(block_size=16, max_model_len=4096)
OTHER_SHAPE = EngineShape(block_size=32, max_model_len=4096)


def engine(
    engine_id: str = "a",
    blocks: int = 100,
    seqs: int = 16,
    prefill_tokens: int = 1000,
    accepting: bool = True,
    shape: EngineShape = SHAPE,
    blocks_usable: int | None = None,
) -> EngineLimits:
    return EngineLimits(engine_id, shape, blocks, seqs, prefill_tokens, accepting, blocks_usable)


def cost(blocks: int = 10, seqs: int = 1, prefill_tokens: int = 0) -> KVCost:
    return KVCost(blocks, seqs, prefill_tokens)


def some_occupancy(rng: Random, blocks: int) -> Occupancy:
    """A forecast of at most so many blocks: what is alive gets less with each point, and what it holds more."""
    means: list[int] = []
    variances: list[int] = []
    alive = 1.0
    for point in range(len(GRID)):
        held = blocks * (point + 1 + rng.randint(0, 5)) // (len(GRID) + 5)
        means.append(round(SCALE * alive * held))
        variances.append(round(SCALE * alive * (1.0 - alive) * held * held))
        alive *= rng.choice([1.0, 0.9, 0.5, 0.0])
    return Occupancy(tuple(means), tuple(variances))


def ask(
    request_id: str,
    blocks: int = 10,
    seqs: int = 1,
    prefill_tokens: int = 0,
    depth: int = 100,
    seq: int | None = None,
    avoid: frozenset[str] = frozenset(),
    tenant: str = "tenant",
    **more: Any,
) -> Ask:
    """A request priced for `SHAPE` only; `more` are other fields of `Ask`."""
    costs = {SHAPE: KVCost(blocks, seqs, prefill_tokens)}
    return Ask(request_id, tenant, costs, depth, seq, avoid=avoid, **more)


class HandClock:
    """A `Clock` that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


async def turns(count: int = 40) -> None:
    """Let every task that is ready run: enough for all that a ledger in memory has put off."""
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass
class Probe:
    """Looks at a ledger from outside. `settle` waits until every decision has reached its waiter."""

    ledger: Ledger
    settle: Callable[[], Awaitable[None]] = turns

    async def queue(self, asked: Ask) -> Ticket:
        """Reserve, and expect a ticket."""
        ticket = await self.ledger.reserve(asked)
        assert not isinstance(ticket, Refusal | RateSpent), ticket
        return ticket

    async def start(self, asked: Ask) -> Grant:
        """Reserve, and expect the grant at once."""
        decision = await self.decision(await self.queue(asked))
        assert isinstance(decision, Grant), f"{asked.request_id}: {decision}"
        return decision

    async def wait(self, asked: Ask) -> Ticket:
        """Reserve, and expect it to stay in the queue."""
        ticket = await self.queue(asked)
        assert await self.decision(ticket) is None, f"{asked.request_id} was not to start"
        return ticket

    async def decision(self, ticket: Ticket) -> Grant | Refusal | None:
        """What was decided by now; None while it waits. The wait that asks is cancelled again."""
        waiter = asyncio.ensure_future(ticket.granted())
        await self.settle()
        if waiter.done():
            return waiter.result()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        return None

    async def started(self, *tickets: Ticket) -> list[str]:
        """The ids of those that were granted by now."""
        decisions = [await self.decision(ticket) for ticket in tickets]
        return [decision.request_id for decision in decisions if isinstance(decision, Grant)]

    def use(self, engine_id: str = "a") -> EngineUse:
        (use,) = [use for use in self.ledger.view().engines if use.limits.engine_id == engine_id]
        return use

    def tenant(self, name: str) -> TenantUse:
        (use,) = [use for use in self.ledger.view().tenants if use.name == name]
        return use

    def assert_empty(self) -> None:
        """Everything ended: nothing is queued, reserved or pinned."""
        view = self.ledger.view()
        assert view.queued == 0
        for use in view.engines:
            assert (use.reserved, use.reservations, use.pinned_by) == (KVCost(0, 0, 0), 0, None)
