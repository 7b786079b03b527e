"""What a request asks its ledger for: room at its price, and a place in the order. Pure."""

from __future__ import annotations

from functools import lru_cache

from kvgate.admission.contract import Call
from kvgate.admission.pricing import Priced
from kvgate.ledger.base import Ask
from kvgate_policies.forecast_fit import z_of
from kvgate_policies.types import Order

RISKS_MAX = 256
SHORT = 3.0
"""Times a tenant's mean work: from there on `shortest` gives a request no other place than its deadline would."""


z_for = lru_cache(RISKS_MAX)(z_of)
"""Worked out once for each risk that a policy names."""


def ask_for(
    request_id: str,
    call: Call,
    priced: Priced,
    *,
    mean_work: float,
    left_s: float,
    avoid: frozenset[str],
    prefer: tuple[str, ...] = (),
) -> Ask:
    """`left_s` is what remains of its wait, `mean_work` that of its tenant's requests."""
    tenant = call.tenant
    return Ask(
        request_id,
        tenant.name,
        priced.costs,
        tenant.queue_depth_max,
        priority=call.priority,
        work=priced.work,
        tokens=priced.tokens,
        rank_in_ms=rank_in_ms(tenant.order, priced.work, mean_work, left_s),
        force=not call.enforced,
        avoid=avoid,
        z=z_for(tenant.risk),
        prefer=prefer,
    )


def rank_in_ms(order: Order, work: float, mean_work: float, left_s: float) -> int | None:
    """Where a request stands among its tenant's: that far from now. None for the order of arrival.

    `deadline`: at the end of its wait. `shortest`: at a part of that, the smaller the request, so that small ones
    pass large ones; but who arrives later ranks later, so that a large one is passed only for a while.
    """
    if order == "fifo":
        return None
    part = min(1.0, work / (SHORT * mean_work)) if order == "shortest" and mean_work > 0 else 1.0
    return round(max(left_s, 0.0) * 1000 * part)
