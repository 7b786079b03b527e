"""From the running process to a snapshot. Reads what is there, computes, and waits for nothing.

Cheap enough for the loop that serves the clients: a second's view of 500 tenants takes some milliseconds, and
nobody looks most of the time. What depends on the policy alone is counted once for each policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from kvgate import __version__
from kvgate.admin.waiting import blocks_of
from kvgate.config.overrides import CALLED
from kvgate.console.engines import engines_shown
from kvgate.console.sentence import headline
from kvgate.console.snapshot import (
    CHANGES_SHOWN_MAX,
    ChangeShown,
    PolicyShown,
    PoolShown,
    Snapshot,
)
from kvgate.console.tenants import Modes, tenants_shown

if TYPE_CHECKING:
    from kvgate.admin.state import AdminState, PoolState
    from kvgate.config.standing import Standing
    from kvgate.console.rejections import Rejections


class View(Protocol):
    """Where a console has its numbers from."""

    async def look(self) -> Snapshot | None:
        """None when nobody who knows them answers."""
        ...


class LocalView:
    """This process."""

    def __init__(self, state: AdminState, rejections: Rejections) -> None:
        self._state = state
        self._rejections = rejections
        self._modes = Modes()

    async def look(self) -> Snapshot:
        state = self._state
        ready, parts = state.ready()
        changes = list(state.tenants.standing())[:CHANGES_SHOWN_MAX]
        return Snapshot(
            version=__version__,
            ready=ready,
            draining=parts.get("draining") == "yes",
            pools=tuple(self._pool(pool) for pool in state.pools()),
            changes=tuple(_change(one) for one in changes),
            rejections=self._rejections.shown(),
            policy=self._policy(),
        )

    def _pool(self, pool: PoolState) -> PoolShown:
        view, book = pool.ledger_view(), self._state.tenants.book
        engines, engines_more = engines_shown(pool.engine_statuses(), view)
        tenants = tenants_shown(view, pool.name, book)
        modes = self._modes.of(book, pool.name)
        shown = PoolShown(
            name=pool.name,
            aliases=tuple(pool.aliases),
            models=tuple(pool.models()),
            ledger_mode=view.mode,
            processes=view.processes,
            queued=view.queued,
            oldest_wait_s=round(view.oldest_wait_s, 3),
            blocks=blocks_of(view),
            engines=engines,
            engines_more=engines_more,
            tenants=tenants,
            tenants_more=max(len(book.names) - len(tenants), 0),
            enforced=modes["enforce"],
            observed=modes["observe"],
            off=modes["off"],
        )
        return with_headline(shown)

    def _policy(self) -> PolicyShown:
        state, file = self._state, self._state.policy_file()
        return PolicyShown(
            path=file.path,
            digest=file.digest,
            taken_at=file.taken_at,
            refused=file.refused,
            identity=state.tenants.book.identity.source,
            tenants=len(state.tenants.book.names),
            ledger_on_failure=state.settings.ledger_on_failure,
        )


def with_headline(pool: PoolShown) -> PoolShown:
    """The pool with its sentence."""
    return msgspec.structs.replace(pool, headline=headline(pool))


def _change(change: Standing) -> ChangeShown:
    fields = {CALLED.get(name, name): str(value) for name, value in change.override.changes.items()}
    return ChangeShown(change.tenant, change.pool, fields, round(change.left_s, 1))
