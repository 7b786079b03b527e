"""What one decision of the shared ledger costs the server, by queue length and number of engines.

    python bench/ledger_redis.py [--cycles 300] [--flavour redis|valkey]

A cycle is one whole turn of a saturated pool: a running request is released, waiting ones are granted, and new
ones are reserved at the end of the queue. Three loads, as in `ledger.py`: *equal* sizes, *mixed* ones, so that
requests are passed and engines are pinned, and *forecasts*. Calls are sent in pipelines, so what is measured is the
server.

Two numbers for each cell: cycles per second of the server's own CPU time (one core), and the time inside the
scripts per grant (`INFO commandstats`). Medians over rounds; counters, not clocks, so that a busy machine
changes little.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis.asyncio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ledger_loads import CAPACITY, LOADS, SHAPE, Costs

from kvgate.ledger.base import Ask
from kvgate.ledger.scripts import Granted, LedgerScripts, Sums, read_entry
from kvgate_policies.types import ZERO_COST
from support.redis_server import RedisServer

QUEUED = (10, 1_000, 10_000)
ENGINES = (1, 4, 10, 100)
ROUNDS = 5
TOGETHER = 16
"""Cycles whose calls leave in one pipeline."""


class Pipelined:
    """A client for the scripts whose calls are gathered and sent together."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._calls: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = []

    async def execute_command(self, *args: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._calls.append((args, answer))
        return await answer

    async def send(self) -> None:
        await asyncio.sleep(0)
        calls, self._calls = self._calls, []
        pipe = self._client.pipeline(transaction=False)
        for args, _ in calls:
            pipe.execute_command(*args)
        answers = await pipe.execute(raise_on_error=False)
        for (_, future), answer in zip(calls, answers, strict=True):
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        await asyncio.sleep(0)


@dataclass
class Cost:
    cycles_per_s: float
    """Of the server's CPU time."""
    us_per_grant: float
    """In scripts."""


class Pool:
    """Every engine full and a queue of fixed length, owned by one process."""

    def __init__(self, server: RedisServer, queued: int, costs: Costs) -> None:
        self._client = redis.asyncio.Redis(host="127.0.0.1", port=server.port)
        self._line = Pipelined(self._client)
        self._scripts = LedgerScripts(self._line, "bench", grace_ms=0, lease_ms=3_600_000)
        self._queued, self._costs = queued, costs
        self._ids, self._rng = itertools.count(), random.Random(11)
        self._running: list[Granted] = []
        self._waiting = self._rel = self._ack = 0
        self._last = b"0-0"

    async def _send(self, *calls: Any) -> None:
        tasks = [asyncio.ensure_future(call) for call in calls]
        while not all(task.done() for task in tasks):
            await self._line.send()
        for task in tasks:
            task.result()

    async def fill(self, engines: int) -> None:
        await self.beat()
        limits = [replace(CAPACITY, engine_id=f"http://engine-{n}:8000") for n in range(engines)]
        for batch in range(0, engines, 10):
            await self._send(*(self._scripts.observe("p", one) for one in limits[batch : batch + 10]))
        await self.top_up()

    async def beat(self) -> None:
        """As every 250 ms: the sums are absolute, and what was granted is acknowledged."""
        sums: dict[tuple[str, str], Sums] = {}
        for grant in self._running:
            key = grant.engine_id, grant.tenant
            before = sums.get(key, Sums(ZERO_COST, 0, 0))
            used = before.used_blocks + grant.cost.use_blocks
            sums[key] = Sums(before.cost + grant.cost, before.reservations + 1, used)
        await self._send(self._scripts.beat("p", ack=self._ack, rel=self._rel, sums=sums, closed=()))

    async def cycles(self, number: int) -> int:
        """Release some, chosen at random, and bring the queue back to its length; how many were granted."""
        before = len(self._running)
        calls = []
        for _ in range(min(number, len(self._running))):
            place = self._rng.randrange(len(self._running))
            self._running[place], self._running[-1] = self._running[-1], self._running[place]
            grant = self._running.pop()
            self._rel += 1
            calls.append(self._scripts.release("p", self._rel, grant.engine_id, grant.tenant, grant.cost))
        left = before - len(calls)
        await self._send(*calls)
        await self.top_up()
        return len(self._running) - left

    async def top_up(self) -> None:
        await self._read()
        while self._waiting < self._queued:
            missing = min(self._queued - self._waiting, 64)
            self._waiting += missing
            await self._send(
                *(self._scripts.reserve("p", self._ask(), ack=self._ack) for _ in range(missing))
            )
            await self._read()

    def _ask(self) -> Ask:
        return Ask(f"r{next(self._ids)}", "t", {SHAPE: self._costs()}, 1_000_000)

    async def _read(self) -> None:
        for entry_id, fields in await self._client.xrange(self._scripts.stream_key, b"(" + self._last):
            self._last = entry_id
            entry = read_entry(fields)
            if isinstance(entry, Granted):
                self._ack = entry.gseq
                self._running.append(entry)
                self._waiting -= 1

    async def spent(self) -> tuple[float, float]:
        """Server CPU (s), and time in scripts (µs), since its start."""
        cpu = await self._client.info("cpu")
        stats = await self._client.info("commandstats")
        scripts = sum(stats[name]["usec"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)
        return cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"], scripts

    async def close(self) -> None:
        await self._client.aclose()


async def measure(server: RedisServer, queued: int, engines: int, costs: Costs, cycles: int) -> Cost:
    server.flush()
    pool = Pool(server, queued, costs)
    await pool.fill(engines)
    rates: list[float] = []
    spent: list[float] = []
    for _ in range(ROUNDS):
        await pool.beat()
        cpu, scripts = await pool.spent()
        done = granted = 0
        while done < cycles:
            granted += await pool.cycles(TOGETHER)
            done += TOGETHER
        cpu_after, scripts_after = await pool.spent()
        rates.append(done / max(cpu_after - cpu, 1e-6))
        spent.append((scripts_after - scripts) / max(granted, 1))
    await pool.close()
    return Cost(statistics.median(rates), statistics.median(spent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=300, help="per round and cell")
    parser.add_argument("--flavour", choices=("redis", "valkey"), default=None)
    options = parser.parse_args()
    with RedisServer(flavour=options.flavour) as server:
        for name, costs in LOADS.items():
            print(
                f"{name}: cycles per s of server CPU | µs in scripts per grant (× that at {QUEUED[0]} queued)"
            )
            print("  queued " + "".join(f"{engines:>15} engines" for engines in ENGINES))
            first: dict[int, float] = {}
            for queued in QUEUED:
                cells = []
                for engines in ENGINES:
                    cost = asyncio.run(measure(server, queued, engines, costs(), options.cycles))
                    base = first.setdefault(engines, cost.us_per_grant)
                    growth = cost.us_per_grant / base
                    cells.append(f"{cost.cycles_per_s:>8,.0f} |{cost.us_per_grant:>6,.0f} ({growth:.1f})")
                print(f"{queued:>8} " + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
