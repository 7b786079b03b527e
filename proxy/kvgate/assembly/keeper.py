"""The policy in force: from the file and from what was changed at run time, to every part that goes by it.

A file that is refused changes nothing, and is complained of until it is right: the last good one stays. A change
never drops what waits or runs. What only a restart can change is said, and left as it is.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from kvgate.assembly.drains import Drains
from kvgate.assembly.file import FileState, PolicySource, needs_restart, taken, tenants_changed
from kvgate.assembly.shared import SharedChanges
from kvgate.config import warnings_of
from kvgate.config.crosschecks import problems
from kvgate.config.live import LivePolicy
from kvgate.config.watching import changes
from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvgate.api.pools import PoolLine, Pools
    from kvgate.clock import Clock
    from kvgate.config.overrides import Override
    from kvgate.config.settings import PoolSpec, Settings
    from kvgate.config.standing import Standing
    from kvgate.config.tenants import TenantBook

FOLLOW_S = 1.0
"""Between two looks at what other processes changed: a change by hand may take a second to be everywhere."""
JITTER = 0.2
"""Of it, either way, so that many processes don't ask at the same moment."""
TELL_S_MAX = 2.0
"""For a ledger to take the tenants' rules; it is told again at the next look if it did not."""

log = logging.getLogger(__name__)


