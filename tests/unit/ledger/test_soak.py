"""Many clients, failing engines and impatient owners in virtual time: every one of them comes to an end."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress

import anyio
import pytest

from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.types import EngineLimits, KVCost
from support.virtual_loop import LoopClock, run_virtual
from unit.ledger.pool import SHAPE, Probe

LONG = os.environ.get("KVGATE_SOAK") == "1"
CLIENTS = 1500
SEEDS = range(200 if LONG else 4)


class Soak:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ledger = MemoryLedger(LoopClock())
        self.ends: Counter[str] = Counter()

    async def main(self) -> None:
        """Arrivals at about the rate the pool can serve; engines change until the last client has ended."""
        for engine_id in "abc":
            await self.ledger.observe(self.limits(engine_id, accepting=True))
        trouble = asyncio.create_task(self.trouble())
        async with anyio.create_task_group() as group:
            for number in range(CLIENTS):
                group.start_soon(self.client, f"r{number}")
                await anyio.sleep(self.rng.expovariate(8.0))
        trouble.cancel()
        with suppress(asyncio.CancelledError):
            await trouble
        self.check()

    def check(self) -> None:
        Probe(self.ledger).assert_empty()
        totals = self.ledger.view().totals
        refused = sum(number for name, number in totals.items() if name.startswith("refused_"))
        assert self.ends.total() == CLIENTS
        assert totals["arrivals"] == totals["grants"] + totals["cancels"] + refused
        assert totals["grants"] == totals["releases"] + totals["voided"]
        assert self.ends["served"] > CLIENTS / 3
        assert totals["bypasses"] > 100, "busy enough to mean something"
        assert totals["voided"] > 10
        assert not self.ledger._tickets

    def limits(self, engine_id: str, *, accepting: bool) -> EngineLimits:
        return EngineLimits(engine_id, SHAPE, self.rng.choice([800, 1000]), 24, 500, accepting)

    async def client(self, request_id: str) -> None:
        """Reserve, wait with a limit, work, and sometimes lose the engine and queue again at the old place."""
        cost = KVCost(self.rng.choice([20, 50, 50, 200, 600]), 1, self.rng.choice([10, 100, 400]))
        seq: int | None = None
        try:
            for _ in range(3):
                ticket = await self.ledger.reserve(Ask(request_id, "t", {SHAPE: cost}, 200, seq))
                if isinstance(ticket, Refusal | RateSpent):
                    self.ends[str(ticket)] += 1
                    return
                decision = None
                with anyio.move_on_after(self.rng.choice([0.5, 30.0, 30.0])):
                    decision = await ticket.granted()
                if not isinstance(decision, Grant):
                    self.ends["gave up" if decision is None else decision] += 1
                    return
                seq = decision.seq
                if await self.work(request_id, cost):
                    self.ends["served"] += 1
                    return
                await self.ledger.release(request_id)
            self.ends["failed"] += 1
        finally:
            with anyio.CancelScope(shield=True):
                await self.ledger.cancel(request_id)

    async def work(self, request_id: str, cost: KVCost) -> bool:
        await anyio.sleep(self.rng.expovariate(5.0))
        await self.ledger.renew(request_id, KVCost(cost.blocks, 1, 0))
        await anyio.sleep(self.rng.expovariate(0.5))
        return self.rng.random() > 0.05

    async def trouble(self) -> None:
        while True:
            await anyio.sleep(self.rng.expovariate(1.0))
            engine_id = self.rng.choice("abc")
            match self.rng.randrange(5):
                case 0:
                    await self.ledger.void(engine_id)
                case 1:
                    await self.ledger.forget(engine_id)
                case _:
                    await self.ledger.observe(self.limits(engine_id, accepting=self.rng.random() < 0.8))


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_everyone_ends_and_nothing_stays(seed):
    run_virtual(Soak(seed).main())
