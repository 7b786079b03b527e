"""Who goes next: first come first served, or start-time fair queueing with the shortest first inside a tenant.

Both let others that fit pass one that does not, at most `BYPASS_MAX` times; then an engine is pinned for it.
Scans are bounded.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from bench.admission.workload import Job, Profile

BYPASS_MAX = 8
DEPTH_FIFO = 16
DEPTH_TENANT = 4


class Fifo:
    """One line for all."""

    def __init__(self, *, backfill: bool = True) -> None:
        self._line: list[Job] = []
        self._depth = DEPTH_FIFO if backfill else 1

    def __len__(self) -> int:
        return len(self._line)

    def put(self, job: Job) -> None:
        insort(self._line, job, key=lambda other: (other.arrival_s, other.number))

    def candidates(self) -> Iterator[Job]:
        yield from self._line[: self._depth]

    def take(self, job: Job) -> None:
        """Granted: it leaves the line."""
        self._line.remove(job)

    def drop(self, job: Job) -> None:
        """It waited too long."""
        self._line.remove(job)

    def correct(self, job: Job, tokens: int) -> None:
        """It is over, with so many tokens emitted."""


class Fair:
    """Start-time fair queueing over tenants of equal weight; inside a tenant a virtual deadline.

    The deadline is the arrival plus the time to live times the size relative to three times the tenant's mean
    size, at most 1: short ones first, and no one waits for ever.
    """

    def __init__(self, profile: Profile, expected_output: Callable[[Job], float]) -> None:
        self._profile, self._expected = profile, expected_output
        tenants = range(len(profile.tenants))
        self._lines: list[list[Job]] = [[] for _ in tenants]
        self._tags = [0.0 for _ in tenants]
        self._mean_size = [0.0 for _ in tenants]
        self._virtual = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def put(self, job: Job) -> None:
        size = job.prompt + 2.0 * self._expected(job)
        mean = self._mean_size[job.tenant]
        self._mean_size[job.tenant] = mean + 0.02 * (size - mean) if mean else size
        urgency = min(1.0, size / (3.0 * self._mean_size[job.tenant]))
        job.order = job.arrival_s + self._profile.ttl_s * urgency
        line = self._lines[job.tenant]
        if not line:
            self._tags[job.tenant] = max(self._tags[job.tenant], self._virtual)
        insort(line, job, key=lambda other: other.order)

    def candidates(self) -> Iterator[Job]:
        backlogged = [tenant for tenant, line in enumerate(self._lines) if line]
        for tenant in sorted(backlogged, key=self._tags.__getitem__):
            yield from self._lines[tenant][:DEPTH_TENANT]

    def take(self, job: Job) -> None:
        self._lines[job.tenant].remove(job)
        job.charge = job.prompt + 2.0 * self._expected(job)
        self._virtual = max(self._virtual, self._tags[job.tenant])
        self._tags[job.tenant] += job.charge

    def drop(self, job: Job) -> None:
        self._lines[job.tenant].remove(job)

    def correct(self, job: Job, tokens: int) -> None:
        self._tags[job.tenant] += job.prompt + 2.0 * tokens - job.charge
