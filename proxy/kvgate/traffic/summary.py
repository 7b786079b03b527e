"""What the traffic comes to: lengths, concurrency, waste, and whom a shorter limit would cut. Pure.

Waste is what was reserved and not used, in tokens, and in tokens times the seconds that they were held, which is
what others wait for. A request that is cut is one whose prompt and answer together are longer than the window, or
whose answer is longer than the cap.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.traffic.lengths import Lengths, Listed, Summed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvgate.traffic.histograms import Scraped
    from kvgate.traffic.log import Tally

SUGGESTED_MAX = 6
"""Windows and caps that are looked at when none is asked for."""
SUGGESTED_LEAST = 256
FROM_HISTOGRAMS = (
    "From histograms: lengths are rounded up to the next bound, and shares that would be cut are at most so large. "
    "Means are exact. A request log (kvgate serve --request-log FILE) knows both exactly."
)


@dataclass(frozen=True, slots=True)
class Waste:
    """Of a group of requests. A sum is 0 where nothing was reserved."""

    requests: int
    reserved_tokens: int
    used_tokens: int
    reserved_token_s: float
    """Tokens times seconds held."""
    used_token_s: float
    """As if everything that was used in the end had been used all the time: the least that could be held."""

    @property
    def wasted(self) -> float:
        """Share of the reserved tokens that was never used."""
        return 1 - self.used_tokens / self.reserved_tokens if self.reserved_tokens else 0.0

    @property
    def wasted_over_time(self) -> float:
        return 1 - self.used_token_s / self.reserved_token_s if self.reserved_token_s else 0.0


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Requests in the engines at the same time. None is not known."""

    mean: float | None
    largest: int | None
    waiting_mean: float | None
    """In kvgate's queue."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a limit would do."""

    limit: int
    cut: float
    """Share of requests that it would cut."""
    refused: float | None
    """Share that the engine would refuse as they are asked: prompt and asked limit are more than the window."""


@dataclass(frozen=True, slots=True)
class Traffic:
    source: str
    requests: int
    whole: int
    """Requests with known lengths: those that ran to their end."""
    span_s: float | None
    outcomes: dict[str, int]
    prompt: Lengths
    output: Lengths
    total: Lengths
    """Prompt and output together."""
    concurrency: Concurrency
    all_waste: Waste | None
    with_default: Waste | None
    """Requests that set no limit: what the default reserved for them."""
    with_own: Waste | None
    """Requests that set one."""
    tenants: dict[str, Waste]
    windows: tuple[Cut, ...]
    caps: tuple[Cut, ...]
    notes: tuple[str, ...] = ()


def of_log(tally: Tally, windows: Sequence[int] = (), caps: Sequence[int] = ()) -> Traffic:
    """Of a request log."""
    total = Listed(p + o for p, o in zip(tally.prompt, tally.output, strict=True))
    output = Listed(tally.output)
    indexes = range(tally.whole)
    return Traffic(
        source=tally.source,
        requests=tally.outcomes.total(),
        whole=tally.whole,
        span_s=tally.last - tally.first,
        outcomes=dict(tally.outcomes.most_common()),
        prompt=Listed(tally.prompt),
        output=output,
        total=total,
        concurrency=_concurrency(tally),
        all_waste=_waste(tally, indexes),
        with_default=_waste(tally, (i for i in indexes if not tally.asked[i])),
        with_own=_waste(tally, (i for i in indexes if tally.asked[i])),
        tenants={name: _waste(tally, mine) for name, mine in _by_tenant(tally).items()},
        windows=tuple(_window(tally, total, one) for one in windows or _suggested(total)),
        caps=tuple(Cut(one, output.share_above(one), None) for one in caps or _suggested(output)),
        notes=tuple(_notes(tally)),
    )


