"""When to look at those that run again, and how many tokens a vector has to cover until it is made anew.

What is decided rests on vectors as old as the last look, and each covers what its request may have grown since: on a
small engine that is several blocks of a hundred. So while requests wait for a ledger in this process, looks follow
each other as fast as a twentieth of a core allows. Where nobody waits nothing is decided, and a shared ledger hears of
vectors only at its heartbeats: there the pause is the longest.

A vector covers

    rate · (until the next look + until the ledger hears + on the way) + tokens of an event

of the engine's present rate, or that at which the request grew since the last look if that is more. It is at least
`LAG_TOKENS` where nothing is known of an engine, for an answer that shows nothing of how far it is, and before the
first token.

Of known lengths (`ignore_eos`) it is less. All that run on an engine go on together, a token for each step: what they
hold in sum further on does not depend on how old their vectors are, as long as all are of the same moment. Then only
whoever starts has to cover the time since that (`lag_at_start`), and the others that streams may be read one token
apart. They are of one moment where all are made at one go at each look, for a ledger that hears of them at once.
An answer in one piece covers besides that it may be farther than it is taken to be (`Running.unsure`); while nothing is
known of its engine's pace that is its peak.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING

from kvgate_policies.forecast_lengths import LENGTH_MAX
from kvgate_policies.forecast_occupancy import LAG_TOKENS

if TYPE_CHECKING:
    from kvgate.forecasting.rates import Rates
    from kvgate.forecasting.running import Running

PAUSE_S_MIN = 0.05
"""Between two looks: two or three steps of a busy engine. What is fresher gains nothing that its cost would not eat."""
CORE_SHARE = 0.05
"""Of a core, for looking."""
LOOK_S = 30e-6
"""What one request costs a look: its vector, and the sums of a ledger in memory."""
REACH_MAX = 2.0
"""Longest pauses that a vector may have to last, where so many run that not all can have one at each look."""
WAY_S = 0.05
"""From an engine's step until its token is counted here, and from a decision until it is one there."""
SPAN_S_MIN = 0.02
"""Between two looks that say something of a rate."""
ROUNDING = 1e-6
"""Of a token: a sum that is whole stays so."""
SLICE = 64
"""Requests looked at before others run: about a millisecond."""
EVENT_TOKENS_SURE = 1.01
"""Tokens of an event up to which events count tokens: with more, how far streams are from each other is a guess."""
LAG_TOGETHER = 1
"""Of a known length, where all vectors are of one moment, in tokens. With 48 mixed requests that fill an engine some
five times that is 1.069 times the steps of no limit, over 384 draws, and 1.074 if each covers the time itself; none of
the 18,432 was preempted."""
LAG_MIN, LAG_MAX = 2, 64
"""Bounds of what a vector covers, in tokens: a step that is under way, and four blocks of the usual size."""


class Pace:
    """One for each `Forecaster`. `plan` at each look; what it says holds until the next one."""

    def __init__(
        self,
        rates: Rates,
        *,
        pause_s_max: float,
        told_s: float = 0.0,
        waiting: Callable[[], int] | None = None,
    ) -> None:
        """`told_s`: until the ledger hears of a new vector; `waiting`: how many wait to be decided on by it."""
        self._rates = rates
        self._pause_s_max = pause_s_max
        self._told_s = told_s
        self._waiting = waiting or (lambda: 0)
        self._span_s, self._tokens_per_event = 0.0, 1.0
        self._are_together = False
        self.lag_at_start = LAG_TOKENS
        """What the vector of one that is about to start has to cover: its first look may be the longest pause away."""
        self._reach_s = pause_s_max
        """How long the vectors that are made now have to last."""

    @property
    def pause_s(self) -> float:
        """Between this look and the next."""
        return min(self._reach_s, self._pause_s_max)

    def plan(self, running: int, span_s: float, tokens_per_event: float) -> None:
        """So many run with forecasts; the last look was `span_s` ago, and an event of a stream has so many tokens."""
        self._span_s, self._tokens_per_event = span_s, tokens_per_event
        longest_s = self._pause_s_max
        shortest_s = min(PAUSE_S_MIN, longest_s) if running and self._waiting() else longest_s
        self._reach_s = min(max(running * LOOK_S / CORE_SHARE, shortest_s), REACH_MAX * longest_s)
        self._are_together = (
            running <= SLICE
            and self._reach_s <= longest_s
            and not self._told_s
            and tokens_per_event <= EVENT_TOKENS_SURE
        )
        self.lag_at_start = self._bounded(
            (self._rates.fastest_per_s() or 0.0) * self._late_s(longest_s), LAG_TOKENS
        )

    def is_due(self, run: Running, grown: int) -> bool:
        """Whether it might outgrow its vector before the next look; it grew by `grown` since the last."""
        if run.unsure:
            return run.reached + self._tokens(run, self.pause_s, grown) != run.covered
        return (
            run.reached > run.vector_at and run.reached + self._tokens(run, self.pause_s, grown) > run.covered
        )

    def lag_tokens(self, run: Running, grown: int) -> int:
        """What a vector that is made for it now has to cover."""
        return self._tokens(run, self._reach_s, grown)

    def _tokens(self, run: Running, ahead_s: float, grown: int) -> int:
        rate = self._rates.fastest_per_s(run.engine_id)
        is_seen = run.meter is not None and run.reached > 0
        is_known = rate is not None and (is_seen or 0 < run.unsure < LENGTH_MAX)
        if is_known and self._are_together and run.is_exact:
            return run.unsure + LAG_TOGETHER
        least = LAG_MIN if is_known else LAG_TOKENS
        # An event counts when it came, whenever its tokens were made.
        steps = grown - self._tokens_per_event + 1.0
        fastest = max(rate or 0.0, steps / self._span_s if self._span_s >= SPAN_S_MIN else 0.0)
        return run.unsure + self._bounded(max(fastest * self._late_s(ahead_s), steps), least)

    def _late_s(self, ahead_s: float) -> float:
        return ahead_s + self._told_s + WAY_S

    def _bounded(self, ahead: float, least: int) -> int:
        return min(max(ceil(ahead + self._tokens_per_event - ROUNDING), least), LAG_MAX)
