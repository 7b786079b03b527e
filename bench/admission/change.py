"""Every output suddenly three times longer: what is preempted through the change, and afterwards?

The change meets all that arrive from one moment on. *Through the change* are the `AFTER` requests that arrive
next, *relearning* as many after those, *afterwards* the rest. Preemptions are counted when they happen,
whoever suffers them, and given for each thousand arrivals and for each thousand let through in that time.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.admission.forecast_gate import Forecast, Measures
from bench.admission.gates import Gate
from bench.admission.queues import Fifo
from bench.admission.runs import FULL, Times, capacity
from bench.admission.score import good
from bench.admission.workload import PROFILES, Job, Source
from bench.admission.world import World, make_engines

AFTER = 1000
LOAD = 1.3
BATCH_TENANTS = frozenset({0})
"""The noisy tenant is of the class batch, where revocation is tried."""
VARIANTS: dict[str, Measures | None] = {
    "direct+timeout": None,
    "blind": Measures(notice=False, guard=False),
    "notice": Measures(guard=False),
    "notice+guard": Measures(),
    "notice+guard+revoke": Measures(revoke=True),
}


@dataclass(frozen=True, slots=True)
class Phase:
    arrivals: int
    let_through: int
    preempted: int
    revoked: int
    good: int


@dataclass(frozen=True, slots=True)
class Change:
    through: Phase
    relearning: Phase
    afterwards: Phase
    noticed_after_s: float | None

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (self.through, self.relearning, self.afterwards)


def change(name: str, variant: str, seed: int, times: Times = FULL, longer: float = 3.0) -> Change:
    profile = PROFILES[name]
    found = capacity(name, seed, times)
    at_s = times.warm_s
    rate = LOAD * found.requests_per_s
    end_s = at_s + 4.0 * AFTER / rate
    source = Source(profile, seed, longer_from_s=at_s, longer=longer, batch_tenants=BATCH_TENANTS)
    jobs = source.arrivals(rate, found.requests_per_s, end_s)
    engines = make_engines(profile)
    measures = VARIANTS[variant]
    gate = Gate(profile, engines) if measures is None else Forecast(profile, engines, measures=measures)
    world = World(profile, engines, gate, Fifo(), patience_s=profile.ttl_s if measures is None else None)
    world.run(jobs, end_s)
    later = [job for job in jobs if job.arrival_s >= at_s]
    turns = [at_s, later[AFTER].arrival_s, later[2 * AFTER].arrival_s, end_s]
    parts = [later[:AFTER], later[AFTER : 2 * AFTER], later[2 * AFTER :]]
    alarms = gate.alarms if isinstance(gate, Forecast) else []
    noticed = next((time_s - at_s for time_s, _ in alarms if time_s >= at_s), None)
    phases = [_phase(world, part, turns[index], turns[index + 1]) for index, part in enumerate(parts)]
    through, relearning, afterwards = phases
    return Change(through, relearning, afterwards, noticed)


def _phase(world: World, jobs: list[Job], from_s: float, until_s: float) -> Phase:
    return Phase(
        arrivals=len(jobs),
        let_through=sum(job.granted_s is not None for job in jobs),
        preempted=sum(number for time_s, number in world.preempted_s if from_s <= time_s < until_s),
        revoked=sum(job.revoked for job in jobs),
        good=sum(good(world, job) for job in jobs),
    )
