"""What a tenant waits for, as far as the sums show: how large the next request is, only the queue knows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvgate_policies.forecast_fit import Z_DEFAULT
from kvgate_policies.placement import blocks_counted
from kvgate_policies.types import ZERO_COST

if TYPE_CHECKING:
    from kvgate_policies.types import EngineUse, LedgerView, TenantUse

WaitsFor = Literal["an engine", "its own limit", "prompts", "room"]


def blocks_of(view: LedgerView) -> int:
    """What guarantees and limits are shares of: all engines that are known, accepting work or not."""
    return sum(use.limits.blocks for use in view.engines)


def waits_for(use: TenantUse, view: LedgerView) -> WaitsFor | None:
    """None for a tenant of which nothing waits."""
    if not use.queued:
        return None
    if not any(one.limits.accepting for one in view.engines):
        return "an engine"
    if _is_at_limit(use, view):
        return "its own limit"
    return "prompts" if _is_behind_prompts(use, view) else "room"


def _is_at_limit(use: TenantUse, view: LedgerView) -> bool:
    """One more of the size that its requests have now would exceed what the policy gives it."""
    bound = use.blocks_limit if use.rules.borrow else min(use.blocks_limit, use.blocks_guaranteed)
    return use.blocks + max(_each(use.blocks, use.reservations), 1) > bound and bound < blocks_of(view)


def _is_behind_prompts(use: TenantUse, view: LedgerView) -> bool:
    """Blocks and a slot for one more are free somewhere, and wherever they are, prompts not yet computed take half of
    their bound or more. Of prompts of one length a further one is kept out only there: one longer than half of the
    bound by the one before it, others where less than their length, at most half of the bound, is left.
    """
    typical = _typical(use, view)
    roomy = [one for one in view.engines if _has_room(one, typical)]
    return bool(roomy) and all(
        one.reserved.prefill_tokens > 0 and 2 * one.reserved.prefill_tokens >= one.limits.prefill_tokens
        for one in roomy
    )


def _typical(use: TenantUse, view: LedgerView) -> int:
    """Blocks of one of its requests that run, or of anyone's where none of its own does."""
    if use.reservations:
        return _each(use.blocks, use.reservations)
    blocks = sum(one.reserved.use_blocks for one in view.engines)
    return _each(blocks, sum(one.reservations for one in view.engines))


def _each(blocks: int, reservations: int) -> int:
    return -(-blocks // max(reservations, 1))


def _has_room(engine: EngineUse, blocks: int) -> bool:
    """Prompts aside. What is kept free for one request is no room for others."""
    limits, reserved = engine.limits, engine.reserved
    taken = blocks_counted(reserved, ZERO_COST, Z_DEFAULT)
    return (
        limits.accepting
        and engine.pinned_by is None
        and reserved.seqs < limits.seqs
        and taken + max(blocks, 1) <= limits.blocks_open
    )
