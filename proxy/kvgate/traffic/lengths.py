"""Lengths in tokens: of requests one by one, or as a histogram knows them. Pure.

A histogram tells only between which bounds a length lies. Then the upper one counts, so that a percentile is at
most too high, and a share that would be cut is at most too large: `exact` says which of both it is.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Lengths(Protocol):
    """A distribution of lengths, tokens."""

    @property
    def count(self) -> int: ...

    @property
    def mean(self) -> float:
        """0 of nothing."""
        ...

    @property
    def exact(self) -> bool: ...

    def percentile(self, percent: float) -> float:
        """The smallest length that `percent` % are not above; infinite beyond the last bound, 0 of nothing."""
        ...

    def share_above(self, tokens: float) -> float:
        """The share of those that are longer, 0 to 1."""
        ...


class Listed:
    """Lengths that are all known, perhaps many of one length."""

    exact = True

    def __init__(self, values: Iterable[int]) -> None:
        self._values = sorted(values)

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def mean(self) -> float:
        return sum(self._values) / len(self._values) if self._values else 0.0

    def percentile(self, percent: float) -> float:
        if not self._values:
            return 0.0
        return float(self._values[max(math.ceil(len(self._values) * percent / 100) - 1, 0)])

    def share_above(self, tokens: float) -> float:
        above = len(self._values) - bisect_right(self._values, tokens)
        return above / len(self._values) if self._values else 0.0


class Bucketed:
    """Lengths of a histogram."""

    exact = False

    def __init__(self, bounds: Sequence[float], counts: Sequence[int], total_tokens: float) -> None:
        """`counts` are those of each bucket alone. Raises ValueError for bounds that do not grow."""
        if len(bounds) != len(counts) or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError("a histogram has growing bounds, and a count for each")
        self.bounds = tuple(bounds)
        self._up_to = tuple(accumulate(counts))
        self._total_tokens = total_tokens

    @property
    def count(self) -> int:
        return self._up_to[-1] if self._up_to else 0

    @property
    def mean(self) -> float:
        return self._total_tokens / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        if not self.count:
            return 0.0
        wanted = self.count * percent / 100
        return next(bound for bound, up_to in zip(self.bounds, self._up_to, strict=True) if up_to >= wanted)

    def share_above(self, tokens: float) -> float:
        below = bisect_right(self.bounds, tokens)
        return 1 - (self._up_to[below - 1] if below else 0) / self.count if self.count else 0.0


class Summed:
    """The sum of two lengths of which only the histograms are known, not which belong together.

    P(a + b > x + y) ≤ P(a > x) + P(b > y), whatever depends on what: the least such bound is taken.
    """

    exact = False

    def __init__(self, first: Bucketed, second: Bucketed) -> None:
        self._first, self._second = first, second
        pairs = ((a, b) for a in (0.0, *first.bounds) for b in (0.0, *second.bounds))
        bound = sorted((a + b, first.share_above(a) + second.share_above(b)) for a, b in pairs)
        self._lengths = [length for length, _ in bound]
        self._above = list(accumulate((share for _, share in bound), min))

    @property
    def count(self) -> int:
        return min(self._first.count, self._second.count)

    @property
    def mean(self) -> float:
        return self._first.mean + self._second.mean

    def percentile(self, percent: float) -> float:
        if not self.count:
            return 0.0
        above = 1 - percent / 100 + 1e-9
        pairs = zip(self._lengths, self._above, strict=True)
        return next((length for length, share in pairs if share <= above), math.inf)

    def share_above(self, tokens: float) -> float:
        found = bisect_right(self._lengths, tokens) - 1
        return min(self._above[found], 1.0) if self.count and found >= 0 else float(bool(self.count))
