"""What a process may use of an engine while the shared ledger is away, beside what a request takes: why it waits on an
engine that is idle. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate_policies.kv_cost import fits_empty
from kvgate_policies.placement import blocks_counted
from kvgate_policies.types import ZERO_COST, EngineUse, KVCost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvgate.admission.pricing import Priced
    from kvgate_policies.forecast_fit import ZVector
    from kvgate_policies.types import LedgerView


@dataclass(frozen=True, slots=True)
class CutOff:
    """Of the engine where most of the request fits."""

    needs_blocks: int
    """What it takes by itself: its peak, or at the risk of its tenant."""
    needs_seqs: int
    most: KVCost
    """That this process may use of the engine, or give its tenant of it."""
    blocks: int
    seqs: int
    """The whole of the engine."""
    by_limit: bool = False
    """It is its tenant's limit that is divided among the processes."""

    @property
    def for_ledger(self) -> bool:
        """Whether nothing lets it start here before the ledger is back."""
        return self.needs_blocks > self.most.blocks or self.needs_seqs > self.most.seqs

    @property
    def share(self) -> str:
        """What holds until the ledger is back, in words."""
        most = self.most
        if self.by_limit:
            return f"until it is back each process gives you at most {_blocks(most.blocks)} of your limit"
        return (
            f"until it is back each process may use at most {most.blocks} of the {_blocks(self.blocks)} and "
            f"{most.seqs} of the {_slots(self.seqs)} of an engine"
        )

    @property
    def needs(self) -> str:
        """In words."""
        return f"{_blocks(self.needs_blocks)} and {_slots(self.needs_seqs)}"


def cut_off(priced: Priced, tenant: str, view: LedgerView, z: ZVector) -> CutOff | None:
    """None where the shared ledger is there, or nothing is bounded without it."""
    limit = next((use.blocks_limit for use in view.tenants if use.name == tenant), None)
    return max(_each(priced, view, limit, z), key=_spare, default=None)


def _each(priced: Priced, view: LedgerView, limit: int | None, z: ZVector) -> Iterator[CutOff]:
    for use in view.engines:
        cost = priced.costs.get(use.limits.shape)
        if cost is not None and use.share is not None and fits_empty(cost, use.limits):
            yield _of_engine(cost, use, use.share, limit, z)


def _of_engine(cost: KVCost, use: EngineUse, share: KVCost, limit: int | None, z: ZVector) -> CutOff:
    engine = use.limits
    if limit is not None and limit < min(cost.use_blocks, share.blocks):
        most = KVCost(limit, share.seqs, share.prefill_tokens)
        return CutOff(cost.use_blocks, cost.seqs, most, engine.blocks, engine.seqs, by_limit=True)
    needs = math.ceil(blocks_counted(ZERO_COST, cost, z))
    return CutOff(needs, cost.seqs, share, engine.blocks, engine.seqs)


def _blocks(count: int) -> str:
    return f"{count} KV block" + ("" if count == 1 else "s")


def _slots(count: int) -> str:
    return f"{count} sequence slot" + ("" if count == 1 else "s")


def _spare(one: CutOff) -> tuple[bool, int]:
    return not one.for_ledger, one.most.blocks - one.needs_blocks
