"""What a request is refused for before it has a place, and what no caller may ask. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.ledger.base import Ask, RateSpent, Refusal
from kvgate.ledger.walk import Costs, lowest, up_to
from kvgate_policies.types import KVCost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.ledger.book import Book
    from kvgate.ledger.ceilings import Ceilings
    from kvgate.ledger.tenants import Tenants

FORCED_THROUGH = frozenset({Refusal.NEVER_FITS, Refusal.RATE})
"""What a forced request is not refused for at the door."""


def refusal_at_the_door(ask: Ask, book: Book, tenants: Tenants, now_ms: int) -> Refusal | RateSpent | None:
    """The first reason there is, in the order that `core` tells; None when it may queue."""
    limit = tenants.account(ask.tenant).limit
    if never_fits(ask.costs, book.known, limit):
        return Refusal.NEVER_FITS
    if avoids_all(ask, book):
        return Refusal.NO_ENGINE
    return tenants.spent(ask.tenant, ask.tokens, now_ms) if ask.seq is None else None


def never_fits(costs: Costs, known: Ceilings, limit: int | None = None) -> bool:
    """Whether it is priced for an engine, and none could ever hold it at a price of at most `limit` blocks."""
    allowed = costs if limit is None else up_to(costs, limit)
    return known.price(costs) and not known.cover(allowed)


def avoids_all(ask: Ask, book: Book) -> bool:
    return all(use.limits.engine_id in ask.avoid for use in book.uses())


def check_ask(ask: Ask, *, is_known: bool) -> None:
    """Raises ValueError for an id that is queued or holds a reservation, and for a negative cost or charge."""
    if is_known:
        raise ValueError(f"request {ask.request_id} is queued or holds a reservation already")
    check_costs(ask.costs)
    if ask.work < 0 or ask.tokens < 0:
        raise ValueError(f"request {ask.request_id}: a charge is not negative: {ask.work}, {ask.tokens}")


def check_costs(costs: Mapping[Any, KVCost]) -> None:
    """Raises ValueError for a negative one."""
    for cost in costs.values():
        check_cost(cost)


def check_cost(cost: KVCost) -> None:
    if lowest(cost) < 0:
        raise ValueError(f"a cost has no negative part: {cost}")


def ms(now_s: float) -> int:
    """Milliseconds, to the nearest: what ranks and budgets are kept in."""
    return round(now_s * 1000)
