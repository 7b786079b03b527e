"""The tenants of a ledger in a view: a bounded page, those that wait or hold something first.

One step over the tenants, none over the requests, since it is read with every scrape.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from kvgate_policies.types import TENANTS_SHOWN_MAX, TenantUse

if TYPE_CHECKING:
    from kvgate.ledger.queue import Queue
    from kvgate.ledger.tenants import Tenants


def tenants_shown(tenants: Tenants, queue: Queue, now_s: float) -> tuple[TenantUse, ...]:
    """Those that wait, hold something, or have rules of their own; the busy ones first, then by name."""
    names = {*tenants.named(), *queue.tenants()}

    def is_idle_and_name(name: str) -> tuple[bool, str]:
        return not (queue.depth(name) or tenants.account(name).reservations), name

    shown = heapq.nsmallest(TENANTS_SHOWN_MAX, names, key=is_idle_and_name)
    return tuple(_use(name, tenants, queue, now_s) for name in shown)


def _use(name: str, tenants: Tenants, queue: Queue, now_s: float) -> TenantUse:
    account, oldest = tenants.account(name), queue.oldest_of(name)
    return TenantUse(
        name,
        account.rules,
        account.blocks,
        account.guaranteed,
        tenants.pool_blocks if account.limit is None else account.limit,
        account.reservations,
        queue.depth(name),
        0.0 if oldest is None else now_s - oldest.since_s,
        account.service,
    )
