"""How likely is an answer to get longer than it is? The survival curve of output lengths.

`S(l) = P(L > l)`, the product over tokens of (1 − hazard), the hazard being constant within a bin of
`forecast_lengths` (Kaplan and Meier 1958; within bins, the discrete piecewise-exponential model). What is asked
of it is conditional: a sequence that has emitted g tokens emits m more with probability `S(g + m) / S(g)`.

Where little was seen, the curve leans on a parent: a tenant's on its pool's, a pool's on a wide prior. The
parent counts as `PARENT_SEQUENCES` sequences seen beside the real ones, so it fades as they come in, and bin by
bin: a tenant's first hundred short answers say nothing about its tail, which stays the parent's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from kvgate_policies.forecast_lengths import EDGES, TOKENS_MAX, LengthHistogram

PARENT_SEQUENCES = 4.0
"""How many sequences the parent's curve is worth: a few, so that ten real ones outweigh it."""
PRIOR_MEDIAN_TOKENS = 256.0
PRIOR_SIGMA = 1.5
"""The wide prior: log-normal, 1 in 100 above 8000 tokens."""
HAZARD_MAX = 1.0 - 1e-9
"""Keeps logarithms finite where every sequence seen ended."""
FEW_LEFT = -12.0
"""log S below which differences of sums over all sequences say too little about those that are left."""
LENGTH_MAX = 4 * TOKENS_MAX
"""The longest length a quantile names; no window is larger."""
_WIDTHS = tuple(after - edge for edge, after in zip(EDGES, (*EDGES[1:], LENGTH_MAX), strict=True))


@dataclass(frozen=True, slots=True)
class Survival:
    """A survival curve, ready to be asked often. Make it with `survival`, `prior` or `never_ends`."""

    hazards: tuple[float, ...]
    """P(this token is the last | it is emitted), for each bin."""
    _before: tuple[float, ...]
    """log S just before the first token of each bin."""
    _slopes: tuple[float, ...]
    """log(1 − hazard) of each bin."""
    _ends_before: tuple[float, ...]
    """Hazards added up over all tokens before each bin."""
    _emitted_before: tuple[float, ...]
    """P(a token is emitted), added up over all tokens before each bin."""

    def log_alive(self, tokens: int) -> float:
        """log P(L > tokens)."""
        index = bisect_right(EDGES, tokens) - 1
        if index < 0:
            return 0.0
        return self._before[index] + (tokens - EDGES[index] + 1) * self._slopes[index]

    def alive(self, generated: int, more: int) -> float:
        """P(L > generated + more | L > generated)."""
        return math.exp(self.log_alive(generated + more) - self.log_alive(generated))

    def chances(self, tokens: Iterable[int], sure: int) -> list[float]:
        """P(L > t | L > sure) for each t; 1 up to `sure`. As `alive`, for many at once."""
        before, slopes, base = self._before, self._slopes, self.log_alive(sure)
        found: list[float] = []
        for count in tokens:
            if count <= sure:
                found.append(1.0)
                continue
            index = bisect_right(EDGES, count) - 1
            found.append(math.exp(before[index] + (count - EDGES[index] + 1) * slopes[index] - base))
        return found

    def expected_ends(self, before: int, after: int) -> float:
        """How many of the trials `before + 1 … after` are expected to be the last: the sum of their hazards."""
        return self._ends_upto(after) - self._ends_upto(before)

    def quantile(self, q: float, generated: int = 0) -> int:
        """The least length l with P(L ≤ l | L > generated) ≥ q, at most `LENGTH_MAX`.

        Raises ValueError for a q outside (0, 1).
        """
        if not 0.0 < q < 1.0:
            raise ValueError(f"a quantile of {q}: expected a number between 0 and 1")
        target = self.log_alive(generated) + math.log1p(-q)
        low, high = generated + 1, LENGTH_MAX
        while low < high:
            middle = (low + high) // 2
            if self.log_alive(middle) <= target:
                high = middle
            else:
                low = middle + 1
        return low

    def mean_more(self, generated: int, limit: int) -> float:
        """Expected tokens still to come, for a sequence that is cut at `limit` tokens: Σ P(L ≥ l | L > g)."""
        base = self.log_alive(generated)
        if base > FEW_LEFT:
            return max(self._emitted_upto(limit) - self._emitted_upto(generated), 0.0) * math.exp(-base)
        more, position = 0.0, generated
        while position < limit:
            index = bisect_right(EDGES, position + 1) - 1
            after = EDGES[index + 1] - 1 if index + 1 < len(EDGES) else limit
            count = min(after, limit) - position
            begun = math.exp(self.log_alive(position) - base)
            more += begun * _geometric(self._slopes[index], count)
            position += count
        return more

    def _emitted_upto(self, tokens: int) -> float:
        """Expected tokens of a sequence that is cut at so many."""
        index = bisect_right(EDGES, tokens) - 1
        if index < 0:
            return 0.0
        begun = math.exp(self._before[index])
        return self._emitted_before[index] + begun * _geometric(
            self._slopes[index], tokens - EDGES[index] + 1
        )

    def _ends_upto(self, tokens: int) -> float:
        index = bisect_right(EDGES, tokens) - 1
        if index < 0:
            return 0.0
        return self._ends_before[index] + (tokens - EDGES[index] + 1) * self.hazards[index]


