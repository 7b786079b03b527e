"""Engines that get no new work by an operator's word: here at once, in every other process by the shared ledger.

Where the ledger can't be told at the moment the word holds here, and is passed on as soon as it can be. It outlives
the processes: whoever starts next finds it in the ledger.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from kvgate.assembly.shared import DRAIN_S_MAX
from kvgate.errors import ChangeNotKept

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvgate.api.pools import PoolLine, Pools
    from kvgate.assembly.shared import SharedChanges

log = logging.getLogger(__name__)


class Drains:
    def __init__(self, pools: Pools, shared: SharedChanges) -> None:
        self._pools = pools
        self._shared = shared
        self._known: dict[str, set[str]] = {name: set() for name in pools.names}
        """Drained engines by pool, as far as this process was told; at most those that operators named."""
        self._due: dict[tuple[str, str], bool] = {}
        """What the ledger is still to be told: pool and engine → drained or not."""
        self._lock = anyio.Lock()
        """An order must not fall into `apply`, which would go on with what it knew before."""

    async def tell(self, pool: str, engine_id: str, *, drained: bool) -> bool:
        """Drain an engine, or all engines of a URL, or let them work again.

        False when the ledger could not be told yet. Raises KeyError for an unknown pool or engine.
        """
        line = next((line for line in self._pools.lines if line.name == pool), None)
        if line is None:
            raise KeyError(pool)
        async with self._lock:
            await self._order(line, engine_id, drained=drained)
        await self.pass_on()
        return not any(due_pool == pool for due_pool, _ in self._due)

    async def _order(self, line: PoolLine, engine_id: str, *, drained: bool) -> None:
        order = line.engine_pool.drain if drained else line.engine_pool.undrain
        await order(engine_id)
        meant = {status.id for status in line.engine_pool.snapshot() if engine_id in {status.id, status.url}}
        if not drained:
            self._split(line, meant)
        self._note(line.name, meant, drained=drained)

    def _note(self, pool: str, engine_ids: Iterable[str], *, drained: bool) -> None:
        for engine_id in engine_ids:
            (self._known[pool].add if drained else self._known[pool].discard)(engine_id)
            self._due[pool, engine_id] = drained

    def _split(self, line: PoolLine, meant: set[str]) -> None:
        """A URL that was drained before its ranks were known: of these, only some are to work again."""
        known = self._known[line.name]
        for url in {engine_id.partition("#")[0] for engine_id in meant} & known - meant:
            ranks = {status.id for status in line.engine_pool.snapshot() if status.url == url}
            self._note(line.name, [url], drained=False)
            self._note(line.name, ranks - meant, drained=True)

    def assume(self, engine_id: str) -> None:
        """A process before this one knew of it; the ledger's word replaces that once it can be read."""
        for line in self._pools.lines:
            if any(engine_id in {status.id, status.url} for status in line.engine_pool.snapshot()):
                self._known[line.name].add(engine_id)

    async def pass_on(self) -> None:
        """Tell the ledgers what they are still to be told."""
        for (pool, engine_id), drained in list(self._due.items()):
            try:
                await self._shared.put_engine(pool, engine_id, drained=drained)
            except ChangeNotKept as error:
                log.warning("engine %s: %s here only: %s", engine_id, _word(drained=drained), error)
                continue
            if self._due.get((pool, engine_id)) is drained:
                del self._due[pool, engine_id]

    async def apply(self) -> None:
        """Do what the ledgers say; an engine that is found only now gets to hear it too."""
        async with self._lock:
            for line in self._pools.lines:
                if self._shared.was_read(line.name):
                    await self._compare(line)
                for engine_id in sorted(self._known[line.name]):
                    await _tell(line, engine_id, drained=True)

    async def _compare(self, line: PoolLine) -> None:
        kept, known = self._shared.drained(line.name), self._known[line.name]
        ended = [one for one in known if one not in kept and (line.name, one) not in self._due]
        for engine_id in ended:
            known.discard(engine_id)
            await _tell(line, engine_id, drained=False)
        for engine_id, left_s in kept.items():
            if (line.name, engine_id) in self._due:
                continue
            known.add(engine_id)
            if left_s < DRAIN_S_MAX / 2:
                self._due[line.name, engine_id] = True


async def _tell(line: PoolLine, engine_id: str, *, drained: bool) -> None:
    """Nothing for an engine that is not there (any more, or yet)."""
    tell = line.engine_pool.drain if drained else line.engine_pool.undrain
    try:
        await tell(engine_id)
    except KeyError:
        log.debug("pool %s has no engine %s to %s", line.name, engine_id, _word(drained=drained))


def _word(*, drained: bool) -> str:
    return "drained" if drained else "at work again"
