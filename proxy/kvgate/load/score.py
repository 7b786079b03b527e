"""What the numbers of a run are worth to those who sent it: goodput, errors by reason, each tenant by itself. Pure.

Goodput counts the requests that were whole and kept both promises of the objective: a first token in time, and
tokens at a pace. A request that was refused, broke off or froze is none, however many tokens it brought.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.load.records import StreamEnd
from kvgate.load.report import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.load.heartbeat import Stall
    from kvgate.load.records import StreamRecord

TTFT_S_MAX = 5.0
"""A person who asked a question looks away after some seconds."""
ITL_S_MAX = 0.1
"""Ten tokens a second are faster than anybody reads."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A request is good when its first token comes within `ttft_s_max`, and its tokens, on average over the
    request, `itl_s_max` apart.
    """

    ttft_s_max: float = TTFT_S_MAX
    itl_s_max: float = ITL_S_MAX


@dataclass(frozen=True, slots=True)
class Score:
    """Of all requests, or those of a tenant. A percentile is None when there is nothing to take it of."""

    offered: int
    completed: int
    good: int
    """Completed and within the objective."""
    goodput_per_s: float
    """Good requests a second."""
    good_tokens_per_s: float
    tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    errors: dict[str, int]
    """What did not complete, by reason."""

    @property
    def good_share(self) -> float:
        return self.good / self.offered if self.offered else 0.0


def score(
    records: Sequence[StreamRecord], objective: Objective, span_s: float, stalls: Sequence[Stall] = ()
) -> Score:
    """Compute everything. The client's own stalls are taken out of the gaps."""
    completed = [record for record in records if record.end is StreamEnd.COMPLETED]
    good = [record for record in completed if is_good(record, objective)]
    ttfts = [ttft for record in records if (ttft := record.ttft_s) is not None]
    gaps = [gap for record in records for gap in record.gaps_s(stalls)]
    good_tokens, tokens = _tokens(good), _tokens(records)
    return Score(
        offered=len(records),
        completed=len(completed),
        good=len(good),
        goodput_per_s=len(good) / span_s if span_s > 0 else 0.0,
        good_tokens_per_s=good_tokens / span_s if span_s > 0 else 0.0,
        tokens_per_s=tokens / span_s if span_s > 0 else 0.0,
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p99_s=percentile(ttfts, 99),
        itl_p50_s=percentile(gaps, 50),
        itl_p99_s=percentile(gaps, 99),
        errors=errors_of(records),
    )


def by_tenant(
    records: Sequence[StreamRecord], objective: Objective, span_s: float, stalls: Sequence[Stall] = ()
) -> dict[str, Score]:
    """Each tenant's own, by name; {} where there is only one without a name."""
    names = sorted({record.tenant for record in records} - {""})
    mine = {name: [record for record in records if record.tenant == name] for name in names}
    return {name: score(of, objective, span_s, stalls) for name, of in mine.items()}


def is_good(record: StreamRecord, objective: Objective) -> bool:
    times, ttft_s = record.token_times_s, record.ttft_s
    if record.end is not StreamEnd.COMPLETED or ttft_s is None or ttft_s > objective.ttft_s_max:
        return False
    return len(times) < 2 or (times[-1] - times[0]) / (len(times) - 1) <= objective.itl_s_max


def errors_of(records: Sequence[StreamRecord]) -> dict[str, int]:
    """Requests that did not complete, the most common reason first."""
    failed = (record for record in records if record.end is not StreamEnd.COMPLETED)
    return dict(Counter(reason_of(record) for record in failed).most_common())


def reason_of(record: StreamRecord) -> str:
    """`queue_full` where kvgate gave a reason, else the status, else how the stream ended."""
    if record.end is StreamEnd.REFUSED:
        return record.reason or f"HTTP {record.status}"
    if record.end is StreamEnd.FAILED and record.error:
        name, colon, _ = record.error.partition(":")
        return f"failed, {name}" if colon and name.isidentifier() else "failed, error in the stream"
    return str(record.end).replace("_", " ") if record.end else "running"


def _tokens(records: Sequence[StreamRecord]) -> int:
    return sum(len(record.token_times_s) for record in records)
