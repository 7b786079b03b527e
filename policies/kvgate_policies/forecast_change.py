"""Have outputs suddenly become longer? The test that notices it while they still run.

What was admitted on a forecast cannot be taken back, so a change has to be seen before the first answer of the
new length has ended. By the forecast, each token of a running sequence was a trial with a known chance of being
the last. Over all trials of some sequences, `expected` ends should have come; `seen` did. If far fewer came,
the sequences outlive their forecast.

The test: trials are independent given the past, so the number of ends is a sum of Bernoulli trials. Their mean E
is not known but estimated, from n ends that were seen before: it is as if of s + n ends in all each had been one of
the s with probability `p = E/(E + n)`, and by Chernoff's bound for the binomial law (Hoeffding 1963) the chance of
so few is at most `exp(−(s·log(f/p) + n·log((1 − f)/(1 − p))))` with f = s/(s + n), for s < E. The exponent is the
evidence; from a forecast that rests on many ends it is that of the Poisson law, E − s − s·log(E/s). It is compared
with `EVIDENCE_MIN`, and the ratio s/E with `RATIO_MAX`, lest a small lasting bias ever raise an alarm.

Old sequences end as they always did and would hide the new ones, so sequences are told apart by when they
began: in *cohorts* of `COHORT_SEQUENCES` of the whole pool. All suffixes are tested (those begun since cohort j,
for each j), and the one with the most evidence says since when things are different (a generalized likelihood
ratio test; Page 1954, Lorden 1971). What was learned before that is then worth nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

COHORT_SEQUENCES = 4
"""Sequences of a pool that begin in a row and are judged together: the grain at which a change is dated. Those that end
as ever hide the new ones of their cohort, so it is small: twenty answers at once are all that some engines hold."""
COHORTS_FINE = 16
"""The youngest cohorts, at the least, that stand alone: 64 sequences. Where more run at once, as many are new."""
GROUP = 8
"""Older cohorts are put together by so many: 32 sequences."""
COHORTS_MAX = 128
"""Cohorts told apart; older ones are history. 512 sequences reach back further than any change stays unseen."""
EVIDENCE_MIN = 14.0
"""Natural logarithm of one over the chance of a false alarm in one test: about one in a million."""
EVIDENCE_OTHERS_MIN = EVIDENCE_MIN / 2
"""Evidence that must be left of a change of all whoever of them is left out: one in a thousand by accident, and only
asked where all together are sure of it."""
SEQUENCES_MIN = 10.0
"""Sequences that must have been due, each counted up to one expected end: one answer may get as long as it likes, and a
few in a row may be one client's."""
RATIO_MAX = 0.6
"""Ends seen over ends expected, above which no alarm is raised: outputs at least half again as long."""


@dataclass(frozen=True, slots=True)
class Fate:
    """Of sequences that began together: ends that the forecast expected so far, and ends that came."""

    expected: float = 0.0
    seen: float = 0.0
    doubt: float = 0.0
    """Each expected end over the number of ends that this expectation rests on, added up; 0 is certainty."""
    due: float = 0.0
    """How many sequences were due: the ends expected of each, one at the most, added up."""

    def __add__(self, other: Fate) -> Fate:
        return Fate(
            self.expected + other.expected,
            self.seen + other.seen,
            self.doubt + other.doubt,
            self.due + other.due,
        )

    def __sub__(self, part: Fate) -> Fate:
        """Of the others; nothing of it is below 0."""
        return Fate(
            max(self.expected - part.expected, 0.0),
            max(self.seen - part.seen, 0.0),
            max(self.doubt - part.doubt, 0.0),
            max(self.due - part.due, 0.0),
        )

    @property
    def ratio(self) -> float:
        """Seen over expected, each with one end more: 1 when nothing is known."""
        return (self.seen + 1.0) / (self.expected + 1.0)


def evidence(fate: Fate) -> float:
    """How surely fewer ended than expected: −log of the largest chance that it is an accident; 0 if not fewer."""
    expected, seen = fate.expected, fate.seen
    if seen >= expected:
        return 0.0
    few = seen * math.log(expected / seen) if seen > 0.0 else 0.0
    if fate.doubt <= 0.0:
        return expected - seen - few
    known = expected / fate.doubt
    return (known + seen) * math.log1p((expected - seen) / (known + seen)) - few


def changed_since(cohorts: Sequence[Fate], evidence_min: float = EVIDENCE_MIN) -> int | None:
    """The index of the cohort, oldest first, from which on sequences outlive their forecast; None if they don't."""
    best, since = evidence_min, None
    together = Fate()
    for index in range(len(cohorts) - 1, -1, -1):
        together += cohorts[index]
        found = evidence(together)
        if found > best and together.due >= SEQUENCES_MIN and are_longer(together):
            best, since = found, index
    return since


def are_longer(fate: Fate) -> bool:
    """Whether so few ended that it is no small lasting bias."""
    return fate.seen < RATIO_MAX * fate.expected


def changed_whoever_is_left_out(all_together: Fate, parts: Iterable[Fate]) -> bool:
    """Whether it is a change of all, and not of a single one that speaks for all: others show it too."""
    rests = (all_together - part for part in parts)
    return all(evidence(rest) >= EVIDENCE_OTHERS_MIN and are_longer(rest) for rest in rests)
