"""What one walk of the grant loop has seen so far, and how its prices compare (`grants` has the rules)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvgate.ledger.queue import Entry
from kvgate_policies.forecast_fit import ZVector
from kvgate_policies.kv_cost import fits_empty
from kvgate_policies.occupancy import Occupancy
from kvgate_policies.types import EngineShape, EngineUse, KVCost

if TYPE_CHECKING:
    from kvgate.ledger.turns import FlowKey

Costs = Mapping[EngineShape, KVCost]
Misfit = tuple[Costs, ZVector]


@dataclass(slots=True)
class Seen:
    """What one walk has seen of a flow."""

    passed: int = 0
    """Entries passed, all at the front of the flow."""
    unpinned: int = 0
    """Those of them that had no pin then."""


@dataclass(slots=True)
class Walk:
    """What one walk has seen so far."""

    passed: list[Entry] = field(default_factory=list[Entry])
    seen: dict[FlowKey, Seen] = field(default_factory=dict["FlowKey", Seen])
    done: set[FlowKey] = field(default_factory=set["FlowKey"])
    flows: int = 0
    """Flows done, apart from those that only wait for what they pinned."""
    claimed: dict[str, int] = field(default_factory=dict[str, int])
    """Tenant → blocks kept free for its passed entries by pins."""
    kept: dict[str, int] = field(default_factory=dict[str, int])
    """Request id → blocks of the open part that are kept free for it."""
    misfits: list[Misfit] = field(default_factory=list[Misfit])
    """Prices and risks that fitted nowhere: what costs as much or more, at no more risk, needs no look."""
    again: bool = False
    """Look again from the head (rule 9)."""

    def finish(self, flow: FlowKey, seen: Seen) -> None:
        self.done.add(flow)
        self.flows += seen.unpinned > 0


def up_to(costs: Costs, blocks: int) -> Costs:
    """The prices of which a tenant would use at most so many blocks; the same object when all are."""
    if all(cost.use_blocks <= blocks for cost in costs.values()):
        return costs
    return {shape: cost for shape, cost in costs.items() if cost.use_blocks <= blocks}


def could_use(entry: Entry, costs: Costs, use: EngineUse) -> bool:
    limits = use.limits
    if not limits.accepting or limits.engine_id in entry.avoid:
        return False
    cost = costs.get(limits.shape)
    return cost is not None and fits_empty(cost, limits)


def is_at_least(costs: Costs, z: ZVector, misfit: Misfit) -> bool:
    """Whether a request needs as much room as the misfit on every engine it is priced for."""
    small, z_small = misfit
    if z is not z_small and any(own < other for own, other in zip(z, z_small, strict=True)):
        return False
    if costs == small:
        return True
    return all(_not_below(cost, small.get(shape)) for shape, cost in costs.items())


def lowest(cost: KVCost) -> int:
    """Its smallest part, those of its forecast included."""
    least = min(cost.blocks, cost.seqs, cost.prefill_tokens)
    return least if cost.expected is None else min(least, _lowest_of(cost.expected))


def _lowest_of(occupancy: Occupancy) -> int:
    return min(*occupancy.means, *occupancy.variances)


def _not_below(cost: KVCost, other: KVCost | None) -> bool:
    if other is None:
        return False
    return (
        cost.blocks >= other.blocks
        and cost.seqs >= other.seqs
        and cost.prefill_tokens >= other.prefill_tokens
        and (cost.expected is other.expected or _lowest_of(cost.occupancy - other.occupancy) >= 0)
    )
