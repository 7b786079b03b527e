"""What a set of engines could hold at most: can this request ever start on one of them?

The distinct whole capacities per shape, so that the question costs the same for one engine and for a hundred
equal ones. Two questions are asked of two sets: no *known* engine covers it → the request can never run;
no *accepting* engine covers it → it has to wait for an engine to come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate_policies.types import EngineLimits, EngineShape, KVCost

Capacities = frozenset[tuple[int, int]]
"""Distinct pairs of KV blocks and sequence slots."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Whole capacities by shape. Two that compare equal give the same answers."""

    by_shape: Mapping[EngineShape, Capacities]

    @classmethod
    def of(cls, engines: Iterable[EngineLimits]) -> Ceilings:
        by_shape: dict[EngineShape, set[tuple[int, int]]] = {}
        for limits in engines:
            by_shape.setdefault(limits.shape, set()).add((limits.blocks, limits.seqs))
        return cls({shape: frozenset(pairs) for shape, pairs in by_shape.items()})

    def price(self, costs: Mapping[EngineShape, KVCost]) -> bool:
        """Whether the request has a price for any of these engines."""
        return any(shape in costs for shape in self.by_shape)

    def cover(self, costs: Mapping[EngineShape, KVCost]) -> bool:
        """Whether one of these engines, when empty, holds the request (the prefill bound aside)."""
        for shape, pairs in self.by_shape.items():
            cost = costs.get(shape)
            if cost is not None and _any_covers(pairs, cost):
                return True
        return False


def _any_covers(pairs: Capacities, cost: KVCost) -> bool:
    return any(cost.blocks <= blocks and cost.seqs <= seqs for blocks, seqs in pairs)
