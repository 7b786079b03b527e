"""Tenants as the console shows them. Pure: from the ledger's view and the policy in force."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvgate.console.snapshot import TenantShown, WaitsFor
from kvgate_policies.types import TenantPolicy

if TYPE_CHECKING:
    from kvgate.config.tenants import TenantBook
    from kvgate_policies.types import LedgerView, TenantUse


def tenants_shown(view: LedgerView, pool: str, book: TenantBook) -> tuple[TenantShown, ...]:
    """Those of the view, who are boundedly many: who waits longest first, then who holds most."""
    accepting = any(use.limits.accepting for use in view.engines)
    blocks = sum(use.limits.blocks for use in view.engines if use.limits.accepting)
    uses = sorted(view.tenants, key=lambda use: (-use.oldest_wait_s, -use.queued, -use.blocks, use.name))
    return tuple(
        _tenant(use, _policy(book, use, pool), _waits_for(use, blocks, accepting=accepting)) for use in uses
    )


def _policy(book: TenantBook, use: TenantUse, pool: str) -> TenantPolicy:
    """Somebody who left the policy may still hold something."""
    try:
        return book.policy(use.name, pool)
    except KeyError:
        return TenantPolicy(use.name, rules=use.rules)


def _tenant(use: TenantUse, policy: TenantPolicy, waits_for: WaitsFor | None) -> TenantShown:
    rules = policy.rules
    return TenantShown(
        name=use.name,
        priority=policy.priority.value,
        weight=rules.weight,
        guarantee=rules.guarantee,
        limit=rules.limit,
        limit_tokens=rules.limit_tokens,
        borrow=rules.borrow,
        mode=policy.mode,
        blocks=use.blocks,
        blocks_guaranteed=use.blocks_guaranteed,
        blocks_limit=use.blocks_limit,
        reservations=use.reservations,
        queued=use.queued,
        oldest_wait_s=round(use.oldest_wait_s, 3),
        service=round(use.service),
        waits_for=waits_for,
    )


def _waits_for(use: TenantUse, blocks: int, *, accepting: bool) -> WaitsFor | None:
    """As far as the sums show: how large the next request is, only the queue knows."""
    if not use.queued:
        return None
    if not accepting:
        return "an engine"
    return "its own limit" if _is_at_limit(use, blocks) else "room"


def _is_at_limit(use: TenantUse, blocks: int) -> bool:
    """One more of the size that its requests have now would exceed what the policy gives it."""
    bound = use.blocks_limit if use.rules.borrow else min(use.blocks_limit, use.blocks_guaranteed)
    typical = -(-use.blocks // use.reservations) if use.reservations else 1
    return bound < blocks and use.blocks + typical > bound


class Modes:
    """How many tenants of a pool are in which mode, counted once for each policy: there may be ten thousand."""

    def __init__(self) -> None:
        self._book: TenantBook | None = None
        self._counts: dict[str, Counter[str]] = {}

    def of(self, book: TenantBook, pool: str) -> Counter[str]:
        if book is not self._book:
            self._book, self._counts = book, {}
        if pool not in self._counts:
            self._counts[pool] = Counter(book.policy(name, pool).mode for name in book.names)
        return self._counts[pool]
