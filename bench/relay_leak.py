"""Does anything stay behind? Thousands of requests and streams, one in twenty left by its client.

A first, smaller round fills what is filled once (pools, caches, the allocator's arenas); after the second,
larger one the tasks have to be those of before, the ledger at zero, and the memory flat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
from relay_children import Child
from relay_load import Seen, connect, request_bytes

REQUESTS = 5000
STREAMS = 1000
EVENTS = 20
LEFT_EVERY = 20
"""One client in so many leaves in the middle."""
CONNECTIONS = 16
GROWTH_MB_MAX = 4.0
"""Beyond the noise of the allocator, and less than a KB for each request."""
SETTLED_S_MAX = 15.0


@dataclass(frozen=True, slots=True)
class Leaks:
    requests: int
    streams: int
    left: int
    errors: int
    tasks_before: int
    tasks_after: int
    objects_grown: int
    rss_before_mb: float
    rss_after_mb: float
    queued: int
    reservations: int

    @property
    def ok(self) -> bool:
        still = self.queued or self.reservations or self.tasks_after > self.tasks_before
        return not still and not self.errors and self.rss_after_mb - self.rss_before_mb < GROWTH_MB_MAX

    def text(self) -> str:
        grown = self.rss_after_mb - self.rss_before_mb
        return (
            f"\nleak check: {'good' if self.ok else 'BAD'}: {self.requests} requests and {self.streams} streams, "
            f"{self.left} of them left by the client, {self.errors} errors\n"
            f"  tasks {self.tasks_before} → {self.tasks_after}, RSS {self.rss_before_mb:.1f} → "
            f"{self.rss_after_mb:.1f} MB ({grown:+.1f}), objects {self.objects_grown:+d}, "
            f"ledger: {self.queued} queued, {self.reservations} reservations"
        )


async def check_leaks(upstream: str, core: int) -> Leaks:
    gate = Child("relay_gate.py", upstream, core=core)
    try:
        await _round(gate.url, REQUESTS, STREAMS // 2)
        before = await _settled(gate)
        rss_before = _rss_mb(gate)
        left, errors = await _round(gate.url, REQUESTS, STREAMS)
        after = await _settled(gate)
        return Leaks(
            requests=REQUESTS,
            streams=STREAMS,
            left=left,
            errors=errors,
            tasks_before=before["tasks"],
            tasks_after=after["tasks"],
            objects_grown=after["objects"] - before["objects"],
            rss_before_mb=rss_before,
            rss_after_mb=_rss_mb(gate),
            queued=after["queued"],
            reservations=after["reservations"],
        )
    finally:
        gate.close()


async def _round(url: str, requests: int, streams: int) -> tuple[int, int]:
    """Clients that left, and answers that were none."""
    seen = Seen()
    left = 0
    for total, request in ((requests, request_bytes()), (streams, request_bytes(EVENTS, 1))):
        numbers = iter(range(total))
        counts = await asyncio.gather(*(_visit(url, request, numbers, seen) for _ in range(CONNECTIONS)))
        left += sum(counts)
    return left, seen.errors


async def _visit(url: str, request: bytes, numbers: Iterator[int], seen: Seen) -> int:
    """One client after another until the numbers are out: most stay for a whole answer, some leave."""
    left = 0
    for number in numbers:
        [client] = await connect(url, 1, request, seen, more=lambda: False)
        if number % LEFT_EVERY == 0:
            client.waiting = asyncio.get_running_loop().create_future()
            streaming = request != request_bytes()
            await (client.waiting if streaming else asyncio.sleep(0))
            client.close()
            left += 1
        else:
            await client.over
    return left


async def _settled(gate: Child) -> dict[str, int]:
    """The state when nothing is in the house any more; the last one seen if that never comes."""
    deadline = time.monotonic() + SETTLED_S_MAX
    told = gate.ask()
    fewest = told["tasks"]
    while time.monotonic() < deadline:
        await asyncio.sleep(0.3)
        told = gate.ask()
        if not (told["active"] or told["queued"] or told["reservations"]):
            fewest = min(fewest, told["tasks"])
            break
    for _ in range(5):  # a probe of the moment is a task too
        await asyncio.sleep(0.1)
        told = gate.ask()
        fewest = min(fewest, told["tasks"])
    return {**told, "tasks": fewest}


def _rss_mb(gate: Child) -> float:
    return float(psutil.Process(gate.pid).memory_info().rss) / 2**20
