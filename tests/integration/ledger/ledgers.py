"""Shared ledgers for tests: short leases, and waiting for what must come without saying when."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings

from kvgate.clock import SystemClock
from kvgate.ledger.base import Grant, RateSpent, Refusal
from kvgate.ledger.connect import TROUBLE
from kvgate.ledger.redis import RedisLedger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kvgate.ledger.base import Ask

WITHIN_S = 15.0
"""For what has to happen sooner or later: far above what it takes on a busy machine."""
MACHINE = settings(
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
"""Of random operations on a real server: the same ones each time."""


class Watch:
    """Remembers what a ledger reports."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.calls: list[tuple[str, bool]] = []

    def called(self, verb: str, took_s: float, *, ok: bool) -> None:
        assert took_s >= 0
        self.calls.append((verb, ok))

    def happened(self, event: str) -> None:
        self.events.append(event)


@asynccontextmanager
async def shared(url: str, pool: str = "p", **options: Any) -> AsyncIterator[RedisLedger]:
    """One process of a pool, once the grace of a new epoch is over."""
    settings = {"heartbeat_s": 0.05, "lease_s": 1.0, "grace_s": 0.15, **options}
    ledger = RedisLedger(url, pool=pool, clock=SystemClock(), **settings)
    async with ledger.running():
        if ledger._keeper.up:
            await out_of_grace(ledger)
        yield ledger


async def refresh(ledger: RedisLedger) -> None:
    """`view` and every ticket are of now. A busy machine may need more than one try."""
    async with asyncio.timeout(WITHIN_S):
        while not await ledger.refresh():
            await asyncio.sleep(0.01)


async def out_of_grace(ledger: RedisLedger) -> None:
    """A new epoch begins with a grace in which nothing is granted."""
    is_over = False
    while not is_over:
        with contextlib.suppress(*TROUBLE):
            is_over = not (await ledger._scripts.pump()).grace
        await asyncio.sleep(0.01)
    await refresh(ledger)


@asynccontextmanager
async def without_heartbeats(url: str, **options: Any) -> AsyncIterator[RedisLedger]:
    """A process that beats only when it is hurried or refreshed."""
    async with shared(url, lease_s=900, **options) as ledger:
        ledger._keeper._heartbeat_s = 300
        await ledger._keeper.beat()
        yield ledger


async def until(is_so: Callable[[], bool], what: str = "") -> None:
    """Wait for something that must come."""
    try:
        async with asyncio.timeout(WITHIN_S):
            while not is_so():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(what or "it never came") from None


async def start(ledger: RedisLedger, asked: Ask) -> Grant:
    """Reserve, and expect the grant."""
    ticket = await ledger.reserve(asked)
    assert not isinstance(ticket, Refusal | RateSpent), ticket
    async with asyncio.timeout(WITHIN_S):
        decision = await ticket.granted()
    assert isinstance(decision, Grant), decision
    return decision


async def queue(ledger: RedisLedger, asked: Ask) -> Any:
    """Reserve, and expect a ticket."""
    ticket = await ledger.reserve(asked)
    assert not isinstance(ticket, Refusal), ticket
    return ticket


class Exact:
    """A `RedisLedger` whose calls return when all that they set off has arrived, so that `view` is of now."""

    VERBS = frozenset(
        {
            "reserve",
            "cancel",
            "renew",
            "renew_many",
            "reprice",
            "release",
            "set_tenants",
            "observe",
            "forget",
            "void",
            "close",
        }
    )

    def __init__(self, ledger: RedisLedger) -> None:
        self.inner = ledger

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if name not in self.VERBS:
            return call

        async def exact(*args: Any) -> Any:
            try:
                return await call(*args)
            finally:
                await refresh(self.inner)

        return exact
