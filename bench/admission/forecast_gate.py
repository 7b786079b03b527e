"""kvgate's own policy, with the very functions that the ledger uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bench.admission.engine import Engine
from bench.admission.gates import Queued, blocks
from bench.admission.workload import Job, Profile

from kvgate_policies.feedback import Trust, trust_step
from kvgate_policies.forecast import Lengths
from kvgate_policies.forecast_fit import RISK_DEFAULT, load, z_of
from kvgate_policies.forecast_occupancy import forecast_occupancy
from kvgate_policies.forecast_revocation import Revocable, to_revoke
from kvgate_policies.forecast_survival import Survival, never_ends
from kvgate_policies.occupancy import NOTHING, SCALE, Occupancy, guaranteed

SCRAPE_S = 1.0


@dataclass(frozen=True, slots=True)
class Measures:
    """What is done about outputs that suddenly get longer."""

    notice: bool = True
    """Look for it, and forget what was learned before."""
    guard: bool = True
    """Reserve guaranteed peaks until the new lengths are known."""
    revoke: bool = False
    """Take back what has sent its client nothing (jobs of the class batch)."""


DEFAULT = Measures()


class _Held:
    __slots__ = ("at_peak", "cohort", "told", "vector")

    def __init__(self, vector: Occupancy, cohort: int, *, at_peak: bool) -> None:
        self.vector, self.cohort, self.told = vector, cohort, 0
        self.at_peak = at_peak
        """It was let through while its tenant was guarded, and keeps that room as long as this lasts."""


class Forecast(Queued):
    """Expected futures are added up; everything is refreshed four times a second."""

    def __init__(
        self,
        profile: Profile,
        engines: list[Engine],
        *,
        risk: float = RISK_DEFAULT,
        measures: Measures = DEFAULT,
    ) -> None:
        super().__init__(profile, engines)
        self.lengths = Lengths() if measures.notice else Lengths(evidence_min=math.inf)
        self._z = z_of(risk)
        self._measures = measures
        self._held = [NOTHING] * len(engines)
        self._trust = [Trust() for _ in engines]
        self._scrape_due_s = 0.0
        self._jobs: list[dict[Job, _Held]] = [{} for _ in engines]
        self._asked: dict[Job, Occupancy] = {}
        self.alarms: list[tuple[float, tuple[str, ...]]] = []

    def kv_load(self, job: Job, engine: int) -> float:
        vector = self._asked.get(job)
        if vector is None:
            vector = self._asked[job] = self._ask(job)
        capacity = self.profile.blocks * self._trust[engine].k
        if not self._jobs[engine]:
            return max(vector.means) / SCALE / self.profile.blocks
        now = (self._held[engine].means[0] + vector.means[0]) / SCALE / capacity
        return now if now > 1.0 else load(self._held[engine] + vector, capacity, self._z)

    def granted(self, job: Job, now_s: float) -> None:
        super().granted(job, now_s)
        vector = self._asked.pop(job)
        self._held[job.engine] += vector
        at_peak = not any(vector.variances)
        self._jobs[job.engine][job] = _Held(vector, self.lengths.start(self._name(job)), at_peak=at_peak)

    def ended(self, job: Job, now_s: float, *, finished: bool) -> None:
        super().ended(job, now_s, finished=finished)
        held = self._jobs[job.engine].pop(job)
        self._held[job.engine] -= held.vector
        self._asked.pop(job, None)
        self._tell(job, held)
        if finished and not job.ignore_eos and job.output < job.limit:
            self.lengths.end(self._name(job), held.cohort, job.output)

    def beat(self, now_s: float) -> list[Job]:
        if now_s >= self._scrape_due_s:
            self._scrape_due_s = now_s + SCRAPE_S
            self._scrape(now_s)
        for jobs in self._jobs:
            for job, held in jobs.items():
                self._tell(job, held)
        if changed := self.lengths.review():
            self.alarms.append((now_s, changed))
        self._asked.clear()
        for engine, jobs in enumerate(self._jobs):
            self._held[engine] = self._refreshed(jobs)
        return self._revoked() if self._measures.revoke else []

    def expected_output(self, job: Job) -> float:
        return self._curve(job).mean_more(0, job.limit)

    def _refreshed(self, jobs: dict[Job, _Held]) -> Occupancy:
        for job, held in jobs.items():
            held.at_peak = held.at_peak and self._guards(job)
            if not held.at_peak:
                held.vector = self._vector(job, self._generated(job))
        if not jobs:
            return NOTHING
        means = zip(*(held.vector.means for held in jobs.values()), strict=True)
        variances = zip(*(held.vector.variances for held in jobs.values()), strict=True)
        return Occupancy(tuple(map(sum, means)), tuple(map(sum, variances)))

    def _scrape(self, now_s: float) -> None:
        for index, engine in enumerate(self.engines):
            self._trust[index] = trust_step(self._trust[index], engine.preemptions, now_s)

    def _revoked(self) -> list[Job]:
        revoked: list[Job] = []
        for engine, jobs in enumerate(self._jobs):
            batch = {str(job.number): job for job in jobs if job.batch}
            candidates = [
                Revocable(name, jobs[job].vector, self._generated(job), job.revoked)
                for name, job in batch.items()
            ]
            chosen = to_revoke(self._held[engine], candidates, capacity_blocks=self.profile.blocks)
            revoked += [batch[name] for name in chosen]
        return revoked

    def _ask(self, job: Job) -> Occupancy:
        if self._guards(job):
            return guaranteed(blocks(job.prompt + job.limit - 1))
        return self._vector(job, 0)

    def _guards(self, job: Job) -> bool:
        return self._measures.guard and self.lengths.guarded(self._name(job))

    def _vector(self, job: Job, generated: int) -> Occupancy:
        return forecast_occupancy(self._curve(job), _size(job.prompt), generated=generated, limit=job.limit)

    def _curve(self, job: Job) -> Survival:
        return never_ends() if job.ignore_eos else self.lengths.curve(self._name(job))

    def _tell(self, job: Job, held: _Held) -> None:
        if job.ignore_eos:
            return
        now = self._generated(job)
        self.lengths.reach(self._name(job), held.cohort, held.told, now)
        held.told = now

    def _generated(self, job: Job) -> int:
        assert job.sequence is not None
        return self.engines[job.engine].generated(job.sequence)

    @staticmethod
    def _name(job: Job) -> str:
        return f"tenant-{job.tenant}"


def _size(prompt: int) -> Callable[[int], int]:
    """As `kv_cost` has it for full attention."""
    return lambda generated: blocks(prompt + max(generated, 1) - 1)
