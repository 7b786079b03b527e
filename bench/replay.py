"""How fast a replay is: a day of made-up traffic before four engines, in CPU seconds of one core.

    python bench/replay.py [--hours 24] [--rate 5] [--engines 4] [--policy guaranteed]

Times are CPU times of this process, so that a busy machine changes little. At the end a short part of the day is
replayed once more with every step of the engines done, to show what leaping over them saves.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from kvgate.load.score import Objective
from kvgate.replay import Choice, Hardware, Plan, Workload, make_plans, open_workload
from kvgate.replay.record import Record
from kvgate.replay.world import World

EXACT_HOURS = 0.1


@dataclass(frozen=True, slots=True)
class Run:
    record: Record
    cpu_s: float

    @property
    def requests(self) -> int:
        return self.record.total.offered

    @property
    def times_real(self) -> float:
        return self.record.span_s / self.cpu_s


def timed(workload: Workload, plan: Plan, *, exact: bool = False) -> Run:
    world = World(plan, Objective(), workload.span_s, exact=exact)
    began_s = time.process_time()
    record = world.run(workload.offered())
    return Run(record, time.process_time() - began_s)


def day(name: str, hours: float, rate: float) -> Workload:
    return open_workload(f"synthetic:{name}?hours={hours:g}&rate={rate:g}", Choice())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traffic", default="mixed", help="the name of a made-up workload")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--policy", default="guaranteed")
    given = parser.parse_args()
    [plan] = make_plans([given.policy], Hardware(engines=given.engines))
    run = timed(day(given.traffic, given.hours, given.rate), plan)
    print(
        f"{given.hours:g} h of {given.traffic}, {given.rate:g} requests/s, {given.engines} engines, {given.policy}"
    )
    print(f"  {run.requests:,} requests, {run.record.events:,} events, {run.record.total.tokens:,} tokens")
    print(f"  {run.cpu_s:.1f} s of CPU: {run.times_real:,.0f} times as fast as it happened")
    print(f"  {run.cpu_s / run.requests * 1e6:.0f} µs a request")
    part = day(given.traffic, min(EXACT_HOURS, given.hours), given.rate)
    leaping, stepping = timed(part, plan), timed(part, plan, exact=True)
    print(
        f"every step done, {stepping.record.span_s / 3600:.1f} h: {stepping.times_real:,.0f} times as fast, and "
        f"{leaping.times_real:,.0f} by leaping; the same outcomes: {same(leaping.record, stepping.record)}"
    )


def same(one: Record, other: Record) -> bool:
    return one.total.outcomes == other.total.outcomes and one.total.preempted == other.total.preempted


if __name__ == "__main__":
    main()
