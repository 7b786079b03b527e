"""What was seen of output lengths: a hazard histogram, a life table of answers.

Every token a sequence emits is a trial with two results: it was the last one, or it was not. Counted are the
trials and the ends in bins of token numbers, each bin √2 times as far out as the one before, and where in its bin
an end was, as the tokens that were *left* of the bin, added up, and added up as squares: so answers of one length
are known by that length. From these come the life table of lengths (`forecast_survival`) and the hazards by which
changes are noticed.

Why trials and not lengths: a running sequence has had its trials already, so it is counted while it still
runs, and the short ones, which always finish first, do not make the history look shorter than it is. A
sequence that was cut (`finish_reason=length`, the client left, the engine failed) has had its trials and no
end: that is all there is to censoring.

Bounded: four numbers for each of the `len(EDGES)` bins and one more, whatever is counted. Histograms add up by
adding the numbers, in any order, so that replicas may share one by increments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

TOKENS_MAX = 1 << 17
"""Where the last bin begins; it is open to the right."""


def _edges() -> tuple[int, ...]:
    halves = range(2 * (TOKENS_MAX.bit_length() - 1) + 1)
    return tuple(sorted({round(2.0 ** (half / 2)) for half in halves}))


EDGES = _edges()
"""The number of the first token of each bin: 1, 2, 3, 4, 6, 8, 11, 16 … 131072."""
LENGTH_MAX = 4 * TOKENS_MAX
"""The longest length that is told from longer ones; no window is larger. The last bin is over before it."""
WIDTHS = tuple(after - edge for edge, after in zip(EDGES, (*EDGES[1:], LENGTH_MAX), strict=True))
"""Tokens of each bin."""


def _zeros() -> list[float]:
    return [0.0] * len(EDGES)


def bin_of(token: int) -> int:
    """The bin of the `token`-th output token, counted from 1."""
    return bisect_right(EDGES, token) - 1


@dataclass(slots=True)
class LengthHistogram:
    """Trials and ends, by bin of token number."""

    trials: list[float] = field(default_factory=_zeros)
    ends: list[float] = field(default_factory=_zeros)
    left: list[float] = field(default_factory=_zeros)
    """Tokens of its bin that a sequence did not get to when it ended."""
    left_squares: list[float] = field(default_factory=_zeros)
    """Each of them squared."""
    sequences: float = 0.0
    """Sequences begun, faded like the rest."""

    def start(self) -> None:
        """One more sequence begins."""
        self.sequences += 1.0

    def reach(self, before: int, after: int) -> None:
        """A sequence went from `before` emitted tokens to `after`.

        Tokens that could not have been the last (`min_tokens`) are no trials: leave them out. Raises
        ValueError when it goes backwards.
        """
        if not 0 <= before <= after:
            raise ValueError(f"a sequence went from {before} tokens to {after}")
        index = bin_of(before + 1)
        while before < after:
            end = EDGES[index + 1] - 1 if index + 1 < len(EDGES) else after
            upto = min(end, after)
            self.trials[index] += upto - before
            before, index = upto, index + 1

    def end(self, length: int) -> None:
        """A sequence ended by itself with its `length`-th token; `reach` has counted that token."""
        if length < 1:
            raise ValueError(f"a sequence ended with {length} tokens")
        index = bin_of(length)
        left = max(EDGES[index] + WIDTHS[index] - 1 - length, 0)
        self.ends[index] += 1.0
        self.left[index] += left
        self.left_squares[index] += left * left

    @property
    def columns(self) -> tuple[list[float], ...]:
        """What is counted by bin; in this order it is written."""
        return (self.trials, self.ends, self.left, self.left_squares)

    def add(self, other: LengthHistogram) -> None:
        """Take in what another one counted."""
        for mine, theirs in zip(self.columns, other.columns, strict=True):
            mine[:] = [count + more for count, more in zip(mine, theirs, strict=True)]
        self.sequences += other.sequences

    def fade(self, factor: float) -> None:
        """Let all of it weigh `factor` of what it did; no hazard changes by that alone."""
        for counts in self.columns:
            counts[:] = [count * factor for count in counts]
        self.sequences *= factor

    def to_numbers(self) -> list[float]:
        """As plain numbers, for a store: sequences, then trials, ends, and what was left, of each bin."""
        return [self.sequences, *(count for counts in self.columns for count in counts)]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> LengthHistogram:
        """The inverse of `to_numbers`. Raises ValueError for what that cannot have written."""
        bins = len(EDGES)
        if len(numbers) != NUMBERS:
            raise ValueError(f"a length histogram has {NUMBERS} numbers, not {len(numbers)}")
        if not all(0.0 <= number < float("inf") for number in numbers):
            raise ValueError("a length histogram holds finite counts only")
        sequences, *values = map(float, numbers)
        trials, ends, left, squares = (values[first : first + bins] for first in range(0, 4 * bins, bins))
        return cls(trials, ends, left, squares, sequences)


NUMBERS = 1 + 4 * len(EDGES)
"""Of a histogram that is written."""


def total(parts: Sequence[LengthHistogram]) -> LengthHistogram:
    """All of them added up, as a new one."""
    found = LengthHistogram(sequences=sum(part.sequences for part in parts))
    for mine, *theirs in zip(found.columns, *(part.columns for part in parts), strict=True):
        if theirs:
            mine[:] = map(sum, zip(*theirs, strict=True))
    return found
