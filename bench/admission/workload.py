"""Who asks for what: three workloads of four tenants each, drawn from fixed seeds.

Tenants 1 to 3 together always offer half of what the pool can serve (Poisson); tenant 0, the noisy one, offers
the rest of the load in bursts (gamma gaps, coefficient of variation 3). Lengths are log-normal and cut at the
window; their parameters follow published traces in shape and size, they are not fitted to any.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

from bench.admission.engine import Sequence

from kvgate_policies.engine_model import StepProfile

BLOCK_SIZE = 16
NOISY_CV = 3.0
VICTIMS_LOAD = 0.5


@dataclass(frozen=True, slots=True)
class Size:
    """A log-normal number of tokens."""

    median: float
    sigma: float
    most: int

    def draw(self, rng: random.Random, scale: float = 1.0) -> int:
        return max(1, min(self.most, round(scale * self.median * rng.lognormvariate(0.0, self.sigma))))


@dataclass(frozen=True, slots=True)
class Kind:
    prompt: Size
    output: Size


@dataclass(frozen=True, slots=True)
class Profile:
    """A model on a machine, four of them, and who uses it."""

    name: str
    blocks: int
    window: int
    max_num_batched_tokens: int
    step: StepProfile
    ttft_slo_s: float
    ttl_s: float
    """How long a request may wait, in a queue or for a client's patience."""
    itl_slo_s: float
    tenants: tuple[Kind, ...]
    max_num_seqs: int = 256
    engines: int = 4

    @property
    def prefill_tokens_max(self) -> int:
        """Prompt tokens outstanding on one engine: one second of prefill."""
        return round(1.0 / self.step.prefill_s_per_token)


_CONV = Kind(Size(900, 1.0, 12000), Size(130, 1.0, 4000))
_CODE = Kind(Size(1500, 1.0, 12000), Size(16, 1.0, 2000))
_TALK = Kind(Size(250, 1.0, 12000), Size(200, 1.0, 4000))
_REASON = Kind(Size(300, 0.8, 4000), Size(900, 1.0, 16000))
_AGENT = Kind(Size(8000, 0.9, 120000), Size(230, 0.9, 8000))

CHAT = Profile(
    "chat",
    4096,
    16384,
    1024,
    StepProfile("chat", 0.012, 3e-5, 1e-7, 1e-4),
    5.0,
    4.0,
    0.25,
    (_CONV, _CONV, _CODE, _TALK),
)
REASON = Profile(
    "reason",
    8192,
    32768,
    1024,
    StepProfile("reason", 0.012, 3e-5, 1e-7, 1e-4),
    10.0,
    8.0,
    0.25,
    (_REASON, _REASON, _TALK, _CODE),
)
AGENT = Profile(
    "agent",
    24576,
    131072,
    2048,
    StepProfile("agent", 0.012, 3e-5, 6.5e-8, 3.3e-5),
    15.0,
    11.0,
    0.3,
    (_AGENT,) * 4,
)
PROFILES = {profile.name: profile for profile in (CHAT, REASON, AGENT)}


class Limit(StrEnum):
    """What clients say of the length of the answer."""

    UNSET = "unset"
    FOUR_TIMES = "4x"
    EXACT = "exact"
    """`max_tokens` is what will come, and nobody knows that it is."""
    KNOWN = "known"
    """The same with `ignore_eos`."""


@dataclass(slots=True, eq=False)
class Job:
    """One request through its life."""

    number: int
    tenant: int
    arrival_s: float
    prompt: int
    output: int
    """Tokens after which the model ends."""
    limit: int
    """Tokens at which the engine cuts."""
    ignore_eos: bool
    batch: bool = False
    """May be revoked."""
    sequence: Sequence | None = None
    engine: int = -1
    granted_s: float | None = None
    deadline_s: float = 0.0
    """When it leaves the queue."""
    first_token_s: float | None = None
    gone: bool = False
    """Left the queue, or was aborted by its client."""
    ended_s: float | None = None
    bypassed: int = 0
    revoked: int = 0
    preempted: int = 0
    order: float = 0.0
    """Its place inside its tenant."""
    charge: float = 0.0

    @property
    def target(self) -> int:
        return min(self.output, self.limit)


@dataclass(slots=True)
class Source:
    """Draws the jobs of one tenant or of all, always the same for one seed."""

    profile: Profile
    seed: int
    limit: Limit = Limit.UNSET
    longer_from_s: float = float("inf")
    """From then on every output is `longer` times as long."""
    longer: float = 3.0
    batch_tenants: frozenset[int] = frozenset()
    _numbers: Iterator[int] = field(default_factory=count)

    def arrivals(self, load_per_s: float, capacity_per_s: float, until_s: float) -> list[Job]:
        """Everything that arrives, in order."""
        victims = len(self.profile.tenants) - 1
        quiet_per_s = VICTIMS_LOAD * capacity_per_s / victims
        jobs: list[Job] = []
        for tenant in range(victims + 1):
            rng = random.Random(f"{self.seed}/{self.profile.name}/{tenant}")
            rate = quiet_per_s if tenant else load_per_s - VICTIMS_LOAD * capacity_per_s
            shape = 1.0 if tenant else 1.0 / NOISY_CV**2
            now_s = 0.0
            while rate > 0.0:
                now_s += rng.gammavariate(shape, 1.0 / (shape * rate))
                if now_s >= until_s:
                    break
                jobs.append(self._draw(rng, tenant, now_s))
        jobs.sort(key=lambda job: job.arrival_s)
        return jobs

    def backlog(self, load: float) -> Iterator[Job]:
        """Jobs without end in the mix of that load, as if all had always been waiting."""
        rng = random.Random(f"{self.seed}/{self.profile.name}/backlog")
        victims = len(self.profile.tenants) - 1
        weights = [load - VICTIMS_LOAD, *[VICTIMS_LOAD / victims] * victims]
        while True:
            tenant = rng.choices(range(victims + 1), weights)[0]
            yield self._draw(rng, tenant, 0.0)

    def _draw(self, rng: random.Random, tenant: int, now_s: float) -> Job:
        kind, window = self.profile.tenants[tenant], self.profile.window
        prompt = min(kind.prompt.draw(rng), window - 2)
        output = kind.output.draw(rng, self.longer if now_s >= self.longer_from_s else 1.0)
        room = window - prompt
        limits = {Limit.UNSET: room, Limit.FOUR_TIMES: 4 * output}
        return Job(
            number=next(self._numbers),
            tenant=tenant,
            arrival_s=now_s,
            prompt=prompt,
            output=min(output, room),
            limit=min(limits.get(self.limit, output), room),
            ignore_eos=self.limit is Limit.KNOWN,
            batch=tenant in self.batch_tenants,
        )
