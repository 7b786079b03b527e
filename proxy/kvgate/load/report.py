"""The numbers of a run, computed from its records and samples alone.

Over-admission hardly changes totals, medians or even the pooled ITL p99: one gap in a hundred is a preempted
stream that froze for as long as a whole generation. So beside the usual numbers stands the longest gap of
each stream.

Percentiles are nearest-rank: always a value that occurred. Times are seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.load.records import StreamEnd, StreamRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvgate.load.heartbeat import Stall
    from kvgate.load.watch import EngineSample

FREEZE_STEPS = 20
"""A stream froze when a gap was longer than this many times the median gap of the run (a median gap is one
engine step). Twenty is far above what a prefill or a busy machine adds, and far below a preemption's
hundred."""

FREEZE_GAP_S_MIN = 0.25
"""A shorter gap is no freeze whatever the steps: nobody sees it, and a busy machine alone can cause it."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What one engine, or all together, did during a run."""

    preemptions: int
    recomputed_tokens: int | None
    kv_use_mean: float | None
    """Mean of the samples from the first request to the last token; None without a sample in that time."""
    running_max: int
    """By the engine's own count of each step where it keeps one, else the largest sample."""
    in_flight_max: int
    """The largest sample of running and waiting together."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run in numbers. A percentile is None when there is nothing to take it of."""

    offered: int
    completed: int
    ends: dict[str, int]
    """Streams by `StreamEnd`."""
    retries: int
    makespan_s: float
    """From the first request sent to the last stream's end."""
    tokens: int
    tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    """Gaps between tokens, all streams pooled."""
    itl_p99_s: float | None
    longest_gap_p50_s: float | None
    """Median over the streams of each one's longest gap."""
    longest_gap_max_s: float | None
    freeze_gap_s: float | None
    """A gap above this is a freeze."""
    frozen: int
    """Streams with at least one freeze."""
    client_stalled_s: float
    """Time in which the client itself stood still, taken out of the gaps."""
    engines: dict[str, EngineReport]
    """By URL."""
    preemptions: int
    recomputed_tokens: int | None

    @property
    def failed(self) -> int:
        return self.offered - self.completed


def report(
    records: Sequence[StreamRecord], samples: Sequence[EngineSample] = (), stalls: Sequence[Stall] = ()
) -> Report:
    """Compute everything.

    The first and last sample of an engine give its counters before and after. The client's own stalls are taken
    out of the gaps, and out of nothing else. Raises ValueError without a record, or for a stream that has not ended.
    """
    start_s, end_s = span_s(records)
    by_stream = [record.gaps_s(stalls) for record in records]
    gaps = [gap for stream in by_stream for gap in stream]
    longest = [max(stream) for stream in by_stream if stream]
    ttfts = [ttft for record in records if (ttft := record.ttft_s) is not None]
    ends = Counter(record.end for record in records)
    freeze_gap_s = freeze_gap(gaps)
    engines = engine_reports(samples, start_s, end_s)
    tokens = sum(len(record.token_times_s) for record in records)
    return Report(
        offered=len(records),
        completed=ends[StreamEnd.COMPLETED],
        ends={str(end): count for end, count in ends.items()},
        retries=sum(record.retries for record in records),
        makespan_s=end_s - start_s,
        tokens=tokens,
        tokens_per_s=tokens / (end_s - start_s) if end_s > start_s else 0.0,
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p99_s=percentile(ttfts, 99),
        itl_p50_s=percentile(gaps, 50),
        itl_p99_s=percentile(gaps, 99),
        longest_gap_p50_s=percentile(longest, 50),
        longest_gap_max_s=max(longest, default=None),
        freeze_gap_s=freeze_gap_s,
        frozen=frozen_streams(longest, freeze_gap_s),
        client_stalled_s=sum(stall.length_s for stall in stalls),
        engines=engines,
        preemptions=sum(engine.preemptions for engine in engines.values()),
        recomputed_tokens=_total_recomputed(engines.values()),
    )


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The smallest value that at least `percent` % of all are not above (nearest rank); None of nothing."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else None


def span_s(records: Sequence[StreamRecord]) -> tuple[float, float]:
    """When the first request was sent and when the last stream ended."""
    ends = [record.ended_s for record in records if record.ended_s is not None]
    if not records or len(ends) < len(records):
        msg = f"{len(records) - len(ends)} of {len(records)} streams have not ended: nothing to report yet"
        raise ValueError(msg)
    return min(record.sent_s for record in records), max(ends)


def freeze_gap(gaps_s: Sequence[float], gap_s_min: float = FREEZE_GAP_S_MIN) -> float | None:
    """The gap above which a stream counts as frozen; None without a gap.

    It is `FREEZE_STEPS` times the median gap, but at least `gap_s_min`.
    """
    median_s = percentile(gaps_s, 50)
    return None if median_s is None else max(FREEZE_STEPS * median_s, gap_s_min)


def frozen_streams(longest_gaps_s: Iterable[float], freeze_gap_s: float | None) -> int:
    return sum(1 for gap in longest_gaps_s if freeze_gap_s is not None and gap > freeze_gap_s)


def frozen_now(records: Iterable[StreamRecord], now_s: float, freeze_gap_s: float) -> int:
    """Streams that have begun, have not ended, and are silent for longer than `freeze_gap_s`."""
    running = (record.token_times_s for record in records if record.end is None)
    return sum(1 for times in running if times and now_s - times[-1] > freeze_gap_s)


def engine_reports(samples: Iterable[EngineSample], start_s: float, end_s: float) -> dict[str, EngineReport]:
    """One report for each engine that was sampled."""
    by_url: dict[str, list[EngineSample]] = {}
    for sample in samples:
        by_url.setdefault(sample.url, []).append(sample)
    return {url: _engine_report(mine, start_s, end_s) for url, mine in by_url.items()}


def _engine_report(samples: list[EngineSample], start_s: float, end_s: float) -> EngineReport:
    before, after = samples[0], samples[-1]
    during = [sample for sample in samples if start_s <= sample.at_s <= end_s]
    recomputed = None
    if before.recomputed_tokens is not None and after.recomputed_tokens is not None:
        recomputed = after.recomputed_tokens - before.recomputed_tokens
    return EngineReport(
        preemptions=after.preemptions - before.preemptions,
        recomputed_tokens=recomputed,
        kv_use_mean=sum(sample.kv_use for sample in during) / len(during) if during else None,
        running_max=_running_max(samples),
        in_flight_max=max(sample.running + sample.waiting for sample in samples),
    )


def _running_max(samples: list[EngineSample]) -> int:
    """By the engine's own count where that rose meanwhile: otherwise it may be of an earlier run."""
    seen = max(sample.running for sample in samples)
    before, after = samples[0].running_max, samples[-1].running_max
    return after if after is not None and before is not None and after > before else seen


def _total_recomputed(engines: Iterable[EngineReport]) -> int | None:
    counts = [engine.recomputed_tokens for engine in engines]
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None