class PolicyKeeper:
    """Keeps `live` right. `follow` once before the first request, then `run` beside them."""

    def __init__(
        self, settings: Settings, pools: Pools, clock: Clock, source: PolicySource | None = None
    ) -> None:
        self.live = LivePolicy(settings.book)
        self.shared = SharedChanges(pools, clock)
        self.drains = Drains(pools, self.shared)
        self.file = taken(source, None if source is None else source.digest())
        self._settings = settings
        self._read_last = settings
        self._pools = pools
        self._source = source
        self._book = settings.book
        """As the file says."""
        self._specs = settings.pool_specs()
        self._applied: tuple[TenantBook, list[tuple[str, str | None, Override]]] | None = None
        """What `live` was made of last: the file's book, and the changes at run time."""
        self._told: dict[str, TenantBook] = {}
        """Whose rules each pool's ledger was told last."""
        self._names_twice: dict[str, tuple[str, ...]] = {}
        self._lock = anyio.Lock()
        self._reading = 0
        """Reloads that are under way or wait for their turn: at most one of each."""
        self._stamp = None if source is None else source.first
        """Of the file when it was read last."""
        self._seen = self._stamp

    async def run(self) -> None:
        """Follow what others change, until cancelled."""
        while True:
            await anyio.sleep(FOLLOW_S * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311
            try:
                await self.follow()
            except Exception:  # a look that fails must not be the last one
                log.exception("following the changes at run time failed")

    async def follow(self) -> None:
        """Look once at what was changed at run time, and apply it."""
        await self.drains.pass_on()
        await self.shared.read()
        await self.apply()
        self._warn_of_names()
        await self._look_at_file()

    async def apply(self) -> None:
        """Let everyone go by the file and the changes that hold now."""
        async with self._lock:
            changes = self.shared.tenants()
            made_of = (self._book, [(one.tenant, one.pool, one.override) for one in changes])
            if self._applied is None or self._applied[0] is not made_of[0] or self._applied[1] != made_of[1]:
                self._applied, self.live.current = made_of, self.book_with(changes)
            for line in self._pools.lines:
                await self._tell_rules(line, self.live.current)
            await self.drains.apply()

    def book_with(self, changes: Iterable[Standing]) -> TenantBook:
        """What would hold with these changes and no others."""
        everywhere: dict[str, Override] = {}
        here: dict[str, dict[str, Override]] = {}
        for one in changes:
            of_pool = everywhere if one.pool is None else here.setdefault(one.pool, {})
            of_pool[one.tenant] = one.override
        return self._book.with_overrides(everywhere, here)

    def problems(self, book: TenantBook) -> tuple[str, ...]:
        """What a book would be wrong about, a line for each thing."""
        return problems(book, self._specs)

    async def _tell_rules(self, line: PoolLine, book: TenantBook) -> None:
        if self._told.get(line.name) is book:
            return
        try:
            with anyio.fail_after(TELL_S_MAX):
                await line.ledger.set_tenants(book.rules(line.name))
        except Exception as error:  # noqa: BLE001  what it is, the ledger reports by itself
            log.warning("the ledger of the pool %s was not told the tenants' rules yet: %r", line.name, error)
        else:
            self._told[line.name] = book

    def _warn_of_names(self) -> None:
        """What no file shows: engines of two pools that serve one name. Said when it changes."""
        twice = self._pools.twice()
        if twice != self._names_twice:
            self._names_twice = twice
            for name, pools in twice.items():
                log.warning("the model %s is in the pools %s: the first has it", name, ", ".join(pools))

    # The file ---------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Reload at once when the file changes, until cancelled; where the kernel can't tell, `follow` finds out."""
        source = self._source
        try:
            while source is not None and source.path is not None:
                await self._watch(source)
        except Exception as error:  # noqa: BLE001  too many watches, a disk that can't be watched
            log.warning("changes of the policy file are noticed after %g s only: %r", 2 * FOLLOW_S, error)

    async def _watch(self, source: PolicySource) -> None:
        """Until other files are to be watched than before."""
        files = await anyio.to_thread.run_sync(source.files)
        async for _ in changes(*files):
            await self.reload()
            if await anyio.to_thread.run_sync(source.files) != files:
                return

    async def _look_at_file(self) -> None:
        """What no watch told of. Once it is the same at two looks, so that nothing half-written is read."""
        if self._source is None:
            return
        seen, self._seen = self._seen, self._source.stamp()
        if self._seen != self._stamp and self._seen == seen:
            await self.reload()

    async def reload(self) -> None:
        """Read the file again. A bad one changes nothing."""
        if self._source is None or self._reading > 1:
            return  # whoever waits to read it will see the newest
        self._reading += 1
        try:
            await self._reload(self._source)
        except Exception:  # what runs must outlive it
            log.exception("the new settings were not taken over completely")
        finally:
            self._reading -= 1

    async def _reload(self, source: PolicySource) -> None:
        async with self._lock:
            self._stamp = source.stamp()
            read = await self._read(source)
            if read is None:
                return
            wanted, digest = read
            self._pools.rename(wanted.pool_specs())
            before = self._book
            self._book, self._specs = wanted.book, wanted.pool_specs()
            self.file = taken(source, digest)
            self._count(taken=True)
        await self.apply()
        async with self._lock:
            done = await self._change_backends(wanted)
        tenants = await anyio.to_thread.run_sync(tenants_changed, before, wanted.book)
        said = (", ".join(what) or "as before" for what in (done, tenants))
        log.info("settings reloaded; backends: %s; tenants: %s", *said)
        for doubt in await anyio.to_thread.run_sync(_new_doubts, self._read_last, wanted):
            log.warning("%s", doubt)
        self._read_last = wanted
        if differs := needs_restart(self._settings, wanted):
            log.warning("changed, and taken over only by a restart: %s", ", ".join(differs))

    async def _read(self, source: PolicySource) -> tuple[Settings, str | None] | None:
        """In a thread: a file of ten thousand tenants takes seconds. None for one that is refused."""
        try:
            return await anyio.to_thread.run_sync(_read, source)
        except ConfigError as error:
            self._refuse(str(error))
        except Exception as error:  # whatever a file can do to its reader, what runs must outlive it
            log.exception("settings not reloaded, the running ones stay")
            self._refuse(f"reading them failed: {error!r}")
        return None

    def _refuse(self, why: str) -> None:
        log.warning("settings not reloaded, the running ones stay: %s", why)
        self.file = FileState(self.file.path, self.file.digest, self.file.taken_at, why)
        self._count(taken=False)

    def _count(self, *, taken: bool) -> None:
        for line in self._pools.lines:
            line.telemetry.policy_read(taken=taken)

    async def _change_backends(self, wanted: Settings) -> list[str]:
        specs = {spec.name: spec for spec in wanted.pool_specs()}
        done: list[str] = []
        for line in self._pools.lines:
            if line.name in specs:
                done += await _change_backends(line, specs[line.name])
        return done


def _read(source: PolicySource) -> tuple[Settings, str | None]:
    """With the digest of the file; and work out what holds for everyone, which takes as long."""
    digest, wanted = source.digest(), source.read_again()
    for spec in wanted.pool_specs():
        wanted.book.rules(spec.name)
    return wanted, digest


def _new_doubts(before: Settings, after: Settings) -> list[str]:
    """What is doubtful in the settings, and was not said before."""
    said = warnings_of(before)
    return [doubt for doubt in warnings_of(after) if doubt not in said]


async def _change_backends(line: PoolLine, wanted: PoolSpec) -> list[str]:
    """What was done, in words."""
    current = set(line.engine_pool.backends())
    added = [url for url in wanted.backends if url not in current]
    removed = sorted(current - set(wanted.backends))
    for url in added:
        await line.engine_pool.add(url)
    for url in removed:
        await line.engine_pool.remove(url)
    return [f"added {url}" for url in added] + [f"removed {url}" for url in removed]
