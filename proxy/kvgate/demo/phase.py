"""One phase: the same sessions, by one way, with everything that can be seen meanwhile.

`Phase` waits and collects; what it saw is judged elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from kvgate.load import EngineWatch, LoadRun, Patience, Report, StreamRecord, Workload, report

_LEDGER_INTERVAL_S = 0.2
_SETTLE_LOOKS = 10
"""Two seconds: a release follows the last byte of a stream within milliseconds."""
_LEDGER_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_PATIENCE = Patience(stream_s_max=7200.0)
"""The longest demo is an hour; its streams may wait for most of it."""


@dataclass(slots=True)
class LedgerWatch:
    """Looks at kvgate's `/admin/ledger` at an interval."""

    admin_url: str
    reserved_blocks: dict[str, int] = field(default_factory=dict)
    """By engine id, at the latest look."""
    queued: int = 0
    reservations_max: dict[str, int] = field(default_factory=dict)
    """The most at any look."""
    missed: int = 0

    async def watch(self) -> None:
        """Look until cancelled."""
        async with aiohttp.ClientSession(timeout=_LEDGER_TIMEOUT) as http:
            while True:
                await self._look(http)
                await asyncio.sleep(_LEDGER_INTERVAL_S)

    async def settle(self) -> None:
        """Look until nothing is reserved and nobody waits, for two seconds at the most."""
        async with aiohttp.ClientSession(timeout=_LEDGER_TIMEOUT) as http:
            for _ in range(_SETTLE_LOOKS):
                await self._look(http)
                if self.is_empty:
                    return
                await asyncio.sleep(_LEDGER_INTERVAL_S)

    @property
    def is_empty(self) -> bool:
        """Whether the latest look found everything given back."""
        return bool(self.reserved_blocks) and not any(self.reserved_blocks.values()) and not self.queued

    async def _look(self, http: aiohttp.ClientSession) -> None:
        try:
            async with http.get(self.admin_url + "/admin/ledger") as response:
                self.note(await response.json())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError):
            self.missed += 1

    def note(self, view: dict[str, Any]) -> None:
        """Take over one answer. Raises KeyError when a field is missing."""
        self.queued = view["queued"]
        for engine in view["engines"]:
            name, reservations = engine["engine_id"], engine["reservations"]
            self.reserved_blocks[name] = engine["reserved_blocks"]
            self.reservations_max[name] = max(self.reservations_max.get(name, 0), reservations)


class Phase:
    """A workload on its way to the engines, through `urls` (the engines themselves, or kvgate)."""

    def __init__(
        self,
        title: str,
        workload: Workload,
        *,
        urls: list[str],
        engines: list[str],
        ledger: LedgerWatch | None = None,
    ) -> None:
        self.title = title
        self.engines = engines
        self.ledger = ledger
        self.watch = EngineWatch(engines)
        self.started_s = time.monotonic()
        self._load = LoadRun(urls, workload, patience=_PATIENCE)

    @property
    def records(self) -> list[StreamRecord]:
        return self._load.records

    async def run(self) -> Report:
        """Offer everything, wait for the last stream, and count."""
        await self.watch.look()
        self.started_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(self.watch.watch())]
            if self.ledger is not None:
                watching.append(tasks.create_task(self.ledger.watch()))
            records = await self._load.run()
            for each in watching:
                each.cancel()
        await self.watch.look()
        if self.ledger is not None:
            await self.ledger.settle()
        return report(records, self.watch.samples, self._load.stalls)
