"""The plan held against measured traffic: what fits at real lengths, and whom each shorter window would cut. Pure.

A session holds at its peak the blocks of its prompt and answer together. So the ceiling is computed for the mean
of that sum, for its 90th and 99th percentile, and for the whole window, which is what the worst case fills.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.traffic import traffic_json
from kvgate_policies.capacity_mitigations import Trade

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvgate.planner.answer import Answer
    from kvgate.traffic import Lengths
    from kvgate_policies.capacity import Plan


@dataclass(frozen=True, slots=True)
class AtLength:
    """How many sessions of one length fit."""

    name: str
    tokens: int
    sequences: int
    worst: int
    """Sessions of the whole window that fit."""


@dataclass(frozen=True, slots=True)
class CutBy:
    """What an option that shortens the window does to the traffic."""

    option: str
    max_model_len: int
    share: float


def at_lengths(answer: Answer) -> list[AtLength]:
    """From the average to the worst case; () without traffic."""
    return [] if answer.traffic is None else list(_rows(answer.plan, answer.traffic.total))


def _rows(plan: Plan, lengths: Lengths) -> Iterator[AtLength]:
    window = plan.setup.max_model_len
    named = {
        "the average": lengths.mean,
        "the 90th percentile": lengths.percentile(90),
        "the 99th percentile": lengths.percentile(99),
        "the whole length": float(window),
    }
    for name, length in named.items():
        tokens = max(math.ceil(min(length, window)), 1)
        yield AtLength(name, tokens, plan.sequences(tokens), plan.max_sequences_engine)


def cuts(answer: Answer) -> list[CutBy]:
    """The present window first where it cuts, then every option that shortens it, combinations included once."""
    traffic = answer.traffic
    if traffic is None:
        return []
    found = [
        (option.name, option.plan.setup.max_model_len)
        for option in answer.singles
        if option.plan is not None and Trade.LENGTH in option.trades
    ]
    now = answer.plan.setup.max_model_len
    if traffic.total.share_above(now) > 0:
        found.insert(0, (f"max_model_len {now}, as it is", now))
    return [CutBy(option, window, traffic.total.share_above(window)) for option, window in found]


def measured_json(answer: Answer) -> dict[str, object] | None:
    if answer.traffic is None:
        return None
    return {
        **traffic_json(answer.traffic),
        "at_lengths": [
            {"name": row.name, "tokens": row.tokens, "max_sequences_engine": row.sequences}
            for row in at_lengths(answer)
        ],
        "cuts": [
            {"option": cut.option, "max_model_len": cut.max_model_len, "cut": round(cut.share, 4)}
            for cut in cuts(answer)
        ],
    }
