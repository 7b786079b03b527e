"""What is known of the output lengths of one tenant, or of one pool as a whole.

A record keeps the sequences that began lately apart, in cohorts (`forecast_change`), and everything before them
as one history that fades. Sequences that outlive their forecast make it drop what it knew before they began: it
enters a new *era* and is *guarded* until `RELEARN_ENDS` ends were seen in it, or for `GUARD_S_MAX`.

Records are shared by absolute numbers: each replica states what it counted itself, and takes the others'
statements as they are. Stating or reading twice, or missing one, does no harm. Statements of an older era than
one's own are void; one of a newer era makes one's own count void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvgate_policies.forecast_change import (
    COHORTS_FINE,
    COHORTS_MAX,
    EVIDENCE_MIN,
    GROUP,
    RATIO_MAX,
    Fate,
    changed_since,
)
from kvgate_policies.forecast_lengths import LengthHistogram, bin_of, total
from kvgate_policies.forecast_survival import Survival, stretched, survival

HISTORY_SEQUENCES = 4000.0
"""Sequences before the present cohorts that count in full: beyond that, all of them lose half their weight."""
RELEARN_ENDS = 30.0
"""Ends that must have been seen in a new era before its forecasts are trusted."""
RELEARN_LONG_ENDS = 10.0
"""How many of them at lengths that only half of all get to: early ends say nothing about the long ones."""

GUARD_S_MAX = 600.0
"""After which a record is no longer guarded, however few ends it saw: a tenant that brings so few cannot fill an
engine, and one whose answers teach nothing (several sequences of a prompt) would be guarded for ever."""

RATIO_MIN = 0.25
"""Of ends that are expected after a change. That none came of those that were due says no more: how much longer answers
got is known when the first have ended."""

NEWS_TRIALS = 512.0
NEWS_ENDS = 2.0
"""So many tokens or ends make a new curve worth its 0.1 ms; a beat of an idle tenant costs nothing."""
VOUCH_ENDS = 5.0
"""Ends that must have been due before sequences show by themselves whether they are as before."""


@dataclass(slots=True)
class _Cohort:
    after: int
    """The first number that is not in it: the next one, but for cohorts that were put together."""
    lengths: LengthHistogram = field(default_factory=LengthHistogram)
    fate: Fate = field(default_factory=Fate)


class LengthRecord:
    """Counts, notices changes, and gives the curve."""

    def __init__(self, evidence_min: float = EVIDENCE_MIN) -> None:
        """`evidence_min`: how sure a change must be before anything is forgotten; infinite to look for none."""
        self._evidence_min = evidence_min
        self._history = LengthHistogram()
        self._cohorts: dict[int, _Cohort] = {}
        """By number, oldest first; only those in which it began a sequence. A group has the number of its first one."""
        self._since = 0
        """Number of the first cohort of this era: what began before it says nothing about it."""
        self._others = LengthHistogram()
        self._curve: Survival | None = None
        self._news = 0.0
        """Trials since the curve was made, and what its ends count for."""
        self._before: Survival | None = None
        """The curve before the last change, stretched: the parent of what was learned since."""
        self.era = 0
        """How many changes there were."""
        self.guarded = False
        """Whether forecasts are not to be trusted at present."""
        self._guarded_at_s: float | None = None
        """The first review in which it was guarded."""
        self._dropped: dict[int, Fate] = {}
        """By cohort: what was held against the forecast when it was given up."""
        self.told = 0
        """How often it was told something: its statement is another one then."""

    def curve(self, parent: Survival) -> Survival:
        """The survival curve, made anew when `review` found enough news; `parent` counts only then."""
        if self._curve is None:
            self._curve = survival(self.lengths(), self._before or parent)
            self._news = 0.0
        return self._curve

    def lengths(self) -> LengthHistogram:
        """Everything that is known, the other replicas' counts included."""
        return total([self._history, self._others, *(cohort.lengths for cohort in self._cohorts.values())])

    def start(self, cohort: int) -> None:
        """A sequence begins in the cohort of that number; numbers never go down."""
        self.told += 1
        self._cohorts.setdefault(cohort, _Cohort(cohort + 1)).lengths.start()

    def reach(self, cohort: int, before: int, after: int, expected: Fate) -> None:
        """A sequence of that cohort emitted the tokens `before + 1 … after`, with so many ends expected."""
        if cohort < self._since:
            return
        self.told += 1
        self._news += after - before
        found = self._find(cohort)
        if found is None:
            self._history.reach(before, after)
            return
        found.lengths.reach(before, after)
        found.fate += expected

    def end(self, cohort: int, length: int) -> None:
        """A sequence of that cohort ended by itself; `reach` was told of its last token."""
        if cohort < self._since:
            return
        self.told += 1
        self._news += NEWS_TRIALS / NEWS_ENDS
        found = self._find(cohort)
        if found is None:
            self._history.end(length)
            return
        found.lengths.end(length)
        found.fate += Fate(seen=1.0)

    def review(
        self, cohort: int, now_s: float = 0.0, confirmed: Callable[[int], bool] | None = None
    ) -> int | None:
        """Look for a change, and let old cohorts become history. `cohort` is the present one's number.

        `confirmed` is asked before a change since that cohort is believed. `now_s` is any
        clock, for the longest time that it stays guarded.

        Returns the number of the cohort since which things are different, when that is noticed just now.
        """
        index = changed_since([known.fate for known in self._cohorts.values()], self._evidence_min)
        since = None if index is None else list(self._cohorts)[index]
        if since is not None and confirmed is not None and not confirmed(since):
            since = None
        if since is not None:
            self.forget_before(self._surely_new(since), self.fate(since).ratio)
        self._age(cohort)
        self._trust_again(now_s)
        if since is not None or self._news >= NEWS_TRIALS:
            self._curve = None
        return since

    def _age(self, present: int) -> None:
        """Put cohorts together that are no longer young, and let old ones become history."""
        for number in [number for number in self._cohorts if number % GROUP]:
            group = number - number % GROUP
            if group + GROUP <= present - COHORTS_FINE:
                part = self._cohorts.pop(number)
                whole = self._cohorts.setdefault(group, _Cohort(group + GROUP))
                whole.lengths.add(part.lengths)
                whole.after, whole.fate = group + GROUP, whole.fate + part.fate
        self._cohorts = dict(sorted(self._cohorts.items()))
        for old in [number for number in self._cohorts if number <= present - COHORTS_MAX]:
            self._history.add(self._cohorts.pop(old).lengths)
        while self._history.sequences > HISTORY_SEQUENCES:
            self._history.fade(0.5)

    def _find(self, cohort: int) -> _Cohort | None:
        """That cohort, or the group that it is in by now; None for one that is history."""
        return self._cohorts.get(cohort) or self._cohorts.get(cohort - cohort % GROUP)

    def fate(self, cohort: int) -> Fate:
        """Of the sequences that began with that cohort or later."""
        return sum((known.fate for number, known in self._cohorts.items() if number >= cohort), Fate())

    def take_dropped(self) -> dict[int, Fate]:
        """By cohort, the fates that made it enter a new era, or that it had when it was told to; once."""
        dropped, self._dropped = self._dropped, {}
        return dropped

    def leave_out(self, dropped: Mapping[int, Fate]) -> None:
        """Those are explained by somebody else's change: they no longer count for one."""
        for number, fate in dropped.items():
            if (known := self._find(number)) is not None:
                known.fate -= fate

    def _surely_new(self, since: int) -> int:
        """The first cohort of which all are of the new kind, where it changed about `since`.

        That is dated by what is likeliest, so some of the next may be old ones, which end soon and would make the new
        kind look short: a group is left out, unless it shows by itself that it is new: ends were due, and none came.
        """
        group = [known for number, known in self._cohorts.items() if since <= number < since + GROUP]
        fate = sum((known.fate for known in group), Fate())
        if fate.expected >= VOUCH_ENDS and fate.seen == 0.0:
            return since
        return max(known.after for known in group)

    def as_forecast(self, cohort: int) -> bool:
        """Whether what began with that cohort or later clearly ends as forecast: evidence against a change."""
        fate = self.fate(cohort)
        return fate.expected >= VOUCH_ENDS and fate.seen >= RATIO_MAX * fate.expected

    def forget_before(self, cohort: int, ratio: float) -> None:
        """A new era: only what began with that cohort or later is still true.

        Where nothing was seen since, ends are expected `ratio` times as often as they were seen before, but not below
        `RATIO_MIN`: the newcomers' tails are not known yet, and the old ones were shorter.
        """
        self.told += 1
        if self._curve is not None:
            self._before = stretched(self._curve, min(max(ratio, RATIO_MIN), 1.0), self.lengths())
        self._history, self._others = LengthHistogram(), LengthHistogram()
        self._dropped = {number: known.fate for number, known in self._cohorts.items()}
        old = [number for number in self._cohorts if number < cohort]
        self._since = max([cohort, *(self._cohorts.pop(number).after for number in old)])
        for known in self._cohorts.values():
            known.fate = Fate()
        self._curve = None
        self.guarded, self._guarded_at_s = True, None
        self.era += 1

    def statement(self) -> list[float]:
        """What was counted here, as plain numbers: the era, then a `LengthHistogram`."""
        own = total([self._history, *(cohort.lengths for cohort in self._cohorts.values())])
        return [float(self.era), *own.to_numbers()]

    def hear(self, statements: Iterable[Sequence[float]]) -> None:
        """Take the other replicas' statements, all of them, in place of those heard before.

        Raises ValueError for numbers that are no statement.
        """
        heard = [(int(numbers[0]), LengthHistogram.from_numbers(numbers[1:])) for numbers in statements]
        newest = max((era for era, _ in heard), default=self.era)
        if newest > self.era:
            self._enter(newest)
        self._others = total([lengths for era, lengths in heard if era == self.era])
        self._curve = None

    def restore(self, statement: Sequence[float]) -> None:
        """Begin with what was counted before a restart. Raises ValueError for numbers that are no statement."""
        self.era = max(self.era, int(statement[0]))
        self._history.add(LengthHistogram.from_numbers(statement[1:]))
        self._curve = None

    def adopt(self, statement: Sequence[float]) -> None:
        """Count as one's own what a replica had counted that is gone. Raises ValueError as `restore`."""
        era, lengths = int(statement[0]), LengthHistogram.from_numbers(statement[1:])
        if era < self.era:
            return
        if era > self.era:
            self._enter(era)
        self.told += 1
        self._history.add(lengths)
        self._curve = None

    def _enter(self, era: int) -> None:
        """Others have noticed a change that was not noticed here."""
        self.forget_before(
            max((known.after for known in self._cohorts.values()), default=self._since), RATIO_MAX
        )
        self.era = era

    def _trust_again(self, now_s: float) -> None:
        if not self.guarded:
            return
        if self._guarded_at_s is None:
            self._guarded_at_s = now_s
        if self._relearned():
            self.guarded = False
        elif now_s - self._guarded_at_s >= GUARD_S_MAX:
            # What is known since is little, and what was known before is wrong: it is as one that is new.
            self.guarded, self._before, self._curve = False, None, None

    def _relearned(self) -> bool:
        seen = self.lengths()
        if self._curve is None or sum(seen.ends) < RELEARN_ENDS:
            return False
        middle = bin_of(self._curve.quantile(0.5))
        return sum(seen.ends[middle:]) >= RELEARN_LONG_ENDS
