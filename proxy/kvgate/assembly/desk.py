"""What the admin port asks: who is a tenant, what holds for it now, and to change that for a while.

A change is checked as the file is, alone and together with everything else that holds; it is kept by the ledger for
all processes, holds here at once, and leaves a line in the log with who made it, and what was before and after.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from kvgate.config.layers import LIMITS, RULES
from kvgate.config.overrides import CALLED, Override
from kvgate.config.standing import CHANGE_S_MAX, Standing
from kvgate.errors import ConfigError
from kvgate.telemetry.logs import FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvgate.assembly.keeper import PolicyKeeper
    from kvgate.config.tenants import TenantBook

audit = logging.getLogger("kvgate.audit")


class Desk:
    """Implements `admin.state.Tenants`."""

    def __init__(self, keeper: PolicyKeeper, pools: Sequence[str]) -> None:
        self._keeper = keeper
        self._pools = tuple(pools)
        self._lock = anyio.Lock()

    @property
    def book(self) -> TenantBook:
        """What holds now, changes at run time included."""
        return self._keeper.live.current

    def standing(self) -> tuple[Standing, ...]:
        """The changes at run time that hold now."""
        return self._keeper.shared.tenants()

    async def change(
        self, tenant: str, pool: str | None, fields: Mapping[str, object], for_s: float, who: str
    ) -> None:
        """Change fields of a tenant for a while; None takes a field back. With those changed before in the same
        place they are one change, which ends as a whole.

        Raises KeyError for an unknown tenant, ConfigError with a line for each thing that is wrong, and
        ChangeNotKept when the ledger did not take it.
        """
        if not 0 < for_s <= CHANGE_S_MAX:
            raise ConfigError(
                f"for: {for_s:g} s is not allowed; allowed: above 0 and at most {CHANGE_S_MAX / 3600:g}h"
            )
        async with self._lock:  # what is changed is what was read
            await self._keeper.shared.read()  # another replica may have changed something a moment ago
            await self._change(tenant, pool, fields, for_s, who)

    async def _change(
        self, tenant: str, pool: str | None, fields: Mapping[str, object], for_s: float, who: str
    ) -> None:
        before = self._standing(tenant, pool)
        values = {} if before is None else dict(before.override.changes)
        values |= _only_one_limit(fields, values)
        wanted = Override.of_json({name: value for name, value in values.items() if value is not None})
        if not wanted.changes:
            await self._end(tenant, pool, who)
            return
        until = datetime.now(UTC) + timedelta(seconds=for_s)
        wanted = Override.of_json({**wanted.changes, "until": until.isoformat(timespec="seconds")})
        await self._check(Standing(tenant, pool, wanted, for_s))
        await self._put(tenant, pool, wanted, for_s, who)

    async def end(self, tenant: str, pool: str | None, who: str) -> bool:
        """End a change early; False when there was none. Raises KeyError, ChangeNotKept."""
        async with self._lock:
            await self._keeper.shared.read()
            return await self._end(tenant, pool, who)

    async def _end(self, tenant: str, pool: str | None, who: str) -> bool:
        if self._standing(tenant, pool) is None:
            return False
        await self._put(tenant, pool, None, CHANGE_S_MAX, who)
        return True

    def _standing(self, tenant: str, pool: str | None) -> Standing | None:
        if tenant not in self.book.names:
            raise KeyError(tenant)
        found = (one for one in self.standing() if (one.tenant, one.pool) == (tenant, pool))
        return next(found, None)

    async def _check(self, change: Standing) -> None:
        """Raises ConfigError when it does not go with everything else that holds. In a thread: with thousands of
        tenants it takes a fifth of a second.
        """
        others = [one for one in self.standing() if (one.tenant, one.pool) != (change.tenant, change.pool)]
        book = self._keeper.book_with([*others, change])
        problems = await anyio.to_thread.run_sync(self._keeper.problems, book)
        if problems:
            raise ConfigError("\n".join(problems))

    async def _put(
        self, tenant: str, pool: str | None, override: Override | None, for_s: float, who: str
    ) -> None:
        changes = self._changes(tenant, pool, override, for_s)
        await self._keeper.shared.put_tenant(tenant, pool, override, for_s)
        await self._keeper.apply()
        self._log(tenant, pool, changes, until="" if override is None else override.until, who=who)

    def _changes(
        self, tenant: str, pool: str | None, override: Override | None, for_s: float
    ) -> dict[str, str]:
        """What this change makes different by itself: the same file and the same other changes, without it and with it.
        A file that is taken over in the same moment is not the work of whoever changes a tenant; it has a line of its
        own.
        """
        standing = self.standing()
        others = [one for one in standing if (one.tenant, one.pool) != (tenant, pool)]
        mine = [] if override is None else [Standing(tenant, pool, override, for_s)]
        before, after = self._keeper.book_with(standing), self._keeper.book_with([*others, *mine])
        if tenant not in after.names:  # the file that is just being taken over has it no longer
            return {}
        return {
            f"{CALLED.get(name, name)} in {one}": f"{old} → {new}"
            for one in self._pools
            if pool in {None, one}
            for name, (old, new) in differences(before, after, tenant, one).items()
        }

    def _log(
        self, tenant: str, pool: str | None, changes: Mapping[str, str], *, until: str, who: str
    ) -> None:
        said = (
            ", ".join(f"{what}: {how}" for what, how in changes.items()) or "nothing that was not so before"
        )
        end = f" until {until}" if until else " (a change was ended)"
        fields = {
            "tenant": tenant,
            "pool": pool,
            "who": who,
            "until": until or None,
            "changes": dict(changes),
        }
        audit.info("tenant %s changed by %s%s: %s", tenant, who, end, said, extra={FIELDS: fields})


def differences(
    before: TenantBook, after: TenantBook, tenant: str, pool: str
) -> dict[str, tuple[object, object]]:
    """The fields that hold differently, each with the value before and after. Pure."""
    old, new = before.policy(tenant, pool), after.policy(tenant, pool)
    pairs = {name: (getattr(old, name), getattr(new, name)) for name in LIMITS}
    pairs |= {name: (getattr(old.rules, name), getattr(new.rules, name)) for name in RULES}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _only_one_limit(fields: Mapping[str, object], known: Mapping[str, object]) -> dict[str, object]:
    """A limit as a share takes the place of one in tokens that was set before, and the reverse."""
    other = {"limit": "limit_tokens", "limit_tokens": "limit"}
    taken = {other[name]: None for name in fields if name in other and other[name] in known}
    return {**taken, **fields}
