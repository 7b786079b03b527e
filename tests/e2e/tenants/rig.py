"""A deployment with tenants, clients that have a key, and what the ledger says of each tenant.

One `Deployment` serves every test here: engines and replicas take longer to start than a test takes. Each test has
tenants of its own, and leaves the pool empty. What is asserted is counted in grants, tokens of service, blocks and
order; times only beside times of the same run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from e2e.shared.rig import at_zero, until
from e2e.shared.truth import truth
from e2e.tenants.clients import Client
from kvgate.load import Session
from support.redis_server import RedisServer
from support.replicas import POOL, Fleet, PoolSizes, Replica

SIZES = PoolSizes(sessions_per_engine=6, prompt_tokens=16, step_ms=25)
"""Twelve sessions at once, about nineteen a second: few enough that the clients' own work does not matter."""
QUEUE_DEPTH_FLOODED = 40
"""Of a tenant that offers far too much: about two seconds of the pool's work."""
LOOK_S = 0.01
_TIMEOUT = aiohttp.ClientTimeout(total=120.0)

TENANTS: dict[str, dict[str, Any]] = {
    # Noisy neighbour. "everyone" is both of them as one tenant.
    "noisy": {"queue": {"depth": QUEUE_DEPTH_FLOODED}},
    "victim": {"queue": {"depth": QUEUE_DEPTH_FLOODED}},
    "everyone": {"queue": {"depth": QUEUE_DEPTH_FLOODED}},
    # Weights.
    "heavy": {"weight": 4},
    "light": {},
    # Guarantee: its weight alone would bring the owner a tenth of that.
    "owner": {"guarantee": "30%", "weight": 0.03},
    "borrower": {},
    # Limit: its weight alone would bring it four fifths.
    "capped": {"limit": "50%", "weight": 4},
    "another": {},
    # Classes.
    "people": {"class": "interactive"},
    "jobs": {"class": "batch"},
    # A budget: a minute's worth is thirty requests of `METERED`, and one more is covered every two seconds.
    "metered": {"rate": {"tokens_per_minute": 1200}},
}
METERED = Session((7,) * 16, 16, 24)


def key_of(tenant: str) -> str:
    return f"sk-{tenant}-0123456789"


class TenantFleet(Fleet):
    """A fleet whose policy has the `TENANTS`."""

    def _write_policy(self) -> None:
        self.take(TENANTS)

    def take(self, tenants: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the policy file anew; replicas that run find it by themselves."""
        policy = {
            "version": 1,
            "pools": {POOL: {"backends": self.engines}},
            # Peaks: shares are counted in blocks, and a reservation has as many from its beginning to its end.
            "defaults": {"reservation": "guaranteed", "queue": {"depth": 1_000, "wait": "60s"}},
            "tenants": {name: _with_key(name, section) for name, section in tenants.items()},
        }
        self._policy.write_text(json.dumps(policy))


def _with_key(name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    return {"keys": [{"sha256": hashlib.sha256(key_of(name).encode()).hexdigest()}], **section}


@dataclass(frozen=True, slots=True)
class Use:
    """What the ledger says of a tenant at one moment."""

    blocks: int
    blocks_guaranteed: int
    blocks_limit: int
    reservations: int
    queued: int
    service: float


Uses = dict[str, Use]
"""By tenant."""
Look = Callable[[], Awaitable[Uses]]
USE_FIELDS = tuple(Use.__dataclass_fields__)


class Deployment:
    """Engines, replicas, and the ledger that they share."""

    def __init__(self, fleet: TenantFleet, server: RedisServer | None) -> None:
        self.fleet = fleet
        self.server = server

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Look]:
        """A way to look at the tenants: in Redis itself, or in the only process there is, as `/admin/tenants`."""
        if self.server is not None:
            async with truth(self.server) as ledger:

                async def in_redis() -> Uses:
                    return {use.name: _use_of(use) for use in (await ledger.view()).tenants}

                yield in_redis
        else:
            [replica] = self.fleet.replicas
            async with looking_at(replica) as look:
                yield look

    @asynccontextmanager
    async def client(self, tenant: str, seed: int = 1) -> AsyncIterator[Client]:
        """Its requests are broken off at the end."""
        headers = {"authorization": f"Bearer {key_of(tenant)}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=_TIMEOUT) as http:
            client = Client(tenant, http, self.fleet, seed)
            try:
                yield client
            finally:
                await client.stop()

    @asynccontextmanager
    async def changed(self, **tenants: dict[str, Any]) -> AsyncIterator[None]:
        """With further tenants, by a change of the policy file while all runs."""
        try:
            await self._take(TENANTS | tenants)
            yield
        finally:
            await self._take(TENANTS)

    async def _take(self, tenants: Mapping[str, Mapping[str, Any]]) -> None:
        self.fleet.take(tenants)
        async with self.looking() as look:
            for replica in self.fleet.replicas:
                async with looking_at(replica) as other:

                    async def so(looks: tuple[Look, ...] = (look, other)) -> bool:
                        return all([{*await each()} == {*tenants} for each in looks])

                    await until(so, "the changed policy taken over")

    async def empty(self) -> None:
        await at_zero(self.fleet)


@asynccontextmanager
async def looking_at(replica: Replica) -> AsyncIterator[Look]:
    """What one replica says."""
    async with aiohttp.ClientSession(replica.admin_url) as http:

        async def look() -> Uses:
            async with http.get("/admin/tenants") as answer:
                listed = (await answer.json())["tenants"]
            return {one["name"]: Use(*(one["pools"][0][name] for name in USE_FIELDS)) for one in listed}

        yield look


@contextmanager
def in_one_process(folder: Path) -> Iterator[Deployment]:
    """The memory ledger."""
    with _started(TenantFleet(SIZES, ledgers=["memory://"], folder=folder)) as fleet:
        yield Deployment(fleet, None)


@contextmanager
def in_two_replicas(folder: Path) -> Iterator[Deployment]:
    """Two processes on one Redis."""
    with (
        RedisServer("--maxmemory-policy", "noeviction") as server,
        _started(TenantFleet(SIZES, ledgers=[server.url] * 2, folder=folder)) as fleet,
    ):
        yield Deployment(fleet, server)


@contextmanager
def _started(fleet: TenantFleet) -> Iterator[TenantFleet]:
    """A fleet is processes alone: it outlives the loop that started it."""
    asyncio.run(fleet.__aenter__())
    try:
        yield fleet
    finally:
        asyncio.run(fleet.__aexit__())


def _use_of(use: Any) -> Use:
    return Use(*(getattr(use, name) for name in USE_FIELDS))


async def backlogged(look: Look, tenants: Iterable[str], queued: int) -> Uses:
    """Wait until each of them has that many in the queue; what the ledger says then."""
    names = list(tenants)
    last: Uses = {}

    async def so() -> bool:
        last.update(await look())
        return all(last[name].queued >= queued for name in names)

    await until(so, f"{queued} of {', '.join(names)} in the queue")
    return dict(last)
