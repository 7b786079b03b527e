"""What a request took beyond what it was charged at its grant: the same for every ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.ledger.base import Refusal

if TYPE_CHECKING:
    from kvgate.ledger.base import Grant, Served
    from kvgate_policies.types import PriorityClass


@dataclass(frozen=True, slots=True)
class Charge:
    """By how much what a request took differs from what it was charged for."""

    priority: PriorityClass
    work: int
    work_of_turn: int
    """0 for a request that started without a turn."""
    tokens: int
    """0 for one that was not charged to the budgets."""


def charge_of(grant: Grant, served: Served) -> Charge:
    """What it took beyond what was charged, where it was charged: one that started without a turn was not charged
    to its flow, and one that would have been refused not to the budgets.
    """
    work = served.work - grant.work
    tokens = 0 if isinstance(grant.forced, Refusal) else served.tokens - grant.tokens
    return Charge(grant.priority, work, work if grant.forced is None else 0, tokens)
