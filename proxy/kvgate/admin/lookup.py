"""Finding what a path or a body names, or saying what there is instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import HTTPException

from kvgate.admin.problems import SHOWN_CHARS_MAX
from kvgate.admin.tenants import tenant_detail, uses_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.admin.models import TenantDetail
    from kvgate.admin.state import AdminState, PoolState
    from kvgate_policies.types import LedgerView

NAMES_SHOWN_MAX = 20
"""Of those that there are, in a message."""


def pool_named(state: AdminState, name: str | None) -> PoolState:
    """The pool of that name, the first without one. Raises HTTPException 404."""
    pools = state.pools()
    if name is None:
        return pools[0]
    for pool in pools:
        if pool.name == name:
            return pool
    raise _not_there("pool", name, [pool.name for pool in pools])


def pools_chosen(state: AdminState, name: str | None) -> Sequence[PoolState]:
    """The pool of that name, all without one. Raises HTTPException 404."""
    return state.pools() if name is None else [pool_named(state, name)]


def must_be_tenant(state: AdminState, name: str) -> None:
    """Raises HTTPException 404."""
    names = state.tenants.book.names
    if name not in names:
        raise _not_there("tenant", name, names)


def tenant_named(state: AdminState, name: str) -> TenantDetail:
    """Everything about a tenant. Raises HTTPException 404."""
    must_be_tenant(state, name)
    book = state.tenants.book
    return tenant_detail(name, book, state.tenants.standing(), uses_of(ledger_views(state)))


def pools_of_engine(state: AdminState, engine_id: str, pool: str | None) -> list[PoolState]:
    """The pools that have an engine of this id, or a backend of this URL. Raises HTTPException 404."""
    chosen = pools_chosen(state, pool)
    found = [
        one for one in chosen if any(engine_id in {status.id, status.url} for status in one.engine_statuses())
    ]
    if not found:
        raise _not_there("engine", engine_id, [s.id for one in chosen for s in one.engine_statuses()])
    return found


def ledger_views(state: AdminState) -> dict[str, LedgerView]:
    """By pool, in their order."""
    return {pool.name: pool.ledger_view() for pool in state.pools()}


def _not_there(what: str, name: str, there: list[str] | tuple[str, ...]) -> HTTPException:
    shown = ", ".join(there[:NAMES_SHOWN_MAX]) or "none"
    more = f" and {len(there) - NAMES_SHOWN_MAX} more" if len(there) > NAMES_SHOWN_MAX else ""
    return HTTPException(404, f"No {what} {name[:SHOWN_CHARS_MAX]!r}; there are: {shown}{more}.")