def survival(seen: LengthHistogram, parent: Survival) -> Survival:
    """The curve of what was seen, leaning on `parent` as on `PARENT_SEQUENCES` sequences more."""
    trials_parent = _trials(parent)
    return _compile(
        tuple(
            (ends + extra * hazard) / (trials + extra) if trials + extra > 0.0 else hazard
            for trials, ends, extra, hazard in zip(
                seen.trials, seen.ends, trials_parent, parent.hazards, strict=True
            )
        )
    )


def stretched(curve: Survival, ratio: float) -> Survival:
    """The curve of sequences that end `ratio` times as readily at every token: longer ones, for a ratio below 1."""
    return _compile(tuple(hazard * ratio for hazard in curve.hazards))


@cache
def prior() -> Survival:
    """What is assumed of lengths before any was seen: log-normal and wide."""
    alive = [_lognormal_alive(edge - 1) for edge in (*EDGES, LENGTH_MAX)]
    return _compile(
        tuple(
            1.0 - (after / before) ** (1.0 / width)
            for before, after, width in zip(alive, alive[1:], _WIDTHS, strict=False)
        )
    )


@cache
def never_ends() -> Survival:
    """Of a sequence that only its limit ends (`ignore_eos`): its length is known."""
    return _compile((0.0,) * len(EDGES))


def _trials(curve: Survival) -> list[float]:
    """The trials in each bin that `PARENT_SEQUENCES` sequences of this curve would have had."""
    return [
        PARENT_SEQUENCES * math.exp(before) * _geometric(slope, width)
        for before, slope, width in zip(curve._before, curve._slopes, _WIDTHS, strict=True)  # noqa: SLF001
    ]


def _geometric(slope: float, count: int) -> float:
    """1 + s + s² + … of `count` terms, s being exp(slope) and slope at most 0."""
    if slope > -1e-12:
        return float(count)
    return math.expm1(slope * count) / math.expm1(slope)


def _compile(hazards: tuple[float, ...]) -> Survival:
    bounded = tuple(min(max(hazard, 0.0), HAZARD_MAX) for hazard in hazards)
    slopes = tuple(math.log1p(-hazard) for hazard in bounded)
    before, ends, emitted = [0.0], [0.0], [0.0]
    for slope, hazard, width in zip(slopes[:-1], bounded[:-1], _WIDTHS[:-1], strict=True):
        emitted.append(emitted[-1] + math.exp(before[-1]) * _geometric(slope, width))
        before.append(before[-1] + slope * width)
        ends.append(ends[-1] + hazard * width)
    return Survival(bounded, tuple(before), slopes, tuple(ends), tuple(emitted))


def _lognormal_alive(tokens: int) -> float:
    """P(L > tokens) under the prior, the continuous value rounded up to whole tokens."""
    if tokens < 1:
        return 1.0
    return 0.5 * math.erfc(math.log(tokens / PRIOR_MEDIAN_TOKENS) / (PRIOR_SIGMA * math.sqrt(2.0)))
