"""What a replay came to, for each policy: numbers, those of each tenant, and curves. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.load.report import percentile
from kvgate_policies.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvgate.replay.plan import Plan
    from kvgate.replay.record import Record, Tally

NOT_ADMITTED = "rejected_", "evicted_"


@dataclass(frozen=True, slots=True)
class Score:
    """Of all requests, or those of one tenant. A percentile is None when there is nothing to take it of."""

    offered: int
    served: int
    rejected: int
    """Refused at once, or after a wait in vain."""
    wait_p50_s: float | None
    """Waits in the queue of those that were granted."""
    wait_p90_s: float | None
    wait_p99_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    good: int
    """Served within the objective."""
    goodput_tokens_per_s: float
    """Tokens of the good ones."""
    tokens_per_s: float
    preemptions: int
    outcomes: dict[str, int]
    """All of them, by outcome."""

    @property
    def rejected_share(self) -> float:
        return self.rejected / self.offered if self.offered else 0.0

    @property
    def good_share(self) -> float:
        return self.good / self.offered if self.offered else 0.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """One policy."""

    policy: str
    plan: Plan
    span_s: float
    total: Score
    tenants: dict[str, Score]
    """By the names in the traffic, the busiest first."""
    reserved_share: float | None
    """Of the pool's KV cache, on average; None where the policy reserves nothing."""
    held_share: float
    """By sequences."""
    queued_mean: float
    queued_most: int
    jain: float | None
    """None where never two tenants waited long enough to compare."""
    queued: tuple[tuple[float, float], ...]
    """Over time: seconds, and how many waited."""
    reserved: tuple[tuple[float, float], ...]
    """Over time: seconds, and share of the cache; empty where nothing is reserved."""
    waits_s: tuple[float, ...]
    """`WAITS_SHOWN` quantiles, evenly."""


WAITS_SHOWN = 200


def replayed(plan: Plan, record: Record) -> Replayed:
    span_s = record.span_s
    blocks = plan.engines * plan.sizes.usable_blocks
    busiest = sorted(record.tenants.items(), key=lambda one: (-one[1].offered, one[0]))
    reserved = record.reserved_blocks if plan.reserves else None
    return Replayed(
        policy=plan.name,
        plan=plan,
        span_s=span_s,
        total=_score(record.total, span_s),
        tenants={name: _score(tally, span_s) for name, tally in busiest},
        reserved_share=None if reserved is None else reserved.mean / blocks,
        held_share=record.engine_blocks_mean / blocks,
        queued_mean=record.queued.mean,
        queued_most=round(record.queued.most),
        jain=record.fairness.index,
        queued=tuple(record.queued.points()),
        reserved=()
        if reserved is None
        else tuple((at_s, blocks_then / blocks) for at_s, blocks_then in reserved.points()),
        waits_s=_quantiles(record.total.waited_s),
    )


def _score(tally: Tally, span_s: float) -> Score:
    waits, ttfts = sorted(tally.waited_s), sorted(tally.ttft_s)
    outcomes = {outcome.value: count for outcome, count in tally.outcomes.most_common()}
    return Score(
        offered=tally.offered,
        served=tally.outcomes[Outcome.SERVED],
        rejected=sum(count for name, count in outcomes.items() if name.startswith(NOT_ADMITTED)),
        wait_p50_s=percentile(waits, 50),
        wait_p90_s=percentile(waits, 90),
        wait_p99_s=percentile(waits, 99),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p99_s=percentile(ttfts, 99),
        good=tally.good,
        goodput_tokens_per_s=tally.good_tokens / span_s if span_s > 0 else 0.0,
        tokens_per_s=tally.tokens / span_s if span_s > 0 else 0.0,
        preemptions=tally.preempted,
        outcomes=outcomes,
    )


def _quantiles(values: Iterable[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    if not ordered:
        return ()
    return tuple(ordered[round(k / WAITS_SHOWN * (len(ordered) - 1))] for k in range(WAITS_SHOWN + 1))


def score_json(one: Score) -> dict[str, object]:
    """For machines: seconds and tokens, shares from 0 to 1, null is not known."""
    return {
        "offered": one.offered,
        "served": one.served,
        "rejected": one.rejected,
        "rejected_share": round(one.rejected_share, 6),
        "outcomes": one.outcomes,
        "wait_s": _rounded(p50=one.wait_p50_s, p90=one.wait_p90_s, p99=one.wait_p99_s),
        "ttft_s": _rounded(p50=one.ttft_p50_s, p99=one.ttft_p99_s),
        "good": one.good,
        "good_share": round(one.good_share, 6),
        "goodput_tokens_per_s": round(one.goodput_tokens_per_s, 3),
        "tokens_per_s": round(one.tokens_per_s, 3),
        "preemptions": one.preemptions,
    }


def replayed_json(one: Replayed) -> dict[str, object]:
    """One policy, for machines."""
    sizes = one.plan.sizes
    engines = {
        "count": one.plan.engines,
        "num_gpu_blocks": sizes.num_gpu_blocks,
        "block_size": sizes.block_size,
        "max_model_len": sizes.max_model_len,
        "max_num_seqs": sizes.max_num_seqs,
        "max_num_batched_tokens": sizes.max_num_batched_tokens,
        "profile": sizes.profile.name,
        "assumed": list(one.plan.assumed),
    }
    return {
        "policy": one.policy,
        "engines": engines,
        "not_replayed": list(one.plan.not_replayed),
        "span_s": round(one.span_s, 3),
        **score_json(one.total),
        **_rounded(kv_reserved_mean=one.reserved_share, kv_held_mean=one.held_share),
        "queued_mean": round(one.queued_mean, 4),
        "queued_max": one.queued_most,
        **_rounded(jain=one.jain),
        "tenants": {name: score_json(score) for name, score in one.tenants.items()},
    }


def _rounded(**values: float | None) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 6) for name, value in values.items()}
