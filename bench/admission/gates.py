"""The policies under comparison: may this start now, and on which engine?

A gate answers with a load: what an engine would be filled to, at most 1 if the job may start there. Queueing is
the same for all of them (`queues`), so that only the answers differ.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from dataclasses import dataclass, field

from bench.admission.engine import Engine
from bench.admission.workload import BLOCK_SIZE, Job, Profile


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


class Gate:
    """The base: everything may start at once, on the engine with the fewest requests."""

    queues = False
    """Whether jobs wait before the engines (and leave after the time to live), or on them."""

    def __init__(self, profile: Profile, engines: list[Engine]) -> None:
        self.profile, self.engines = profile, engines
        self.seqs = [0] * len(engines)
        self.prefill = [0] * len(engines)

    def load(self, job: Job, engine: int) -> float:  # noqa: ARG002
        return self.seqs[engine] / 1e9

    def granted(self, job: Job, now_s: float) -> None:  # noqa: ARG002
        self.seqs[job.engine] += 1
        self.prefill[job.engine] += job.prompt

    def started(self, job: Job, now_s: float) -> None:  # noqa: ARG002
        """The first token came."""
        self.prefill[job.engine] -= job.prompt

    def ended(self, job: Job, now_s: float, *, finished: bool) -> None:  # noqa: ARG002
        self.seqs[job.engine] -= 1
        if job.first_token_s is None:
            self.prefill[job.engine] -= job.prompt

    def beat(self, now_s: float) -> list[Job]:  # noqa: ARG002
        """Four times a second. Returns the jobs to be revoked."""
        return []

    def expected_output(self, job: Job) -> float:  # noqa: ARG002
        """What fairness charges for."""
        return 256.0


class Queued(Gate):
    """With kvgate's bounds on sequences and on prompt tokens that are not yet computed."""

    queues = True

    def within(self, job: Job, engine: int) -> bool:
        if self.seqs[engine] >= self.profile.max_num_seqs:
            return False
        outstanding = self.prefill[engine]
        return not outstanding or outstanding + job.prompt <= self.profile.prefill_tokens_max

    def kv_load(self, job: Job, engine: int) -> float:
        raise NotImplementedError

    def load(self, job: Job, engine: int) -> float:
        if not self.within(job, engine):
            return math.inf
        return self.kv_load(job, engine)


class Cap(Gate):
    """At most so many requests on each engine."""

    queues = True

    def __init__(self, profile: Profile, engines: list[Engine], cap: int) -> None:
        super().__init__(profile, engines)
        self.cap = cap

    def load(self, job: Job, engine: int) -> float:  # noqa: ARG002
        return (self.seqs[engine] + 1) / self.cap


class Utilisation(Gate):
    """Go ahead while the scraped gauges are below their marks: 80 % of the KV cache, five waiting."""

    queues = True
    KV_MARK, WAITING_MARK = 0.8, 5

    def __init__(self, profile: Profile, engines: list[Engine]) -> None:
        super().__init__(profile, engines)
        self._scraped = [0.0] * len(engines)

    def load(self, job: Job, engine: int) -> float:  # noqa: ARG002
        return self._scraped[engine] + self.seqs[engine] / 1e9

    def beat(self, now_s: float) -> list[Job]:  # noqa: ARG002
        self._scraped = [
            max(engine.used / engine.blocks / self.KV_MARK, len(engine.waiting) / self.WAITING_MARK)
            for engine in self.engines
        ]
        return []


class Worst(Queued):
    """The peak is reserved, held to the end."""

    def __init__(self, profile: Profile, engines: list[Engine], injected: int | None = None) -> None:
        super().__init__(profile, engines)
        self._injected = injected
        self._held = [0] * len(engines)

    def kv_load(self, job: Job, engine: int) -> float:
        self._inject(job)
        return (self._held[engine] + self._peak(job)) / self.profile.blocks

    def granted(self, job: Job, now_s: float) -> None:
        super().granted(job, now_s)
        self._held[job.engine] += self._peak(job)

    def ended(self, job: Job, now_s: float, *, finished: bool) -> None:
        super().ended(job, now_s, finished=finished)
        self._held[job.engine] -= self._peak(job)

    def _inject(self, job: Job) -> None:
        """An unset limit gets a value, which cuts the answers that would have been longer."""
        if self._injected is not None and job.limit >= self.profile.window - job.prompt:
            job.limit = min(job.limit, self._injected)

    @staticmethod
    def _peak(job: Job) -> int:
        return blocks(job.prompt + job.limit - 1)


@dataclass(slots=True)
class _Future:
    """What one engine is going to hold, for one who knows every length."""

    ends: list[tuple[int, int, Job]] = field(default_factory=list)
    """Last step, size less the step, job: by last step."""
    highest: list[int] = field(default_factory=list)
    """For each position, the largest of (what is held at the end of those up to it) + its step."""
    stale: bool = True

    def refresh(self) -> None:
        held = 0
        points: list[int] = []
        for count, (last, base, _) in enumerate(reversed(self.ends), start=1):
            held += base
            points.append(held + count * last + last)
        best = 0
        self.highest = [best := max(best, point) for point in reversed(points)]
        self.stale = False


class Oracle(Queued):
    """Knows every length: the exact peak of the sum over all future steps must fit.

    Sequences advance in lock-step, so the sum grows until the next one ends: it is enough to look at the ends.
    """

    def __init__(self, profile: Profile, engines: list[Engine]) -> None:
        super().__init__(profile, engines)
        self._futures = [_Future() for _ in engines]
        self._tokens = profile.blocks * BLOCK_SIZE

    def kv_load(self, job: Job, engine: int) -> float:
        future = self._futures[engine]
        if future.stale:
            future.refresh()
        last, base = self._place(job, engine)
        position = bisect_right(future.ends, last, key=lambda end: end[0])
        peak = (future.highest[position - 1] + base) if position else 0
        after = future.ends[position:]
        at_end = sum(end[1] for end in after) + base + (len(after) + 1) * last
        return max(peak, at_end) / self._tokens

    def granted(self, job: Job, now_s: float) -> None:
        super().granted(job, now_s)
        self._insert(job)

    def started(self, job: Job, now_s: float) -> None:
        super().started(job, now_s)
        self._remove(job)
        self._insert(job)

    def ended(self, job: Job, now_s: float, *, finished: bool) -> None:
        super().ended(job, now_s, finished=finished)
        self._remove(job)

    def _place(self, job: Job, engine: int) -> tuple[int, int]:
        """Last step, and size less the step; half a block for what rounding up takes."""
        model = self.engines[engine]
        sequence = job.sequence
        if sequence is not None and sequence.base is not None:
            return sequence.last_step, sequence.base + BLOCK_SIZE
        wait = (self.prefill[engine] + job.prompt) // model.budget
        first = model.step_index + wait
        return first + job.target, job.prompt - first + BLOCK_SIZE

    def _insert(self, job: Job) -> None:
        future = self._futures[job.engine]
        last, base = self._place(job, job.engine)
        insort(future.ends, (last, base, job), key=lambda end: end[0])
        future.stale = True

    def _remove(self, job: Job) -> None:
        future = self._futures[job.engine]
        future.ends = [end for end in future.ends if end[2] is not job]
        future.stale = True