def of_metrics(
    scraped: Scraped, windows: Sequence[int] = (), caps: Sequence[int] = (), now: float | None = None
) -> Traffic:
    """Of a server's histograms: since its start, and in bounds."""
    total = Summed(scraped.prompt, scraped.output)
    span_s = None if scraped.started is None else max((now or time.time()) - scraped.started, 1.0)
    mean = None if span_s is None or scraped.busy_s is None else scraped.busy_s / span_s
    return Traffic(
        source=scraped.url,
        requests=scraped.prompt.count,
        whole=scraped.prompt.count,
        span_s=span_s,
        outcomes={},
        prompt=scraped.prompt,
        output=scraped.output,
        total=total,
        concurrency=Concurrency(mean, None, None),
        all_waste=_bounded_waste(scraped),
        with_default=None,
        with_own=None,
        tenants={},
        windows=tuple(Cut(one, total.share_above(one), None) for one in windows or _suggested(total)),
        caps=tuple(
            Cut(one, scraped.output.share_above(one), None) for one in caps or _suggested(scraped.output)
        ),
        notes=(FROM_HISTOGRAMS,),
    )


def _bounded_waste(scraped: Scraped) -> Waste | None:
    limit = scraped.limit
    if limit is None or not limit.count:
        return None
    used = round(scraped.prompt.mean * scraped.prompt.count + scraped.output.mean * scraped.output.count)
    asked = round(scraped.prompt.mean * scraped.prompt.count + limit.mean * limit.count)
    return Waste(scraped.prompt.count, asked, used, 0.0, 0.0)


def _by_tenant(tally: Tally) -> dict[str, list[int]]:
    """The requests of each, the busiest first."""
    found: dict[str, list[int]] = {}
    for index, name in enumerate(tally.tenants):
        found.setdefault(name, []).append(index)
    return dict(sorted(found.items(), key=lambda one: -len(one[1])))


def _waste(tally: Tally, indexes: Iterable[int]) -> Waste:
    requests = reserved = used = 0
    reserved_s = used_s = 0.0
    for i in indexes:
        requests += 1
        held_s = tally.ended[i] - tally.started[i]
        if tally.reserved[i]:
            reserved, reserved_s = reserved + tally.reserved[i], reserved_s + tally.reserved[i] * held_s
            used, used_s = used + tally.used[i], used_s + tally.used[i] * held_s
    return Waste(requests, reserved, used, reserved_s, used_s)


def _concurrency(tally: Tally) -> Concurrency:
    if not tally.timed:
        return Concurrency(None, None, None)
    span_s = tally.last - tally.first
    held_s = sum(tally.ended) - sum(tally.started)
    events = sorted([*((at, 1) for at in tally.started), *((at, -1) for at in tally.ended)])
    now = largest = 0
    for _, change in events:  # at the same moment the ends come first
        now += change
        largest = max(largest, now)
    if span_s <= 0:
        return Concurrency(None, largest or None, None)
    return Concurrency(held_s / span_s, largest or None, sum(tally.waited_s) / span_s)


def _window(tally: Tally, total: Lengths, window: int) -> Cut:
    asked = (p + a > window for p, a in zip(tally.prompt, tally.asked, strict=True) if a or p >= window)
    refused = sum(asked) / tally.whole if tally.whole else 0.0
    return Cut(window, total.share_above(window), refused)


def _suggested(lengths: Lengths) -> tuple[int, ...]:
    """Powers of two below the longest, the larger ones."""
    longest = lengths.percentile(100)
    if not math.isfinite(longest):
        longest = 2 * lengths.percentile(99) if math.isfinite(lengths.percentile(99)) else 65_536.0
    powers = [2**power for power in range(8, 24) if SUGGESTED_LEAST <= 2**power < longest]
    return tuple(powers[-SUGGESTED_MAX:])


def _notes(tally: Tally) -> Iterable[str]:
    left_out = tally.outcomes.total() - tally.whole
    if left_out:
        yield f"Lengths and waste are of {tally.whole:,} requests that ran to their end; {left_out:,} did not."
    if tally.skipped:
        yield f"{tally.skipped:,} lines could not be read and were skipped."
    if tally.failed:
        yield f"{tally.failed:,} requests of the trace had no answer and were left out."
    if tally.beyond:
        yield "There were more requests than are read at once; the newest were left out. Name one file of the log."
