"""A kvgate process as the scripts see it, as plain as can be: a table, the calls, and the stream.

It waits for nothing and repairs nothing by itself. Each step (read, call, beat) is one method, so that a test
can put them in any order, leave them out, or do them twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import redis.asyncio

from kvgate.ledger.base import Ask, RateSpent, Refusal
from kvgate.ledger.charges import Charge
from kvgate.ledger.lua import Script
from kvgate.ledger.scripts import (
    BeatReply,
    Granted,
    Holding,
    LedgerScripts,
    Orphan,
    Place,
    Refused,
    Reply,
    Sums,
    read_entry,
)
from kvgate_policies.types import ZERO_COST, EngineLimits, EngineUse, KVCost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.redis_server import RedisServer

POOL = "test"
PUMPS_MAX = 200


@dataclass(repr=False)
class Process:
    pid: str
    scripts: LedgerScripts
    stream: Stream
    held: dict[str, Granted] = field(default_factory=dict)
    """What it holds, by request; `cost` is the present one."""
    counted: dict[str, KVCost] = field(default_factory=dict)
    """What the server counts for each, as far as it was told."""
    waiting: dict[str, Ask] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    ack: int = 0
    rel: int = 0
    seen: int = 0
    """Entries of the stream that were read."""
    known: int = 0
    """Processes it knew of when it was last answered, as it says in a beat."""

    def __repr__(self) -> str:
        return f"<Process {self.pid}: {len(self.waiting)} waiting, {len(self.held)} held>"

    def sums(self) -> dict[tuple[str, str], Sums]:
        """By engine and tenant."""
        sums: dict[tuple[str, str], Sums] = {}
        for grant in self.held.values():
            key = grant.engine_id, grant.tenant
            before = sums.get(key, Sums(ZERO_COST, 0, 0))
            used = before.used_blocks + grant.cost.use_blocks
            sums[key] = Sums(before.cost + grant.cost, before.reservations + 1, used)
        return sums

    async def beat(self) -> BeatReply:
        self.counted = {request_id: grant.cost for request_id, grant in self.held.items()}
        return await self.scripts.beat(
            self.pid,
            ack=self.ack,
            rel=self.rel,
            sums=self.sums(),
            closed=self.closed,
            known=self.known,
        )

    async def read(self) -> None:
        """Take in what the stream has for it. A grant for one that does not wait (any more) is left alone."""
        entries = await self.stream.read()
        for entry in entries[self.seen :]:
            if entry.pid != self.pid:
                continue
            if isinstance(entry, Granted):
                self.ack = max(self.ack, entry.gseq)
                if self.waiting.pop(entry.request_id, None) is not None:
                    self.held[entry.request_id] = entry
                    self.counted[entry.request_id] = entry.cost
            elif self.waiting.pop(entry.request_id, None) is not None:
                self.refused[entry.request_id] = entry.refusal
        self.seen = len(entries)

    async def reserve(self, ask: Ask) -> int | Refusal | RateSpent:
        """The seq, or why not."""
        answer = (await self.ask(ask))[1]
        return answer.seq if isinstance(answer, Place) else answer

    async def ask(self, ask: Ask) -> tuple[Reply, Place | Refusal | RateSpent]:
        """The answer as it comes."""
        self.waiting[ask.request_id] = ask
        reply, answer = await self.scripts.reserve(self.pid, ask, ack=self.ack)
        if not isinstance(answer, Place):
            del self.waiting[ask.request_id]
        return reply, answer

    async def hold(self, ask: Ask) -> Granted:
        """Reserve, and expect the grant at once."""
        answer = await self.reserve(ask)
        assert isinstance(answer, int), answer
        await self.read()
        return self.held[ask.request_id]

    async def queue(self, ask: Ask) -> int:
        """Reserve, and expect to wait."""
        seq = await self.reserve(ask)
        assert isinstance(seq, int), seq
        await self.read()
        assert ask.request_id in self.waiting, f"{ask.request_id} was not to start"
        return seq

    async def release(self, request_id: str, charge: Charge | None = None) -> Reply:
        grant, cost = self.held.pop(request_id), self.counted.pop(request_id)
        self.rel += 1
        return await self.scripts.release(
            self.pid, self.rel, grant.engine_id, grant.tenant, cost, charge=charge
        )

    async def renew(self, request_id: str, cost: KVCost) -> Reply:
        """Another cost of one that is held, told at once."""
        grant, before = self.held[request_id], self.counted[request_id]
        self.held[request_id], self.counted[request_id] = replace(grant, cost=cost), cost
        self.rel += 1
        return await self.scripts.release(
            self.pid,
            self.rel,
            grant.engine_id,
            grant.tenant,
            before - cost,
            reservations=0,
            use_blocks=before.use_blocks - cost.use_blocks,
        )

    async def cancel(self, request_id: str) -> bool:
        self.waiting.pop(request_id, None)
        _, was_queued = await self.scripts.cancel(self.pid, request_id)
        return was_queued

    async def observe(self, *engines: EngineLimits) -> None:
        for limits in engines:
            (self.closed.discard if limits.accepting else self.closed.add)(limits.engine_id)
            await self.scripts.observe(self.pid, limits)


class Stream:
    """All entries of the pool's stream since the last flush."""

    def __init__(self, client: Any, key: str) -> None:
        self._client = client
        self._key = key

    async def read(self) -> list[Granted | Refused]:
        return [read_entry(fields) for _, fields in await self._client.xrange(self._key)]


