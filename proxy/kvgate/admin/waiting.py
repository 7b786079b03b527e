"""What a tenant waits for, as far as the sums show: how large the next request is, only the queue knows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kvgate_policies.types import LedgerView, TenantUse

WaitsFor = Literal["an engine", "its own limit", "room"]


def blocks_of(view: LedgerView) -> int:
    """What guarantees and limits are shares of: all engines that are known, accepting work or not."""
    return sum(use.limits.blocks for use in view.engines)


def waits_for(use: TenantUse, view: LedgerView) -> WaitsFor | None:
    """None for a tenant of which nothing waits."""
    if not use.queued:
        return None
    if not any(one.limits.accepting for one in view.engines):
        return "an engine"
    return "its own limit" if _is_at_limit(use, view) else "room"


def _is_at_limit(use: TenantUse, view: LedgerView) -> bool:
    """One more of the size that its requests have now would exceed what the policy gives it."""
    bound = use.blocks_limit if use.rules.borrow else min(use.blocks_limit, use.blocks_guaranteed)
    typical = -(-use.blocks // use.reservations) if use.reservations else 1
    return use.blocks + typical > bound and bound < blocks_of(view)
