"""What was seen of output lengths: a hazard histogram, a life table of answers.

Every token a sequence emits is a trial with two results: it was the last one, or it was not. Counted are the
trials and the ends in bins of token numbers, each bin √2 times as far out as the one before. Ends over trials
is the hazard of a bin, and the product of what the hazards leave is the Kaplan–Meier curve of lengths
(`forecast_survival`).

Why trials and not lengths: a running sequence has had its trials already, so it is counted while it still
runs, and the short ones, which always finish first, do not make the history look shorter than it is. A
sequence that was cut (`finish_reason=length`, the client left, the engine failed) has had its trials and no
end: that is all there is to censoring.

Bounded: two numbers for each of the `len(EDGES)` bins and one more, whatever is counted. Histograms add up by
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
        self.ends[bin_of(length)] += 1.0

    def add(self, other: LengthHistogram) -> None:
        """Take in what another one counted."""
        self.trials = [mine + theirs for mine, theirs in zip(self.trials, other.trials, strict=True)]
        self.ends = [mine + theirs for mine, theirs in zip(self.ends, other.ends, strict=True)]
        self.sequences += other.sequences

    def fade(self, factor: float) -> None:
        """Let all of it weigh `factor` of what it did; no hazard changes by that alone."""
        self.trials = [count * factor for count in self.trials]
        self.ends = [count * factor for count in self.ends]
        self.sequences *= factor

    def to_numbers(self) -> list[float]:
        """As plain numbers, for a store: sequences, trials of each bin, ends of each bin."""
        return [self.sequences, *self.trials, *self.ends]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> LengthHistogram:
        """The inverse of `to_numbers`. Raises ValueError for what that cannot have written."""
        bins = len(EDGES)
        if len(numbers) != 1 + 2 * bins:
            raise ValueError(f"a length histogram has {1 + 2 * bins} numbers, not {len(numbers)}")
        if not all(0.0 <= number < float("inf") for number in numbers):
            raise ValueError("a length histogram holds finite counts only")
        values = [float(number) for number in numbers]
        return cls(trials=values[1 : 1 + bins], ends=values[1 + bins :], sequences=values[0])


def total(parts: Sequence[LengthHistogram]) -> LengthHistogram:
    """All of them added up, as a new one."""
    return LengthHistogram(
        trials=[sum(column) for column in zip(*(part.trials for part in parts), strict=True)] or _zeros(),
        ends=[sum(column) for column in zip(*(part.ends for part in parts), strict=True)] or _zeros(),
        sequences=sum(part.sequences for part in parts),
    )
