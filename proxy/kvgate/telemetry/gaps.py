"""A histogram for very many small observations.

A busy proxy sees ten thousand chunks a second; observing each in a client-library histogram costs 2 µs, under
a lock. Here a batch costs one bisection for each value, and the cumulative buckets are computed when scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BulkHistogram:
    """Counts by bucket; `observe` on one thread, `cumulative` on any."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, values: Iterable[float]) -> None:
        """Count each value in the first bucket whose upper bound is not below it."""
        bounds, counts, total = self._bounds, self._counts, 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.sum += total

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, observations at or below it), the last bound infinite."""
        return list(zip((*self._bounds, inf), accumulate(self._counts), strict=True))
