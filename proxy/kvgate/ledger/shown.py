"""The tenants of a ledger in a view: a bounded page, those that wait or hold something first.

One step over the tenants, none over the requests, since it is read with every scrape.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate_policies.fairness import PoolSize, guaranteed_blocks, limit_blocks
from kvgate_policies.types import TENANTS_SHOWN_MAX, TenantUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvgate.ledger.queue import Queue
    from kvgate.ledger.tenants import Tenants
    from kvgate_policies.types import EngineUse


def tenants_shown(tenants: Tenants, queue: Queue, now_s: float) -> tuple[TenantUse, ...]:
    """Those that wait, hold something, or have rules of their own; the busy ones first, then by name."""
    names = {*tenants.named(), *queue.tenants()}

    def is_idle_and_name(name: str) -> tuple[bool, str]:
        return not (queue.depth(name) or tenants.account(name).reservations), name

    shown = heapq.nsmallest(TENANTS_SHOWN_MAX, names, key=is_idle_and_name)
    return tuple(_use(name, tenants, queue, now_s) for name in shown)


def parts_shown(
    tenants: Iterable[TenantUse], engines: Sequence[EngineUse], *, is_bounded: bool
) -> tuple[TenantUse, ...]:
    """Of a process that decides alone: the bounds of its part of each tenant's rules, as they are when it may use its
    whole share of these engines (`EngineUse.share`). They move with every reading, up to that.
    """
    pool = sum(one.limits.blocks for one in engines)
    mine = sum((one.limits if one.share is None else one.share).blocks for one in engines)
    size = PoolSize(mine, min((one.limits.shape.block_size for one in engines), default=1))
    return tuple(_part(use, pool, size, is_bounded=is_bounded) for use in tenants)


def _part(use: TenantUse, pool_blocks: int, size: PoolSize, *, is_bounded: bool) -> TenantUse:
    limit = limit_blocks(use.rules, size, 0) if is_bounded else None
    return replace(
        use,
        blocks_guaranteed=guaranteed_blocks(use.rules, size),
        blocks_limit=pool_blocks if limit is None else min(limit, pool_blocks),
    )


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
