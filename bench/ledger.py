"""What one decision of the memory ledger costs: cycles per second by queue length and number of engines.

    python bench/ledger.py [--seconds 1.0] [--tenants 1]

A cycle is one whole turn of a saturated pool: a running request is released, waiting ones are granted, and
new ones are reserved at the end of the queue. Three loads: *equal*, every request of one size; *mixed*,
sizes up to 60 % of an engine, so that requests are passed and engines are pinned; *forecast*, mixed prompts with
expected lengths in place of peaks. Per second of CPU time, so that a busy machine does not change the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from dataclasses import replace

from ledger_loads import CAPACITY, LOADS, SHAPE, Costs

from kvgate.clock import SystemClock
from kvgate.ledger.base import Ask, RateSpent, Refusal, Ticket
from kvgate.ledger.memory import MemoryLedger

QUEUED = (10, 1_000, 10_000)
ENGINES = (1, 10, 100)


class Pool:
    """A ledger with every engine full, a queue of fixed length, and a task that waits for each request."""

    def __init__(self, queued: int, costs: Costs, tenants: int) -> None:
        self._ledger = MemoryLedger(SystemClock())
        self._queued, self._costs = queued, costs
        self._tenants = itertools.cycle(f"t{number}" for number in range(tenants))
        self._ids = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: list[str] = []
        self._waiting = 0
        self._rng = random.Random(11)

    async def fill(self, engines: int) -> None:
        for number in range(engines):
            await self._ledger.observe(replace(CAPACITY, engine_id=f"http://engine-{number}"))
        await self._top_up()

    async def cycle(self) -> None:
        """Release one, chosen at random, and bring the queue back to its length."""
        place = self._rng.randrange(len(self._running))
        self._running[place], self._running[-1] = self._running[-1], self._running[place]
        await self._ledger.release(self._running.pop())
        await self._top_up()

    async def _top_up(self) -> None:
        await asyncio.sleep(0)
        while self._waiting < self._queued:
            self._waiting += 1
            cost = self._costs()
            request_id, tenant = f"r{next(self._ids)}", next(self._tenants)
            ticket = await self._ledger.reserve(Ask(request_id, tenant, {SHAPE: cost}, 1_000_000))
            task = asyncio.create_task(self._wait(ticket))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(0)

    async def _wait(self, ticket: Ticket | Refusal | RateSpent) -> None:
        if isinstance(ticket, Refusal | RateSpent) or isinstance(await ticket.granted(), Refusal):
            raise TypeError("a saturated pool refuses nothing here")
        self._waiting -= 1
        self._running.append(ticket.request_id)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def cycles_per_s(queued: int, engines: int, costs: Costs, tenants: int, seconds: float) -> float:
    pool = Pool(queued, costs, tenants)
    await pool.fill(engines)
    done, began_s = 0, time.process_time()
    while (passed_s := time.process_time() - began_s) < seconds:
        await pool.cycle()
        done += 1
    await pool.close()
    return done / passed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per cell")
    parser.add_argument("--tenants", type=int, default=1, help="who take turns")
    given = parser.parse_args()
    for name, costs in LOADS.items():
        print(f"{name}, cycles/s (reserve + grant + release)")
        print("  queued " + "".join(f"{engines:>5} engines" for engines in ENGINES))
        for queued in QUEUED:
            cells = [
                asyncio.run(cycles_per_s(queued, engines, costs(), given.tenants, given.seconds))
                for engines in ENGINES
            ]
            print(f"{queued:>8} " + "".join(f"{cell:>13,.0f}" for cell in cells))


if __name__ == "__main__":
    main()
