"""How far is an engine's capacity to be trusted? Three small steps from one scrape of its gauges to the next.

The ledger is the authority; what an engine says of itself is only ever a brake. Whatever the gauges show, they
never make a ledger admit more than its own sums allow, and without them it goes on unchanged. So a gauge that
lies low, stalls or is gone does no harm. One that lies high costs room, and never the pool: a share of the capacity
(`USABLE_MIN`) stays open whatever it says.

* **Trust** `k`: after preemptions the capacity counts for less, and creeps back while there are none (additive
  increase, multiplicative decrease). It catches whatever the forecast got a little wrong.
* **Bias**: blocks used by the gauge over blocks that the ledger takes to be held now, smoothed. Above 1 the
  requests are larger than they are thought to be: a prompt estimate, a template, another rule for blocks.
* **Foreign** blocks: what is used beyond any bias is traffic that did not come through the ledger. It counts
  when two scrapes in a row show it, since a gauge and a ledger are never read at the same moment. Where all
  reservations are peaks, which running requests cannot exceed, all that is used beyond them is foreign, and nothing
  is bias.

All are values: a step gives the next one. `usable_blocks` is what the ledger's inequality may fill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TRUST_MIN = 0.5
"""Below half, something else is wrong, and the pool must not starve of it."""
TRUST_CUT = 0.93
"""What is left of the trust after preemptions."""
TRUST_CUT_GAP_S = 2.0
"""Preemptions closer together than this are one event."""
TRUST_GAIN_PER_S = 0.004
"""From one cut, 7 %, it recovers within 18 s."""
BIAS_MAX = 1.5
"""What is used beyond this is foreign."""
BIAS_MEMORY_S = 10.0
"""Time constant of the smoothing."""
BIAS_HELD_SHARE_MIN = 0.05
"""With less than this share of the capacity held, the quotient says nothing."""
USABLE_MIN = 0.25
"""Of the capacity, open whatever the gauges say: an engine that shows itself full for ever would otherwise starve the
pool, and one of which others take more than three quarters is not the pool's."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Trust in one engine's capacity; `k` multiplies it."""

    k: float = 1.0
    preemptions: float | None = None
    """The counter at the last scrape; None before the first."""
    scraped_s: float = 0.0
    cut_s: float = -math.inf
    """When trust was last lowered."""


def trust_step(trust: Trust, preemptions: float, now_s: float, *, explained: bool = False) -> Trust:
    """Trust after a scrape that read `preemptions` (a counter since the engine's start) at `now_s`.

    The first reading, and one below the last (the engine restarted), only set where counting begins. `explained`: the
    engine serves others too, who are charged for as foreign blocks: its preemptions say nothing of the ledger's sums.
    """
    if trust.preemptions is None or preemptions < trust.preemptions:
        return Trust(trust.k, preemptions, now_s, trust.cut_s)
    if preemptions > trust.preemptions:
        if explained or now_s - trust.cut_s < TRUST_CUT_GAP_S:
            return Trust(trust.k, preemptions, now_s, trust.cut_s)
        return Trust(max(TRUST_MIN, trust.k * TRUST_CUT), preemptions, now_s, now_s)
    gained = trust.k + TRUST_GAIN_PER_S * max(now_s - trust.scraped_s, 0.0)
    return Trust(min(1.0, gained), preemptions, now_s, trust.cut_s)


@dataclass(frozen=True, slots=True)
class Gauge:
    """One scrape set beside the ledger."""

    used_blocks: float
    """By the engine."""
    held_blocks: float
    """What the ledger takes to be held at this moment: the mean at look-ahead 0, orphans included."""
    capacity_blocks: float
    scraped_s: float
    held_is_peak: bool = False
    """All reservations are guaranteed: what is held now is `held_blocks` at most."""

    @property
    def bias_max(self) -> float:
        """What is used beyond this, times what is held, is foreign."""
        return 1.0 if self.held_is_peak else BIAS_MAX


@dataclass(frozen=True, slots=True)
class Drift:
    """How far gauge and ledger are apart."""

    bias: float = 1.0
    """Between 1 and `BIAS_MAX`: the engine uses that many times what the ledger thinks."""
    foreign_blocks: float = 0.0
    """Charged against the capacity."""
    excess_blocks: float = 0.0
    """Beyond any bias at the last scrape; foreign once it is seen again."""
    scraped_s: float | None = None


def drift_step(drift: Drift, gauge: Gauge) -> Drift:
    """The drift after a scrape."""
    excess = max(0.0, gauge.used_blocks - gauge.bias_max * gauge.held_blocks)
    return Drift(_bias(drift, gauge), min(excess, drift.excess_blocks), excess, gauge.scraped_s)


def usable_blocks(capacity_blocks: int, trust: Trust, drift: Drift) -> float:
    """What the ledger may fill: never more than the capacity, never less than `USABLE_MIN` of it."""
    open_blocks = (capacity_blocks - drift.foreign_blocks) * trust.k / drift.bias
    return max(USABLE_MIN * capacity_blocks, open_blocks)


def _bias(drift: Drift, gauge: Gauge) -> float:
    if gauge.held_blocks < BIAS_HELD_SHARE_MIN * gauge.capacity_blocks:
        return drift.bias
    seen = min(max(gauge.used_blocks / gauge.held_blocks, 1.0), gauge.bias_max)
    if drift.scraped_s is None:
        return seen
    weight = -math.expm1(-max(gauge.scraped_s - drift.scraped_s, 0.0) / BIAS_MEMORY_S)
    return drift.bias + weight * (seen - drift.bias)
