"""What operators change at run time, kept by the ledgers so that every process has it: changes of tenants, and
engines that get no new work.

A tenant's change in all pools is kept by the ledger of the first pool, one in a single pool and an engine's state
by that pool's ledger. Each ends by itself; a process that can't reach the ledger goes by what it read last, and by
its own clock.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import anyio

from kvgate.config.overrides import Override
from kvgate.config.standing import Standing
from kvgate.errors import ChangeNotKept, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvgate.api.pools import PoolLine, Pools
    from kvgate.clock import Clock

ASK_S_MAX = 1.0
"""For one ledger to tell what it keeps: a round trip takes milliseconds, and in a second it is asked again."""
DRAIN_S_MAX = 7 * 86400.0
"""How long an engine stays drained when no process is left that knows of it."""
TENANT, TENANT_HERE, ENGINE = "tenant:", "tenant-here:", "engine:"
"""Beginnings of the names: a tenant in all pools, a tenant in the pool of this ledger, an engine of it."""
DRAINED = "drained"
TEXTS_READ_MAX = 1024
"""Texts of changes that are not read anew every second: as many as a ledger keeps."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """One text, and when it ends by this process's clock."""

    text: str
    until_s: float


class SharedChanges:
    """The changes of all pools, as last read. `read` before anything is asked."""

    def __init__(self, pools: Pools, clock: Clock) -> None:
        self._pools = pools
        self._clock = clock
        self._kept: dict[str, dict[str, Kept]] = {}
        """By pool and name; a pool that could never be asked is missing."""
        self._unreadable: set[str] = set()
        """Texts that were complained of: once each, for they are read every second."""

    async def read(self) -> None:
        """Ask all ledgers, together. One that does not answer keeps what it said before."""
        async with anyio.create_task_group() as tasks:
            for line in self._pools.lines:
                tasks.start_soon(self._read_one, line)

    async def _read_one(self, line: PoolLine) -> None:
        with anyio.move_on_after(ASK_S_MAX):
            try:
                told = await line.ledger.overrides()
            except Exception as error:  # noqa: BLE001  what it is, the ledger reports by itself
                log.debug("changes at run time of the pool %s not read: %r", line.name, error)
                return
            now_s = self._clock.monotonic()
            self._kept[line.name] = {name: Kept(text, now_s + left) for name, (text, left) in told.items()}

    async def put(self, pool: str, name: str, text: str | None, ttl_s: float) -> None:
        """Keep a text, or end it with None. Raises ChangeNotKept."""
        line = next(line for line in self._pools.lines if line.name == pool)
        try:
            with anyio.fail_after(ASK_S_MAX):
                await line.ledger.put_override(name, text, ttl_s)
        except Exception as error:
            raise ChangeNotKept(f"the ledger of the pool {pool} did not confirm it: {error!r}") from error
        kept = self._kept.setdefault(pool, {})
        kept.pop(name, None)
        if text is not None:
            kept[name] = Kept(text, self._clock.monotonic() + ttl_s)

    async def put_tenant(
        self, tenant: str, pool: str | None, override: Override | None, ttl_s: float
    ) -> None:
        """Raises ChangeNotKept."""
        text = None if override is None else override.text()
        if pool is None:
            await self.put(self._pools.names[0], TENANT + tenant, text, ttl_s)
        else:
            await self.put(pool, TENANT_HERE + tenant, text, ttl_s)

    async def put_engine(self, pool: str, engine_id: str, *, drained: bool) -> None:
        """Raises ChangeNotKept."""
        await self.put(pool, ENGINE + engine_id, DRAINED if drained else None, DRAIN_S_MAX)

    def was_read(self, pool: str) -> bool:
        """Whether this pool's ledger ever told what it keeps."""
        return pool in self._kept

    def tenants(self) -> tuple[Standing, ...]:
        """The changes that hold now."""
        everywhere = self._pools.names[0]
        found: list[tuple[str | None, str, Kept]] = []
        found += [(None, name, kept) for name, kept in self._of(everywhere, TENANT)]
        for pool in self._kept:
            found += [(pool, name, kept) for name, kept in self._of(pool, TENANT_HERE)]
        now_s = self._clock.monotonic()
        read = ((pool, name, kept, self._override(kept.text)) for pool, name, kept in found)
        return tuple(
            Standing(name, pool, override, kept.until_s - now_s)
            for pool, name, kept, override in read
            if override is not None
        )

    def drained(self, pool: str) -> Mapping[str, float]:
        """Ids of the engines that get no new work, with the seconds until that is forgotten."""
        now_s = self._clock.monotonic()
        return {name: kept.until_s - now_s for name, kept in self._of(pool, ENGINE)}

    def _of(self, pool: str, kind: str) -> Iterator[tuple[str, Kept]]:
        now_s = self._clock.monotonic()
        for name, kept in self._kept.get(pool, {}).items():
            if name.startswith(kind) and kept.until_s > now_s:
                yield name.removeprefix(kind), kept

    def _override(self, text: str) -> Override | None:
        """None for one that this version can't read: another version may have written it."""
        try:
            return _read(text)
        except ConfigError as error:
            if text not in self._unreadable:
                self._unreadable = {*list(self._unreadable)[-63:], text}
                log.warning("a change of a tenant at run time is left out: %s", error)
            return None


_read = lru_cache(TEXTS_READ_MAX)(Override.of_text)