CLOCK = "clock"
"""Key of the time (ms) where the test holds the clock of the server."""
START_MS = 1_700_000_000_000
"""Before the entries of the stream, which have the server's time all the same."""


@dataclass
class Pool:
    """A pool on a real server."""

    client: Any
    bounds: Mapping[str, int]
    clock_is_held: bool = False
    processes: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scripts = self._open()
        self.stream = Stream(self.client, self.scripts.stream_key)

    def _open(self) -> LedgerScripts:
        scripts = LedgerScripts(self.client, POOL, **self.bounds)
        if self.clock_is_held:
            hold_clock(scripts)
        return scripts

    async def set_clock(self, now_ms: int) -> None:
        await self.client.set(CLOCK, now_ms)

    def add(self, pid: str) -> Process:
        """A process with scripts of its own that said nothing yet."""
        self.processes[pid] = Process(pid, self._open(), self.stream)
        return self.processes[pid]

    async def join(self, pid: str, *engines: EngineLimits) -> Process:
        process = self.add(pid)
        await process.beat()
        await process.observe(*engines)
        return process

    async def expire(self, *pids: str) -> None:
        """Let leases run out, as if their time were over."""
        for pid in pids:
            assert await self.client.zadd(self.key("leases"), {pid: 1}, xx=True, ch=True), (
                f"{pid} has no lease"
            )

    async def shares(self) -> list[str]:
        """The numbers and words of `meta.shares`, in their order; a number as text that is the same double."""
        text = """
            local words = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'shares'))
            for place, word in ipairs(words) do
              words[place] = type(word) == 'number' and string.format('%.17g', word) or word
            end
            return words
        """
        found: list[bytes] = await self.client.eval(text, 1, self.key("meta"))
        return [word.decode() for word in found]

    def key(self, name: str) -> str:
        return f"kvgate:{{{POOL}}}:{name}"

    async def use(self, engine_id: str = "a") -> EngineUse:
        view = await self.scripts.view()
        (use,) = [use for use in view.engines if use.limits.engine_id == engine_id]
        return use

    async def reserved(self, engine_id: str = "a") -> tuple[KVCost, int]:
        """The sums of an engine, known to someone or not: slots and orphans."""
        seen = await self.scripts.inspect()
        everyone: tuple[Holding | Orphan, ...] = (*seen.holdings, *seen.orphans)
        parts = [part.sums for part in everyone if part.engine_id == engine_id]
        return sum((part.cost for part in parts), ZERO_COST), sum(part.reservations for part in parts)

    async def orphaned(self) -> dict[str, KVCost]:
        """By process."""
        return {orphan.pid: orphan.sums.cost for orphan in (await self.scripts.inspect()).orphans}

    async def check(self) -> None:
        assert await self.scripts.verify() == []


def hold_clock(scripts: LedgerScripts) -> None:
    """Let the scripts take the time from the key `CLOCK` instead of the server's clock."""
    scripts._scripts = {verb: _by_key(script) for verb, script in scripts._scripts.items()}


def _by_key(script: Script) -> Script:
    text = script.text.replace("call('TIME')", f"{{ call('GET', '{CLOCK}') / 1000, 0 }}")
    assert text != script.text
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@asynccontextmanager
async def open_pool(
    server: RedisServer, *, clock_is_held: bool = False, **bounds: int
) -> AsyncIterator[Pool]:
    """A pool without grace, unless asked for; its invariants are checked at the end."""
    bounds = {"grace_ms": 0, "settle_gap_ms": 0} | bounds
    client = redis.asyncio.Redis(host="127.0.0.1", port=server.port)
    try:
        pool = Pool(client, bounds, clock_is_held)
        if clock_is_held:
            await pool.set_clock(START_MS)
        yield pool
        await pool.check()
    finally:
        await client.aclose()


async def until_settled(pool: Pool) -> None:
    """Pump as long as a call stopped at its bounds, and no further: a lost wake-up is not to be repaired by it."""
    for _ in range(PUMPS_MAX):
        if await pool.client.hget(pool.key("meta"), "dirty") != b"1":
            return
        await pool.scripts.pump()
    raise AssertionError("the grant loop never finished")
