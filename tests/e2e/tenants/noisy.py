"""One tenant offers ten times what the pool can do. What becomes of another that asks for half of its fair share?

Two tenants of equal weight have half of the pool each for their fair share, so the victim offers a quarter of the
pool's capacity, at random times. Its waits are taken in four situations:

* *empty*: nobody else is there. It waits for nothing, so there is no wait to compare with.
* *full*: a neighbour keeps every place of the pool busy and wants no more than that: as many clients as there are
  places, one request after the other each. The victim is as good as alone in the queue, and waits until one running
  request ends. Without preemption no policy can do better on a pool in use; this is "its wait alone".
* *flooded*: the neighbour offers ten times the capacity, at random times, come what may.
* *unfair*: the same, but both are one tenant, in one queue, first come first served.

*Full* and *flooded* are taken in turns, with the victim's requests at the same times, so that a machine that is slower
for a while is so in both. The capacity is measured first: requests per second of a pool under standing load.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from e2e.shared.rig import until
from e2e.tenants.clients import Answered, Client
from e2e.tenants.rig import QUEUE_DEPTH_FLOODED, SIZES, Deployment
from kvgate.load.report import percentile

FLOOD = 10
VICTIM_SHARE = 1 / 4
"""Of the capacity: half of a half."""
SITUATIONS = ("empty", "full", "flooded", "unfair")


@dataclass
class Waits:
    """What happened to the victim in one situation, all turns together."""

    answers: list[Answered] = field(default_factory=list)
    others_sent: int = 0
    others_served: int = 0
    seconds: float = 0.0

    @property
    def served(self) -> list[Answered]:
        return [one for one in self.answers if one.served]

    @property
    def refused_share(self) -> float:
        return 1 - len(self.served) / max(len(self.answers), 1)

    def within(self, wait_ms: float) -> float:
        """The share of all that were sent which was served after such a wait at most."""
        return len([one for one in self.served if one.queue_ms <= wait_ms]) / max(len(self.answers), 1)

    def wait_ms(self, percent: float) -> float:
        """Of those that were served."""
        return percentile((one.queue_ms for one in self.served), percent) or 0.0

    def add(self, victims: Sequence[Answered], other: Client | None, since_s: float) -> None:
        now_s = time.monotonic()
        self.answers += victims
        self.seconds += now_s - since_s
        if other is not None:
            self.others_sent += other.sent_since(since_s)
            self.others_served += len([one for one in other.answers if one.served and one.ended_s >= since_s])


@dataclass
class Noise:
    """All that was measured."""

    capacity_per_s: float
    waits: dict[str, Waits]

    @property
    def ratio(self) -> float:
        """Of the victim's p99 waits: beside the flood to alone."""
        return self.waits["flooded"].wait_ms(99) / max(self.waits["full"].wait_ms(99), 1.0)

    @property
    def bound_ms(self) -> float:
        """What is promised: twice the p99 wait alone."""
        return 2 * self.waits["full"].wait_ms(99)

    def offered(self, situation: str) -> float:
        """By the neighbour, times the capacity."""
        waits = self.waits[situation]
        return waits.others_sent / waits.seconds / self.capacity_per_s

    def done(self, situation: str) -> float:
        """By the pool, of its capacity."""
        waits = self.waits[situation]
        return (waits.others_served + len(waits.served)) / waits.seconds / self.capacity_per_s


async def noise(deployed: Deployment, turn_s: float, turns: int) -> Noise:
    """Measure it all: about (2 + 2 × turns) × `turn_s`, and some seconds between."""
    found = Noise(await capacity_per_s(deployed, turn_s / 2), {name: Waits() for name in SITUATIONS})
    by_turns = [(situation, turn) for turn in range(turns) for situation in ("full", "flooded")]
    for situation, turn in [("empty", turns), *by_turns, ("unfair", turns)]:
        for_s = turn_s / 2 if situation == "empty" else turn_s
        await _turn(deployed, found, situation, for_s, seed=turn)
        await deployed.empty()
    return found


async def capacity_per_s(deployed: Deployment, for_s: float) -> float:
    async with deployed.client("everyone") as everyone:
        everyone.stand(2 * SIZES.sessions)
        await anyio.sleep(2 * SIZES.session_s)
        start_s = time.monotonic()
        await anyio.sleep(for_s)
        served = [one for one in everyone.answers if one.served and one.ended_s >= start_s]
        took_s = time.monotonic() - start_s
    await deployed.empty()
    return len(served) / took_s


async def _turn(deployed: Deployment, found: Noise, situation: str, turn_s: float, seed: int) -> None:
    name = "everyone" if situation == "unfair" else "victim"
    async with _neighbour(deployed, found, situation, seed) as other, deployed.client(name, seed) as victim:
        start_s = time.monotonic()
        await victim.offer(found.capacity_per_s * VICTIM_SHARE, turn_s)
        found.waits[situation].add(victim.answers, other, start_s)


@asynccontextmanager
async def _neighbour(
    deployed: Deployment, found: Noise, situation: str, seed: int
) -> AsyncIterator[Client | None]:
    if situation == "empty":
        yield None
        return
    name = "everyone" if situation == "unfair" else "noisy"
    async with deployed.client(name, 100 + seed) as client:
        if situation == "full":
            client.stand(SIZES.sessions)
        else:
            client.flood(FLOOD * found.capacity_per_s)
        await _settled(deployed, name, situation)
        yield client


async def _settled(deployed: Deployment, name: str, situation: str) -> None:
    """Every place taken; in a flood the queue is full, too."""
    queued = 0 if situation == "full" else QUEUE_DEPTH_FLOODED * 3 // 4

    async with deployed.looking() as look:

        async def so() -> bool:
            use = (await look())[name]
            return use.reservations >= SIZES.sessions - 1 and use.queued >= queued

        await until(so, f"{situation}: a full pool")
    if situation == "full":
        await anyio.sleep(2 * SIZES.session_s)


def table(found: Noise) -> list[str]:
    """For people."""
    lines = [
        f"capacity {found.capacity_per_s:.1f} requests a second; {SIZES.sessions} at once, {SIZES.session_s:.2f} s the longest",
        f"{'':<10}{'neighbour':>10}{'pool busy':>10}{'victim':>8}{'refused':>9}{'p50 ms':>8}{'p90 ms':>8}{'p99 ms':>8}{'in bound':>10}",
    ]
    for name, waits in found.waits.items():
        lines.append(
            f"{name:<10}{found.offered(name):>9.1f}x{found.done(name):>10.0%}{len(waits.answers):>8}"
            f"{waits.refused_share:>9.0%}"
            + "".join(f"{waits.wait_ms(p):>8.0f}" for p in (50, 90, 99))
            + f"{waits.within(found.bound_ms):>10.0%}"
        )
    return [*lines, f"p99 beside the flood is {found.ratio:.2f} times that alone"]
