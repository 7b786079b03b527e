"""What is written down of a replay while it runs: of each request what its tenant would want to know, in arrays.

A request is *good* when it was served whole, its first token came within the objective from arrival, waiting included,
and its tokens came within it on average: the words of `kvgate load`. Its tokens are the goodput.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvgate.replay.timeline import Curve
from kvgate.telemetry.fairness import jain
from kvgate_policies.types import Outcome

if TYPE_CHECKING:
    from kvgate.load.score import Objective
    from kvgate.replay.job import Job
    from kvgate_policies.types import LedgerView

TENANTS_MAX = 1000
"""By name in a report; the rest of a log with more is counted under `OTHERS`."""
OTHERS = "(others)"


def _floats() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Tally:
    """Of all requests, or those of one tenant."""

    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    waited_s: array[float] = field(default_factory=_floats)
    """In the queue, of those that were granted."""
    ttft_s: array[float] = field(default_factory=_floats)
    good: int = 0
    good_tokens: int = 0
    tokens: int = 0
    """Of answers, whole or not."""
    preempted: int = 0
    """Times that a request was."""

    @property
    def offered(self) -> int:
        return self.outcomes.total()


@dataclass(slots=True)
class Record:
    """Of one replay."""

    objective: Objective
    span_s: float
    """From the first arrival to the last."""
    total: Tally = field(default_factory=Tally)
    tenants: dict[str, Tally] = field(default_factory=dict[str, Tally])
    queued: Curve = field(init=False)
    reserved_blocks: Curve = field(init=False)
    engine_blocks_mean: float = 0.0
    """Held by the sequences of all engines, until the last arrival."""
    fairness: Fairness = field(init=False)
    events: int = 0
    """Things that happened: what the time of a replay depends on."""

    def __post_init__(self) -> None:
        self.queued, self.reserved_blocks = Curve(self.span_s), Curve(self.span_s)
        self.fairness = Fairness()

    def refused(self, tenant: str, outcome: Outcome) -> None:
        """It ended before it was granted."""
        for tally in (self.total, self._of(tenant)):
            tally.outcomes[outcome] += 1

    def ended(self, job: Job, outcome: Outcome, now_s: float) -> None:
        """It ended after its grant."""
        offered = job.offered
        tokens = job.generated
        preempted = sum(sequence.preempted for sequence in job.sequences)
        is_good = outcome is Outcome.SERVED and self._is_good(job, now_s)
        for tally in (self.total, self._of(offered.tenant)):
            tally.outcomes[outcome] += 1
            tally.waited_s.append(job.granted_s - offered.arrived_s)
            if job.first_token_s is not None:
                tally.ttft_s.append(job.first_token_s - offered.arrived_s)
            tally.tokens += tokens
            tally.preempted += preempted
            if is_good:
                tally.good += 1
                tally.good_tokens += tokens

    def _is_good(self, job: Job, now_s: float) -> bool:
        first_s = job.first_token_s
        if first_s is None or first_s - job.offered.arrived_s > self.objective.ttft_s_max:
            return False
        gaps = max(sequence.target for sequence in job.sequences) - 1
        return gaps < 1 or now_s - first_s <= self.objective.itl_s_max * gaps

    def _of(self, tenant: str) -> Tally:
        tally = self.tenants.get(tenant)
        if tally is None:
            name = tenant if len(self.tenants) < TENANTS_MAX else OTHERS
            tally = self.tenants.setdefault(name, Tally())
        return tally


class Fairness:
    """Jain's index of what tenants were served that waited, by weight: its mean over all minutes in which several did.

    As `kvgate_fairness_jain` has it; None where never two waited at both ends of a minute.
    """

    WINDOW_S = 60.0

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._sum = 0.0
        self.windows = 0

    def look(self, view: LedgerView) -> None:
        """Once in each `WINDOW_S`."""
        waiting = {t.name: t.service / t.rules.weight for t in view.tenants if t.queued}
        both = waiting.keys() & self._before.keys()
        if len(both) > 1:
            self._sum += jain(waiting[name] - self._before[name] for name in both)
            self.windows += 1
        self._before = waiting

    @property
    def index(self) -> float | None:
        return self._sum / self.windows if self.windows else None
