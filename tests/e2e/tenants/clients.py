"""One tenant's requests: one by one, one after the other from many clients, or at random times whatever comes back."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from kvgate.load import Session
from support.replicas import MODEL, Fleet

OPEN_MAX = 2_000
"""Requests of one client that are under way; what is offered above it would only wait in the client."""
PAUSE_AFTER_REFUSAL_S = 0.1
SEEDS = 1_000_000
"""Requests of one client before it would repeat those of the next."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request and its answer. Times are seconds of one monotonic clock."""

    sent_s: float
    ended_s: float
    status: int
    queue_ms: int
    """As kvgate says; 0 for a refused one."""
    reason: str | None
    retry_after_ms: int | None

    @property
    def served(self) -> bool:
        return self.status == 200

    @property
    def granted_s(self) -> float:
        """About when it had its room; only for served ones."""
        return self.sent_s + self.queue_ms / 1000


@dataclass
class Client:
    """One tenant's traffic, spread over the replicas."""

    tenant: str
    _http: aiohttp.ClientSession
    _fleet: Fleet
    _seed: int
    answers: list[Answered] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def ask(self, session: Session | None = None) -> Answered:
        """One request; its answer is kept, too."""
        number, sent_s = len(self.sent_s), time.monotonic()
        self.sent_s.append(sent_s)
        if session is None:
            [session] = self._fleet.sizes.workload(1, seed=self._seed * SEEDS + number).sessions
        url = self._fleet.urls[number % len(self._fleet.urls)] + session.path
        async with self._http.post(url, json=_body(session)) as answer:
            await answer.read()
        done = _answered(answer, sent_s)
        self.answers.append(done)
        return done

    def stand(self, clients: int) -> None:
        """So many that send one request after the other, refused or not, from now on."""
        self._tasks += [asyncio.create_task(self._one_after_the_other()) for _ in range(clients)]

    async def _one_after_the_other(self) -> None:
        while True:
            if not (await self.ask()).served:
                await asyncio.sleep(PAUSE_AFTER_REFUSAL_S)

    def flood(self, per_s: float) -> None:
        """Send at this rate on average, at random times, whatever becomes of them, from now on."""
        self._tasks.append(asyncio.create_task(self._at_random(per_s, float("inf"))))

    async def offer(self, per_s: float, for_s: float) -> None:
        """The same for a while; returns when all are answered."""
        await self._at_random(per_s, for_s)

    async def _at_random(self, per_s: float, for_s: float) -> None:
        """A Poisson process by the clock: a client that is late catches up."""
        chance = random.Random(self._seed)
        start_s, due_s = time.monotonic(), chance.expovariate(per_s)
        async with asyncio.TaskGroup() as sending:
            underway: set[asyncio.Task[Answered]] = set()
            while due_s < for_s:
                await asyncio.sleep(max(start_s + due_s - time.monotonic(), 0))
                if len(underway) < OPEN_MAX:
                    task = sending.create_task(self.ask())
                    underway.add(task)
                    task.add_done_callback(underway.discard)
                due_s += chance.expovariate(per_s)

    async def stop(self) -> None:
        """Leave: what waits or runs is broken off. Raises what the clients ran into."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ended:
            if isinstance(end, Exception):
                raise end

    def served(self, since_s: float = 0.0, until_s: float = float("inf")) -> list[Answered]:
        """Those that were granted in a time."""
        return [one for one in self.answers if one.served and since_s <= one.granted_s < until_s]

    def sent_since(self, since_s: float) -> int:
        return sum(1 for at_s in self.sent_s if at_s >= since_s)


def _body(session: Session) -> dict[str, Any]:
    """Not streamed: what is asked of the client itself is little."""
    length = {"max_tokens": session.output_tokens, "ignore_eos": True}
    return {"model": MODEL, "prompt": session.prompt, "temperature": 0, **length}


def _answered(answer: aiohttp.ClientResponse, sent_s: float) -> Answered:
    headers = answer.headers
    retry = headers.get("retry-after-ms")
    return Answered(
        sent_s,
        time.monotonic(),
        answer.status,
        int(headers.get("x-kvgate-queue-ms", 0)),
        headers.get("x-kvgate-reason"),
        None if retry is None else int(retry),
    )
