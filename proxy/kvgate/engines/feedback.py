"""What an engine's own gauges say against its capacity: one reading after the other, kept by one process.

The arithmetic is in `kvgate_policies.feedback`; here is what is a reading, how long it counts, and how fine the
ledger is told.

* A reading is *fresh* when it differs from the one before, or shows nothing at work. vLLM writes its gauges with
  each step, several in a second, so numbers of a working engine that repeat are old ones: a cache in between, an
  engine that hangs.
* `STALE_S` after the last fresh reading nothing of it counts any more: the ledger goes on by its own sums.
* The ledger is told in `STEPS` parts of the capacity, less at once, more only when it is one and a half parts more,
  so that noise makes no calls.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvgate_policies.feedback import Drift, Gauge, Trust, drift_step, trust_step, usable_blocks
from kvgate_policies.occupancy import SCALE

if TYPE_CHECKING:
    from kvgate.engines.metrics import Gauges
    from kvgate_policies.types import EngineUse

STALE_S = 15.0
"""A step takes seconds at most, and who only looks now and then looks every ten."""
STEPS = 64
"""Parts of the capacity that are told apart: one is what a single cut of trust takes away four times over."""
RISE_STEPS = 1.5
"""More room by less than this is not told."""
WHOLE_SHARE = 1 - 0.25 / STEPS
"""From here on it is the whole: a mean that fades never quite reaches 1."""


class Feedback:
    """One engine's. A restart begins with a new one."""

    def __init__(self) -> None:
        self.trust = Trust()
        self.drift = Drift()
        self.fresh_s: float | None = None
        """When a reading was fresh last; None before the first."""
        self._last: Gauges | None = None

    def is_fresh(self, gauges: Gauges) -> bool:
        """Whether a reading that is still to be taken in tells of now."""
        return gauges != self._last or not _at_work(gauges)

    def read(self, gauges: Gauges, use: EngineUse | None, now_s: float) -> None:
        """Take in a reading, if it is fresh, with what the ledger holds there.

        `use` is None where the ledger's sums are not those of the pool: then the reading tells nothing of drift.
        """
        fresh, self._last = self.is_fresh(gauges), gauges
        if not fresh:
            return
        if self.is_stale(now_s):
            self.trust, self.drift = Trust(), Drift()
        self.fresh_s = now_s
        gauge = None if use is None else _gauge(gauges, use, now_s)
        before, self.drift = self.drift, Drift() if gauge is None else drift_step(self.drift, gauge)
        if gauges.preemptions is not None:
            others = before.excess_blocks > 0 or self.drift.excess_blocks > 0
            self.trust = trust_step(self.trust, gauges.preemptions, now_s, explained=others)

    def is_stale(self, now_s: float) -> bool:
        """Whether nothing it has read counts any more."""
        return self.fresh_s is None or now_s - self.fresh_s >= STALE_S

    def usable(self, blocks: int, told: int | None, now_s: float) -> int | None:
        """What the ledger is to fill of `blocks`, where it knows of `told`; None: all."""
        if self.is_stale(now_s):
            return None
        return quantised(usable_blocks(blocks, self.trust, self.drift), blocks, told)


def fullest(*uses: EngineUse | None) -> EngineUse | None:
    """Of several looks at what the ledger holds on an engine, the one with the most; None where there was none.

    A gauge is read at some moment between two of them. Requests that ended or began meanwhile would look like
    blocks that nobody reserved.
    """
    seen = [use for use in uses if use is not None]
    return max(seen, key=_held_blocks, default=None)


def _held_blocks(use: EngineUse) -> float:
    """At this moment, by what is expected."""
    return use.reserved.occupancy.means[0] / SCALE


def quantised(usable: float, blocks: int, told: int | None) -> int | None:
    """In whole parts of the capacity, rounded down; `told` again where the rise is too small to tell."""
    if usable >= WHOLE_SHARE * blocks:
        return None
    step = max(blocks / STEPS, 1.0)
    parts = math.floor(usable / step)
    if told is not None and told <= usable < told + RISE_STEPS * step:
        return told
    return math.floor(parts * step)


def _gauge(gauges: Gauges, use: EngineUse, now_s: float) -> Gauge | None:
    """None where the engine does not tell what it uses."""
    if gauges.kv_usage is None:
        return None
    capacity, reserved = use.limits.blocks, use.reserved
    return Gauge(
        used_blocks=gauges.kv_usage * capacity,
        held_blocks=_held_blocks(use),
        capacity_blocks=capacity,
        scraped_s=now_s,
        held_is_peak=reserved.expected is None,
    )


def _at_work(gauges: Gauges) -> bool:
    return bool(gauges.running or gauges.waiting or gauges.kv_usage)
