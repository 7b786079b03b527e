"""Backends without sockets, for a pool in virtual time, over the ledger that the product runs with."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from kvgate.config.settings import Settings
from kvgate.engines.pool import EnginePool
from kvgate.engines.status import EngineStatus
from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.occupancy import guaranteed
from kvgate_policies.types import EngineLimits, EngineUse, KVCost
from support.upstream import EngineFace
from support.virtual_loop import LoopClock, run_virtual

FOREVER_S = 1e6


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """An async test, run in virtual time."""

    @functools.wraps(test)
    def run() -> None:
        run_virtual(test())

    del run.__wrapped__  # pytest would take it for an async test
    return run


@dataclass
class Server:
    """One vLLM server and what is wrong with it."""

    face: EngineFace = field(default_factory=EngineFace)
    refuses: bool = False
    hangs: bool = False
    aborts: bool = False
    """Draining: every new request gets 200 and no token."""
    slow_metrics: bool = False
    """`/metrics` takes for ever."""
    lies: dict[str, str] = field(default_factory=dict)
    """Values in place of those that `/metrics` would show, by name."""
    mute: bool = False
    """Its core hangs: it answers everything but requests."""
    completes: bool = True
    """False: no /v1/completions, as with a pooling model."""
    before_scrape: Callable[[], Awaitable[None]] | None = None
    """What happens while the question for `/metrics` is on its way."""
    after_scrape: Callable[[], Awaitable[None]] | None = None
    """What happens while the answer of `/metrics` is on its way."""
    seen: list[httpx.Request] = field(default_factory=list)

    def asked(self, path: str) -> int:
        return sum(request.url.path == path for request in self.seen)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if self.refuses:
            raise httpx.ConnectError("refused", request=request)
        if self.hangs:
            await asyncio.sleep(FOREVER_S)
        if (request.url.path, True) in {("/v1/completions", self.mute), ("/metrics", self.slow_metrics)}:
            await asyncio.sleep(FOREVER_S)
        is_scrape = request.url.path == "/metrics"
        if is_scrape and self.before_scrape is not None:
            await self.before_scrape()
        response = self._route(request)
        if is_scrape and self.after_scrape is not None:
            await self.after_scrape()
        return response

    def _route(self, request: httpx.Request) -> httpx.Response:
        match request.url.path:
            case "/metrics" if self.face.metrics:
                return httpx.Response(200, text=self._metrics())
            case "/health":
                return httpx.Response(200 if self.face.healthy else 503)
            case "/v1/models":
                return httpx.Response(200, json=self.face.models())
            case "/tokenize":
                return httpx.Response(200, json=self.face.tokenize(json.loads(request.content)))
            case "/v1/completions" if self.completes:
                end = ("", "abort") if self.aborts else ("a", "length")
                return httpx.Response(200, json={"choices": [{"text": end[0], "finish_reason": end[1]}]})
            case _:
                return httpx.Response(404, json={"detail": "Not Found"})

    def _metrics(self) -> str:
        lines = (line.rpartition(" ") for line in self.face.metrics_text().splitlines())
        said = ((head, self.lies.get(head.partition("{")[0], value)) for head, _, value in lines)
        return "".join(f"{head} {value}\n" for head, value in said if head)


class TheLedger(MemoryLedger):
    """The one in memory, which counts what it is told, and of which this process may be one of many."""

    def __init__(self) -> None:
        super().__init__(LoopClock(), bypass_max=0)
        self.told: list[EngineLimits] = []
        self.settled: list[tuple[str, int, int | None]] = []
        """What engines were seen to use: blocks, sequences."""
        self.elects = True

    async def observe(self, limits: EngineLimits) -> None:
        self.told.append(limits)
        await super().observe(limits)

    async def settle(self, engine_id: str, blocks_in_use: int, seqs: int | None = None) -> KVCost | None:
        self.settled.append((engine_id, blocks_in_use, seqs))
        return await super().settle(engine_id, blocks_in_use, seqs)

    def scrapes(self, backend: str) -> bool:
        return self.elects


class World:
    """A pool over servers named by host: `http://a` is `servers["a"]`."""

    def __init__(self, servers: dict[str, Server], **settings: Any) -> None:
        self.servers = servers
        self.settings = Settings(backends=tuple(f"http://{host}" for host in servers), **settings)
        self.ledger = TheLedger()
        http = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))
        self.pool = EnginePool(self.settings, self.ledger, LoopClock(), http)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        return await self.servers[request.url.host].answer(request)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        """With the probes under way and everyone discovered who will be."""
        task = asyncio.create_task(self.pool.run())
        try:
            await asyncio.sleep(0.01)
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def state(self, engine_id: str = "http://a") -> str:
        return next(str(status.state) for status in self.pool.snapshot() if status.id == engine_id)

    def status(self, engine_id: str = "http://a") -> EngineStatus:
        return next(status for status in self.pool.snapshot() if status.id == engine_id)

    def use(self, engine_id: str = "http://a") -> EngineUse:
        return next(use for use in self.ledger.view().engines if use.limits.engine_id == engine_id)

    def accepting(self, engine_id: str = "http://a") -> bool:
        return self.use(engine_id).limits.accepting

    async def until(self, true: Callable[[], bool], timeout_s: float = 120.0) -> float:
        """Virtual seconds until something holds. Raises TimeoutError."""
        began_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(timeout_s):
            while not true():
                await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - began_s

    async def grant(
        self, name: str, blocks: int = 1, prefill_tokens: int = 100, *, expected: int | None = None
    ) -> Grant | None:
        """Reserve, and give up the queue place if there is no room now. `expected` blocks, by a forecast; None: all."""
        forecast = None if expected is None else guaranteed(expected)
        cost = KVCost(blocks, 1, prefill_tokens, forecast)
        costs = dict.fromkeys(self.pool.shapes(), cost)
        ticket = await self.ledger.reserve(Ask(name, "t", costs, queue_depth_max=100))
        if isinstance(ticket, Refusal | RateSpent):
            return None
        try:
            async with asyncio.timeout(0.001):
                decision = await ticket.granted()
        except TimeoutError:
            await self.ledger.cancel(name)
            return None
        return decision if isinstance(decision, Grant) else None
