"""Tenants as the console shows them. Pure: from the ledger's view and the policy in force."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from kvgate.admin.waiting import waits_for
from kvgate.console.snapshot import TenantShown
from kvgate_policies.types import CLASSES, TenantPolicy

if TYPE_CHECKING:
    from kvgate.admin.waiting import WaitsFor
    from kvgate.config.tenants import TenantBook
    from kvgate_policies.types import LedgerView, TenantUse


def tenants_shown(view: LedgerView, pool: str, book: TenantBook) -> tuple[TenantShown, ...]:
    """Those of the view, who are boundedly many: who waits longest first, then who holds most."""
    uses = sorted(view.tenants, key=lambda use: (-use.oldest_wait_s, -use.queued, -use.blocks, use.name))
    shown = [_tenant(use, _policy(book, use, pool), waits_for(use, view)) for use in uses]
    waiting = {one.priority for one in shown if _is_in_turn(one)}
    return tuple(_with_turn(one, waiting) for one in shown)


def _is_in_turn(tenant: TenantShown) -> bool:
    """It waits for what others wait for, too, by the rules."""
    return tenant.waits_for in {"room", "prompts"} and tenant.mode == "enforce"


def _with_turn(tenant: TenantShown, waiting: set[str]) -> TenantShown:
    """Who comes first, by the classes that wait; ageing, which lets a low class through now and then, aside."""
    if not _is_in_turn(tenant):
        return tenant
    if tenant.blocks < tenant.blocks_guaranteed:
        return msgspec.structs.replace(tenant, below_guarantee=True)
    higher = CLASSES[: [one.value for one in CLASSES].index(tenant.priority)]
    after = tuple(one.value for one in higher if one.value in waiting)
    return msgspec.structs.replace(tenant, after=after) if after else tenant


def _policy(book: TenantBook, use: TenantUse, pool: str) -> TenantPolicy:
    """Somebody who left the policy may still hold something."""
    try:
        return book.policy(use.name, pool)
    except KeyError:
        return TenantPolicy(use.name, rules=use.rules)


def _tenant(use: TenantUse, policy: TenantPolicy, waits: WaitsFor | None) -> TenantShown:
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
        waits_for=waits,
    )


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
