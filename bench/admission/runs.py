"""One cell of the comparison: a workload, a policy, a load, a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from bench.admission.engine import Engine
from bench.admission.forecast_gate import Forecast
from bench.admission.gates import Cap, Gate, Oracle, Utilisation, Worst
from bench.admission.queues import Fair, Fifo
from bench.admission.score import Score, score
from bench.admission.workload import PROFILES, Limit, Profile, Source
from bench.admission.world import World, make_engines

CAPACITY_LOAD = 1.3
"""The mix of tenants at which the capacity is measured."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of simulated time."""

    warm_s: float = 180.0
    measured_s: float = 300.0
    drain_s: float = 60.0
    capacity_warm_s: float = 150.0
    capacity_s: float = 300.0


QUICK = Times(120.0, 80.0, 20.0, 120.0, 120.0)
FULL = Times()


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a clairvoyant first-come-first-served queue gets out of the pool under permanent backlog."""

    requests_per_s: float
    running: float
    """Mean number of running requests on one engine: what a cap is tuned to."""


@cache
def capacity(name: str, seed: int, times: Times) -> Capacity:
    profile = PROFILES[name]
    engines = make_engines(profile)
    world = World(profile, engines, Oracle(profile, engines), Fifo())
    ended: list[float] = []
    world.gate.ended = _counting(world, ended)  # type: ignore[method-assign]
    world.counting_from_s = times.capacity_warm_s
    until_s = times.capacity_warm_s + times.capacity_s
    world.run_backlog(Source(profile, seed).backlog(CAPACITY_LOAD), until_s)
    done = sum(time_s >= times.capacity_warm_s for time_s in ended)
    return Capacity(done / times.capacity_s, world.running_time / world.busy_time)


def _counting(world: World, ended: list[float]) -> Callable[..., None]:
    original = world.gate.ended

    def count(*arguments: object, **named: object) -> None:
        ended.append(world.now_s)
        original(*arguments, **named)  # type: ignore[arg-type]

    return count


Make = Callable[[Profile, list[Engine], Capacity], Gate]
POLICIES: dict[str, Make] = {
    "direct": lambda profile, engines, _: Gate(profile, engines),
    "direct+timeout": lambda profile, engines, _: Gate(profile, engines),
    "cap": lambda profile, engines, found: Cap(profile, engines, max(1, round(found.running))),
    "utilisation": lambda profile, engines, _: Utilisation(profile, engines),
    "worst": lambda profile, engines, _: Worst(profile, engines),
    "worst-2048": lambda profile, engines, _: Worst(profile, engines, 2048),
    "forecast": lambda profile, engines, _: Forecast(profile, engines),
    "oracle": lambda profile, engines, _: Oracle(profile, engines),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What to run."""

    profile: str
    policy: str
    load: float = 1.3
    seed: int = 1
    limit: Limit = Limit.UNSET
    fair: bool = False
    times: Times = FULL


def run(cell: Cell) -> Score:
    return play(cell)[1]


def play(cell: Cell) -> tuple[World, Score]:
    profile, times = PROFILES[cell.profile], cell.times
    found = capacity(cell.profile, cell.seed, times)
    until_s = times.warm_s + times.measured_s
    end_s = until_s + times.drain_s
    source = Source(profile, cell.seed, cell.limit)
    jobs = source.arrivals(cell.load * found.requests_per_s, found.requests_per_s, end_s)
    outputs = {job.number: job.output for job in jobs}
    engines = make_engines(profile)
    gate = POLICIES[cell.policy](profile, engines, found)
    queue = Fair(profile, gate.expected_output) if cell.fair else Fifo()
    patience_s = profile.ttl_s if cell.policy == "direct+timeout" else None
    world = World(profile, engines, gate, queue, patience_s=patience_s)
    world.counting_from_s = times.warm_s
    world.run(jobs, end_s)
    return world, score(world, jobs, times.warm_s, until_s, outputs)
