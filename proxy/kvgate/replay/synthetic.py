"""Made-up traffic: tenants with lengths, limits, a rhythm of the day, and bursts; drawn anew from a seed each time.

Arrivals are a Poisson process whose rate follows the day and the bursts in slots of `SLOT_S`. Each tenant has its own,
from its own seed, so that one that is added changes nothing of the others. How it is written is in `synthetic_words`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter

from kvgate.load.lengths import Length
from kvgate.replay.offered import Offered
from kvgate_policies.types import PriorityClass

SLOT_S = 10.0
"""The rate stands still for so long: short beside a burst, long beside the gaps between requests."""
PEAK_HOUR = 15.0


@dataclass(frozen=True, slots=True)
class Bursts:
    """Times in which a tenant sends `times` as much; they begin `every_s` apart on average, and never overlap."""

    every_s: float
    last_s: float
    times: float

    @property
    def mean(self) -> float:
        """The rate over a long time, of one that would be 1 without bursts."""
        return 1 + (self.times - 1) * self.last_s / (self.every_s + self.last_s)


@dataclass(frozen=True, slots=True)
class MaxTokens:
    """What a client writes as its limit."""

    number: int | None = None
    factor: float | None = None
    """Of the real length; neither is `unset`."""

    def of(self, output: int) -> int | None:
        return self.number if self.factor is None else max(math.ceil(output * self.factor), 1)


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """What one tenant sends."""

    prompt: Length
    output: Length
    share: float = 1.0
    max_tokens: MaxTokens = MaxTokens()
    daily: float = 0.0
    peak_hour: float = PEAK_HOUR
    bursts: Bursts | None = None
    priority: PriorityClass | None = None
    patience_s: float | None = None
    stream: bool = True


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A workload. `offered` draws it, the same each time for a seed."""

    name: str
    rate: float = 5.0
    hours: float = 24.0
    tenants: Mapping[str, TenantLoad] = field(default_factory=dict[str, TenantLoad])

    @property
    def span_s(self) -> float:
        return self.hours * 3600.0

    @property
    def expected(self) -> int:
        """Requests, about."""
        return round(self.rate * self.span_s)

    def offered(self, seed: int) -> Iterator[Offered]:
        """All requests in the order of their arrival."""
        total = sum(load.share for load in self.tenants.values())
        flows = [
            _requests(name, load, self.rate * load.share / total, self.span_s, seed)
            for name, load in self.tenants.items()
        ]
        return merge(*flows, key=attrgetter("arrived_s"))


def _requests(name: str, load: TenantLoad, rate: float, span_s: float, seed: int) -> Iterator[Offered]:
    source = random.Random(f"{seed} {name} sizes")  # noqa: S311  so that it can be repeated
    for arrived_s in _arrivals(name, load, rate, span_s, seed):
        output = load.output.draw(source)
        yield Offered(
            arrived_s=arrived_s,
            tenant=name,
            prompt_tokens=load.prompt.draw(source),
            output_tokens=output,
            max_tokens=load.max_tokens.of(output),
            stream=load.stream,
            priority=load.priority,
            patience_s=load.patience_s,
        )


def _arrivals(name: str, load: TenantLoad, rate: float, span_s: float, seed: int) -> Iterator[float]:
    """By how much rate has passed: the next one comes when that is one exponential step further."""
    source = random.Random(f"{seed} {name} arrivals")  # noqa: S311  so that it can be repeated
    left = source.expovariate(1.0)
    for slot, here in enumerate(_rates(name, load, rate, span_s, seed)):
        at_s = slot * SLOT_S
        end_s = min(at_s + SLOT_S, span_s)
        while here > 0 and left <= (end_s - at_s) * here:
            at_s += left / here
            yield at_s
            left = source.expovariate(1.0)
        left -= (end_s - at_s) * here


def _rates(name: str, load: TenantLoad, rate: float, span_s: float, seed: int) -> Iterator[float]:
    """Requests a second in each slot."""
    bursts = load.bursts
    times = _in_bursts(name, bursts, seed) if bursts else itertools.repeat(1.0)
    quiet = rate / bursts.mean if bursts else rate
    for slot, factor in zip(range(math.ceil(span_s / SLOT_S)), times, strict=False):
        hour = (slot + 0.5) * SLOT_S / 3600.0
        swing = 1 + load.daily * math.cos(2 * math.pi * (hour - load.peak_hour) / 24.0)
        yield quiet * factor * swing


def _in_bursts(name: str, bursts: Bursts, seed: int) -> Iterator[float]:
    """By slot, whether there is a burst: 1, or how many times as much comes. Endless."""
    source = random.Random(f"{seed} {name} bursts")  # noqa: S311  so that it can be repeated
    last = max(round(bursts.last_s / SLOT_S), 1)
    while True:
        yield from itertools.repeat(1.0, round(source.expovariate(1 / bursts.every_s) / SLOT_S))
        yield from itertools.repeat(bursts.times, last)
