"""What is it worth to send requests that begin alike to the same engine, and what does it cost?

    python bench/affinity.py [--seconds 120] [--seeds 3] [--json]

Four simulated engines with a prefix cache (`kvgate_policies.engine_model`), one queue, first come first served, the
price, the placement and the affinity that kvgate uses. Simulated time: the same numbers on every machine.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import mean

from kvgate_policies.affinity import DEPTHS_BYTES, Affinity
from kvgate_policies.engine_model import EngineModel, SimRequest, StepProfile
from kvgate_policies.kv_cost import price
from kvgate_policies.placement import place
from kvgate_policies.types import ZERO_COST, EngineLimits, EngineShape, EngineUse, KVCost

ENGINES, BLOCKS, SEQS, PREFILL = 4, 3000, 256, 8192
SHAPE = EngineShape(block_size=16, max_model_len=8192, prefix_caching=True)
PROFILE = StepProfile(
    "70b", 0.02, 0.0001, 0.0, 0.00015, "assumed: 20 ms a step, 7,000 prompt tokens a second"
)
BYTES_PER_TOKEN = 4
LIMITS = [EngineLimits(str(i), SHAPE, BLOCKS, SEQS, PREFILL) for i in range(ENGINES)]


@dataclass
class Job:
    prompt: tuple[int, ...]
    output: int
    turns_left: int = 0
    arrived_s: float = 0.0
    granted_s: float = 0.0
    first_s: float | None = None
    engine: int = 0
    cost: KVCost = ZERO_COST
    begins: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        size = len(self.prompt) * BYTES_PER_TOKEN
        reached = [depth for depth in DEPTHS_BYTES if depth <= size]
        self.begins = tuple(hash(self.prompt[: depth // BYTES_PER_TOKEN]) for depth in reversed(reached))


class Applications:
    """Each request is the system prompt of one of many applications, and a question."""

    def __init__(self, rng, number, tokens, rate):
        self.rng, self.rate = rng, rate
        self.systems = [ids(rng, tokens) for _ in range(number)]

    def next(self):
        rng = self.rng
        return Job(rng.choice(self.systems) + ids(rng, rng.randint(50, 400)), rng.randint(20, 400))

    def after(self, _):
        return None


class Conversations:
    """Eight turns each, all with one system prompt; a turn is what was said so far, and a question."""

    def __init__(self, rng, rate):
        self.rng, self.rate = rng, rate / 8
        self.system = ids(rng, 500)

    def next(self):
        return self._turn(self.system + ids(self.rng, self.rng.randint(30, 300)), 7)

    def after(self, job):
        rng = self.rng
        prompt = job.prompt + ids(rng, job.output + rng.randint(30, 200))
        if not job.turns_left or len(prompt) > 7000:
            return None
        return rng.expovariate(1 / 8), self._turn(prompt, job.turns_left - 1)

    def _turn(self, prompt, left):
        return Job(prompt, self.rng.randint(50, 400), left)


def ids(rng, number):
    return tuple(rng.randrange(1 << 30) for _ in range(number))


WORKLOADS = {
    "conversations of 8 turns, 10 requests/s": lambda rng: Conversations(rng, 10),
    "the same, 14 requests/s": lambda rng: Conversations(rng, 14),
    "20 applications with 1,500 tokens each, 12/s": lambda rng: Applications(rng, 20, 1500, 12),
    "the same, 16/s (too much)": lambda rng: Applications(rng, 20, 1500, 16),
    "one application with 3,000 tokens, 10/s": lambda rng: Applications(rng, 1, 3000, 10),
    "nothing shared, 8/s": lambda rng: Applications(rng, 100_000, 0, 8),
}


def run(make, on, seed, seconds):
    workload, affinity = make(random.Random(seed)), Affinity()
    engines = [
        EngineModel(
            num_gpu_blocks=BLOCKS + 1, block_size=16, max_model_len=8192, max_num_seqs=SEQS,
            max_num_batched_tokens=PREFILL, profile=PROFILE,
        )
        for _ in range(ENGINES)
    ]  # fmt: skip
    held, running = [ZERO_COST] * ENGINES, [0] * ENGINES
    names, turns, ties = count(), count(), count()
    queue, jobs, done, events, busy = deque(), {}, [], [], set()

    def at(time_s, kind, what):
        heapq.heappush(events, (time_s, next(turns), kind, what))

    def pump(now):
        while queue:
            job = queue[0]
            cost = price(SHAPE, [len(job.prompt)], job.output, 1)
            uses = [EngineUse(LIMITS[i], held[i], running[i]) for i in range(ENGINES)]
            prefer = affinity.prefer(job.begins) if on else ()
            chosen = place({SHAPE: cost}, uses, "", frozenset(), next(ties), prefer=prefer)
            if chosen is None:
                return
            queue.popleft()
            job.engine, job.granted_s, job.cost, name = int(chosen), now, cost, str(next(names))
            held[job.engine] += cost
            running[job.engine] += 1
            jobs[name] = job
            engines[job.engine].add(SimRequest(name, len(job.prompt), job.output, token_ids=job.prompt))
            if job.engine not in busy:
                busy.add(job.engine)
                at(now, "step", job.engine)

    at(0.0, "client", None)
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "client":
            at(now, "arrival", workload.next())
            wait_s = workload.rng.expovariate(workload.rate)
            if now + wait_s < seconds:
                at(now + wait_s, "client", None)
        elif kind == "arrival":
            what.arrived_s = now
            queue.append(what)
            pump(now)
        elif kind == "step":
            result = engines[what].step()
            at(now + max(result.step_s, 1e-4), "stepped", (what, result))
        else:
            engine, result = what
            for name in result.tokens:
                if jobs[name].first_s is None:
                    job = jobs[name]
                    job.first_s = now
                    affinity.learn(job.begins, str(engine))
                    held[engine] -= KVCost(0, 0, job.cost.prefill_tokens)
            for name, _ in result.finished:
                job = jobs.pop(name)
                held[engine] -= replace(job.cost, prefill_tokens=0)
                running[engine] -= 1
                done.append(job)
                if following := workload.after(job):
                    at(now + following[0], "arrival", following[1])
            pump(now)
            if engines[engine].has_work:
                at(now, "step", engine)
            else:
                busy.discard(engine)
    counters = [engine.counters for engine in engines]
    ttft = sorted(job.first_s - job.arrived_s for job in done)
    wait = sorted(job.granted_s - job.arrived_s for job in done)
    each = [sum(job.engine == i for job in done) for i in range(ENGINES)]
    return {
        "hits": sum(c.prefix_hits for c in counters) / sum(c.prefix_queries for c in counters),
        "ttft_p50_s": quantile(ttft, 0.5),
        "ttft_p99_s": quantile(ttft, 0.99),
        "wait_p99_s": quantile(wait, 0.99),
        "computed": sum(c.computed_tokens for c in counters) / len(done),
        "busiest": max(each) * ENGINES / len(done),
        "preemptions": sum(c.preemptions for c in counters),
    }


def quantile(values, share):
    return values[min(int(len(values) * share), len(values) - 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="of arrivals, simulated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    for name, make in WORKLOADS.items():
        for on in (False, True):
            runs = [run(make, on, seed, options.seconds) for seed in range(1, options.seeds + 1)]
            found[name, on] = {key: mean(one[key] for one in runs) for key in runs[0]}
    if options.json:
        print(json.dumps([{"workload": name, "affinity": on, **row} for (name, on), row in found.items()]))
        return 0
    print("| workload | affinity | hits | TTFT p50 | TTFT p99 | wait p99 | tokens computed | busiest |")
    print("|---|---|---|---|---|---|---|---|")
    for (name, on), row in found.items():
        print(
            f"| {name} | {'on' if on else 'off'} | {row['hits']:.0%} | {row['ttft_p50_s']:.2f} s | "
            f"{row['ttft_p99_s']:.2f} s | {row['wait_p99_s']:.2f} s | {row['computed']:,.0f} | {row['busiest']:.2f}× |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
