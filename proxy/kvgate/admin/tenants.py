"""Tenants and queues as the admin port shows them. Pure: from the book, the changes and the ledgers' views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.admin.models import (
    ChangeView,
    PoolQueueView,
    TenantDetail,
    TenantInPoolView,
    TenantUseView,
    TenantView,
    ValueView,
    WaitingView,
)
from kvgate.admin.waiting import waits_for
from kvgate.config.layers import LIMITS, RULES
from kvgate.config.overrides import CALLED
from kvgate_policies.types import EngineUse, LedgerView, TenantPolicy, TenantUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvgate.config.standing import Standing
    from kvgate.config.tenants import TenantBook

Uses = dict[str, dict[str, TenantUse]]
"""What each tenant uses, by pool and name."""


def page(names: Sequence[str], after: str | None, limit: int) -> tuple[list[str], str | None]:
    """`limit` of the names behind `after`, sorted, and the last of them if there are more."""
    behind = sorted(name for name in names if after is None or name > after)
    shown = behind[:limit]
    return shown, shown[-1] if len(behind) > limit else None


def uses_of(views: Mapping[str, LedgerView]) -> Uses:
    return {pool: {use.name: use for use in view.tenants} for pool, view in views.items()}


def tenant_view(name: str, book: TenantBook, changes: Iterable[Standing], uses: Uses) -> TenantView:
    return TenantView(
        name=name,
        pools=[_use(book.policy(name, pool), pool, used) for pool, used in uses.items()],
        changes=changes_of(name, changes),
    )


def tenant_detail(name: str, book: TenantBook, changes: Iterable[Standing], uses: Uses) -> TenantDetail:
    pools = [
        TenantInPoolView(
            pool=pool, policy=values(name, pool, book), use=_use(book.policy(name, pool), pool, used)
        )
        for pool, used in uses.items()
    ]
    return TenantDetail(name=name, pools=pools, changes=changes_of(name, changes))


def values(name: str, pool: str, book: TenantBook) -> dict[str, ValueView]:
    """Every value that holds for a tenant in a pool, and where it was written. `risk` is None where nobody's has an
    effect, since all tenants of the pool reserve peaks.
    """
    policy, origins = book.policy(name, pool), book.origins(name, pool)
    plain = {one: getattr(policy, one) for one in LIMITS} | {one: getattr(policy.rules, one) for one in RULES}
    if not book.forecasts(pool):
        plain["risk"] = None
    return {
        CALLED.get(one, one): ValueView(value=value, origin=origins.get(one, "default"))
        for one, value in plain.items()
    }


def changes_of(name: str, changes: Iterable[Standing]) -> list[ChangeView]:
    return [
        ChangeView(
            pool=one.pool,
            fields={CALLED.get(name, name): value for name, value in one.override.changes.items()},
            until=one.override.until,
            left_s=round(one.left_s, 3),
        )
        for one in changes
        if one.tenant == name
    ]


def queue_view(pool: str, view: LedgerView) -> PoolQueueView:
    waiting = sorted((use for use in view.tenants if use.queued), key=lambda use: -use.oldest_wait_s)
    kept_free = [use.limits.engine_id for use in view.engines if use.pinned_by is not None]
    accepting = [use for use in view.engines if use.limits.accepting]
    closed = [use for use in view.engines if not use.limits.accepting]
    return PoolQueueView(
        pool=pool,
        queued=view.queued,
        oldest_wait_s=view.oldest_wait_s,
        blocks=sum(use.limits.blocks for use in accepting),
        reserved_blocks=sum(use.reserved.use_blocks for use in view.engines),
        peak_blocks=sum(use.reserved.blocks for use in view.engines),
        share_blocks=_share_blocks(accepting),
        seqs=sum(use.limits.seqs for use in accepting),
        reserved_seqs=sum(use.reserved.seqs for use in view.engines),
        prefill_tokens=sum(use.limits.prefill_tokens for use in accepting),
        reserved_prefill_tokens=sum(use.reserved.prefill_tokens for use in view.engines),
        closed_blocks=sum(use.reserved.use_blocks for use in closed),
        closed_seqs=sum(use.reserved.seqs for use in closed),
        closed_prefill_tokens=sum(use.reserved.prefill_tokens for use in closed),
        engines_accepting=len(accepting),
        engines=len(view.engines),
        kept_free=kept_free,
        tenants=[_waiting(use, view) for use in waiting],
    )


def _share_blocks(engines: Iterable[EngineUse]) -> int | None:
    shares = [use.share.blocks for use in engines if use.share is not None]
    return sum(shares) if shares else None


def _waiting(use: TenantUse, view: LedgerView) -> WaitingView:
    return WaitingView(
        tenant=use.name,
        queued=use.queued,
        oldest_wait_s=use.oldest_wait_s,
        waits_for=waits_for(use, view) or "room",
    )


def _use(policy: TenantPolicy, pool: str, used: Mapping[str, TenantUse]) -> TenantUseView:
    use = used.get(policy.name) or TenantUse(policy.name, policy.rules)
    return TenantUseView(
        pool=pool,
        priority=policy.priority.value,
        weight=policy.rules.weight,
        guarantee=policy.rules.guarantee,
        limit=policy.rules.limit,
        limit_tokens=policy.rules.limit_tokens,
        mode=policy.mode,
        blocks=use.blocks,
        blocks_guaranteed=use.blocks_guaranteed,
        blocks_limit=use.blocks_limit,
        reservations=use.reservations,
        queued=use.queued,
        oldest_wait_s=use.oldest_wait_s,
        service=use.service,
    )
