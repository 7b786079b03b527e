"""What a run was worth: goodput, stalls, preemptions.

A request is *good* when its first token came within the SLO, queueing included, when the 99th percentile of its
own gaps between tokens is within theirs, and when the answer was not cut by a limit that the proxy wrote. It is
*strict* when besides no gap was longer than a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.admission.workload import Job
from bench.admission.world import World

GAP_STRICT_S = 1.0


@dataclass(frozen=True, slots=True)
class Score:
    offered_per_s: float
    goodput_per_s: float
    strict_per_s: float
    preempted_per_1000: float
    """Preemptions for each thousand requests that were let through."""
    kv_use: float
    tokens_per_s: float
    good_tokens_per_s: float
    """Output tokens of good requests: the work that was done well, whoever's it was."""
    ttft_p50_s: float
    ttft_p99_s: float
    stall_p99_s: float
    rejected: float
    """Part that waited too long, in the queue or on the engine."""
    victims_good: float
    """Part of the well-behaved tenants' requests that were good."""
    cut: float
    """Part of the served answers that a written limit made shorter."""
    good: float

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table, as the columns of `report.ROW`."""
        return (
            f"{self.goodput_per_s:.2f}",
            f"{self.strict_per_s:.2f}",
            f"{self.good:.3f}",
            f"{self.victims_good:.3f}",
            f"{self.preempted_per_1000:.1f}",
            f"{self.kv_use:.2f}",
            f"{self.tokens_per_s:.0f}",
            f"{self.good_tokens_per_s:.0f}",
            f"{self.ttft_p50_s:.2f}",
            f"{self.ttft_p99_s:.2f}",
            f"{self.stall_p99_s:.2f}",
            f"{self.rejected:.3f}",
            f"{self.cut:.3f}",
        )


def score(world: World, jobs: list[Job], from_s: float, until_s: float, outputs: dict[int, int]) -> Score:
    """Over the jobs that arrived within the window. `outputs`: what each would have emitted if nobody cut it."""
    window = [job for job in jobs if from_s <= job.arrival_s < until_s]
    gaps = {job.number: _gaps(world, job) for job in window if job.first_token_s is not None}
    whole = [job for job in window if job.number in gaps and job.target >= outputs[job.number]]
    kept = [job for job in whole if _good(world, job, gaps[job.number])]
    strict = [job for job in kept if max(gaps[job.number], default=0.0) <= GAP_STRICT_S]
    granted = [job for job in window if job.granted_s is not None]
    ttft = sorted(job.first_token_s - job.arrival_s for job in window if job.first_token_s is not None)
    stalls = sorted(max(gaps[number], default=0.0) for number in gaps)
    victims = [job for job in window if job.tenant]
    span_s = until_s - from_s
    elapsed_s = world.now_s - world.counting_from_s
    served = [job for job in window if job.ended_s is not None]
    return Score(
        offered_per_s=len(window) / span_s,
        goodput_per_s=len(kept) / span_s,
        strict_per_s=len(strict) / span_s,
        preempted_per_1000=1000.0 * sum(job.preempted for job in window) / max(len(granted), 1),
        kv_use=world.kv_time / (elapsed_s * sum(engine.blocks for engine in world.engines)),
        tokens_per_s=sum(job.target for job in served) / span_s,
        good_tokens_per_s=sum(job.target for job in kept) / span_s,
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p99_s=quantile(ttft, 0.99),
        stall_p99_s=quantile(stalls, 0.99),
        rejected=sum(job.gone for job in window) / max(len(window), 1),
        victims_good=sum(1 for job in kept if job.tenant) / max(len(victims), 1),
        cut=sum(job.target < outputs[job.number] for job in served) / max(len(served), 1),
        good=len(kept) / max(len(window), 1),
    )


def quantile(values: list[float], q: float) -> float:
    """Of sorted values, one that was seen; NaN of none."""
    return values[min(int(q * len(values)), len(values) - 1)] if values else math.nan


def _gaps(world: World, job: Job) -> list[float]:
    """The times between its tokens so far, those longer than a step where it was preempted."""
    assert job.sequence is not None
    ends, steps = world.ends[job.engine], world.steps_s[job.engine]
    gaps: list[float] = []
    before: int | None = None
    for first, last in job.sequence.runs:
        if before is not None and first < len(ends):
            gaps.append(ends[first] - ends[before])
        gaps += steps[first + 1 : last + 1]
        before = min(last, len(ends) - 1)
    if before is not None and job.ended_s is None and job.sequence.base is None:
        gaps.append(world.now_s - ends[before])
    return gaps


def good(world: World, job: Job) -> bool:
    """Whether it kept both objectives, so far."""
    return job.first_token_s is not None and _good(world, job, _gaps(world, job))


def _good(world: World, job: Job, gaps: list[float]) -> bool:
    assert job.first_token_s is not None
    if job.first_token_s - job.arrival_s > world.profile.ttft_slo_s:
        return False
    slow = sum(gap > world.profile.itl_slo_s for gap in gaps)
    return slow <= 0.01 * len(gaps)
