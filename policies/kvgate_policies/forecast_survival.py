"""How likely is an answer to get longer than it is? The survival curve of output lengths.

`S(l) = P(L > l)`, a life table over the bins of `forecast_lengths`: of the sequences that come to a bin, a part
`dying` ends in it (Kaplan and Meier 1958; the actuarial estimate, see `survival`), at places that have the mean and
about the variance of the ends seen there (`forecast_bins`). What is asked of the curve is conditional: a sequence
that has emitted g tokens emits m more with probability `S(g + m) / S(g)`.

The hazard of a token is kept beside it, ends over trials between those places: by it are ends expected while
sequences run (`forecast_change`), so that over what a curve was made of, as many are expected as came.

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

from kvgate_policies.forecast_bins import Bin, emitted, ended, even, learned
from kvgate_policies.forecast_lengths import EDGES, LENGTH_MAX, WIDTHS, LengthHistogram

PARENT_SEQUENCES = 4.0
"""How many sequences the parent's curve is worth: a few, so that ten real ones outweigh it."""
PRIOR_MEDIAN_TOKENS = 256.0
PRIOR_SIGMA = 1.5
"""The wide prior: log-normal, 1 in 100 above 8000 tokens."""
FEW_LEFT = 1e-5
"""S below which differences of sums over all sequences say too little about those that are left."""


@dataclass(frozen=True, slots=True)
class Survival:
    """A survival curve, ready to be asked often. Make it with `survival`, `prior` or `never_ends`."""

    bins: tuple[Bin, ...]
    seen_ends: float
    """Ends that it was learned from, the parent's included: infinite for one that is not learned."""
    _before: tuple[float, ...]
    """S just before the first token of each bin."""
    _ends_before: tuple[float, ...]
    """Hazards added up over all tokens before each bin."""
    _emitted_before: tuple[float, ...]
    """P(a token is emitted), added up over all tokens before each bin."""

    def alive(self, generated: int, more: int) -> float:
        """P(L > generated + more | L > generated)."""
        return self._alive(generated + more) / self._alive(generated)

    def chances(self, tokens: Iterable[int], sure: int) -> list[float]:
        """P(L > t | L > sure) for each t; 1 up to `sure`. As `alive`, for many at once."""
        bins, before, base = self.bins, self._before, self._alive(sure)
        found: list[float] = []
        for count in tokens:
            if count <= sure:
                found.append(1.0)
                continue
            index = bisect_right(EDGES, count) - 1
            found.append(before[index] * (1.0 - ended(bins[index], count - EDGES[index] + 1)) / base)
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
        target = self._alive(generated) * (1.0 - q)
        low, high = generated + 1, LENGTH_MAX
        while low < high:
            middle = (low + high) // 2
            if self._alive(middle) <= target:
                high = middle
            else:
                low = middle + 1
        return low

    def mean_more(self, generated: int, limit: int) -> float:
        """Expected tokens still to come, for a sequence that is cut at `limit` tokens: Σ P(L ≥ l | L > g)."""
        base = self._alive(generated)
        if base > FEW_LEFT:
            return max(self._emitted_upto(limit) - self._emitted_upto(generated), 0.0) / base
        more, position = 0.0, generated
        while position < limit:
            index = bisect_right(EDGES, position + 1) - 1
            upto = min(EDGES[index + 1] - 1 if index + 1 < len(EDGES) else limit, limit)
            more += self._emitted_in(index, upto) - self._emitted_in(index, position)
            position = upto
        return more / base

    def _alive(self, tokens: int) -> float:
        """P(L > tokens)."""
        index = bisect_right(EDGES, tokens) - 1
        if index < 0:
            return 1.0
        return self._before[index] * (1.0 - ended(self.bins[index], tokens - EDGES[index] + 1))

    def _emitted_upto(self, tokens: int) -> float:
        """Expected tokens of a sequence that is cut at so many."""
        index = bisect_right(EDGES, tokens) - 1
        return 0.0 if index < 0 else self._emitted_before[index] + self._emitted_in(index, tokens)

    def _emitted_in(self, index: int, tokens: int) -> float:
        """The part of it from the first token of that bin on."""
        return self._before[index] * emitted(self.bins[index], tokens - EDGES[index] + 1)

    def _ends_upto(self, tokens: int) -> float:
        index = bisect_right(EDGES, tokens) - 1
        if index < 0:
            return 0.0
        one = self.bins[index]
        there = max(min(tokens - EDGES[index] + 1, one.last) - one.first, 0.0)
        return self._ends_before[index] + one.hazard * there


def survival(seen: LengthHistogram, parent: Survival) -> Survival:
    """The curve of what was seen, leaning on `parent` as on `PARENT_SEQUENCES` sequences more.

    At risk in a bin, in whole sequences, is (trials + left) / width: one that ended in it counts as one, one that
    still runs there, or was cut, for the part that it came. The part that dies is ends over those at risk.
    """
    parent_came = (PARENT_SEQUENCES * before for before in parent._before)  # noqa: SLF001
    bins = [
        learned(width, counts, known, before) if counts[0] or counts[1] else known
        for width, counts, known, before in zip(
            WIDTHS, zip(*seen.columns, strict=True), parent.bins, parent_came, strict=True
        )
    ]
    return _compile(bins, sum(seen.ends) + PARENT_SEQUENCES)


def stretched(curve: Survival, ratio: float, seen: LengthHistogram) -> Survival:
    """The curve of sequences that end `ratio` times as readily in every bin that any was seen in: longer ones, for a
    ratio below 1. Where none was, `curve` is a guess, and stays that.
    """
    bins = [
        one._replace(dying=one.dying * ratio, hazard=one.hazard * ratio) if counts[0] or counts[1] else one
        for one, counts in zip(curve.bins, zip(*seen.columns, strict=True), strict=True)
    ]
    return _compile(bins, curve.seen_ends)


@cache
def prior() -> Survival:
    """What is assumed of lengths before any was seen: log-normal and wide."""
    alive = [_lognormal_alive(edge - 1) for edge in (*EDGES, LENGTH_MAX)]
    return _compile(
        [
            even(width, 1.0 - after / before)
            for before, after, width in zip(alive, alive[1:], WIDTHS, strict=False)
        ],
        PARENT_SEQUENCES,
    )


@cache
def never_ends() -> Survival:
    """Of a sequence that only its limit ends (`ignore_eos`): its length is known."""
    return _compile([even(width, 0.0) for width in WIDTHS], math.inf)


def _compile(bins: list[Bin], seen_ends: float) -> Survival:
    before, ends, tokens = [1.0], [0.0], [0.0]
    for one, width in zip(bins[:-1], WIDTHS[:-1], strict=True):
        tokens.append(tokens[-1] + before[-1] * emitted(one, width))
        ends.append(ends[-1] + one.hazard * (one.last - one.first))
        before.append(before[-1] * (1.0 - one.dying))
    return Survival(tuple(bins), seen_ends, tuple(before), tuple(ends), tuple(tokens))


def _lognormal_alive(tokens: int) -> float:
    """P(L > tokens) under the prior, the continuous value rounded up to whole tokens."""
    if tokens < 1:
        return 1.0
    return 0.5 * math.erfc(math.log(tokens / PRIOR_MEDIAN_TOKENS) / (PRIOR_SIGMA * math.sqrt(2.0)))
