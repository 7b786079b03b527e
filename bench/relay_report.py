"""Medians over the repeats, and the tables."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

from relay_load import Seen


@dataclass(frozen=True, slots=True)
class Measured:
    """One candidate in one test, once."""

    test: str
    candidate: str
    count: int
    """Requests or events, whichever the test is about."""
    per_s: float
    cpu_us: float
    """Processor time of the proxy for each of them."""
    latency_p50_us: float
    latency_p99_us: float
    ttft_p50_us: float
    ttft_p99_us: float
    events_per_read: float
    errors: int

    @classmethod
    def of(cls, test: str, candidate: str, count: int, cpu_s: float, passed_s: float, seen: Seen) -> Measured:
        return cls(
            test=test,
            candidate=candidate,
            count=count,
            per_s=count / passed_s,
            cpu_us=cpu_s / max(count, 1) * 1e6,
            latency_p50_us=quantile(seen.latencies_us, 0.5),
            latency_p99_us=quantile(seen.latencies_us, 0.99),
            ttft_p50_us=quantile(seen.ttfts_us, 0.5),
            ttft_p99_us=quantile(seen.ttfts_us, 0.99),
            events_per_read=seen.events / max(seen.reads, 1),
            errors=seen.errors,
        )


def quantile(values: list[float], share: float) -> float:
    """NaN of nothing."""
    if not values:
        return float("nan")
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def medians(measured: list[Measured]) -> dict[tuple[str, str], Measured]:
    """By test and candidate; errors are added up."""
    grouped: dict[tuple[str, str], list[Measured]] = {}
    for one in measured:
        grouped.setdefault((one.test, one.candidate), []).append(one)
    return {key: _median(key, group) for key, group in grouped.items()}


def _median(key: tuple[str, str], group: list[Measured]) -> Measured:
    columns = {
        name: statistics.median(getattr(one, name) for one in group)
        for name in Measured.__slots__
        if name not in {"test", "candidate", "errors"}
    }
    return Measured(*key, **columns, errors=sum(one.errors for one in group))  # type: ignore[arg-type]


def summary(measured: list[Measured]) -> list[dict[str, object]]:
    """The medians as rows, each with its processor time relative to the bare pass-through's; None for unknown."""
    middle = medians(measured)
    rows = (
        asdict(row) | {"cpu_to_bare": _ratio(row, middle.get((row.test, "bare")))} for row in middle.values()
    )
    return [{name: None if value != value else value for name, value in row.items()} for row in rows]  # noqa: PLR0124


def _ratio(row: Measured, bare: Measured | None) -> float | None:
    return row.cpu_us / bare.cpu_us if bare is not None and bare.cpu_us else None


def print_tests(measured: list[Measured], titles: dict[str, tuple[str, str]]) -> None:
    middle = medians(measured)
    for test, (title, unit) in titles.items():
        rows = [row for (name, _), row in middle.items() if name == test]
        if not rows:
            continue
        print(f"\n{test}: {title}; per {unit}")
        print(
            f"  {'':8} {'count/s':>9} {'CPU µs':>8} {'to bare':>8} {'lat p50':>9} {'p99 µs':>9} "
            f"{'ttft p50':>9} {'added':>8} {'p99 µs':>9} {'ev/read':>8} {'errors':>6}"
        )
        direct = middle.get((test, "direct"))
        for row in rows:
            _print_row(row, middle.get((test, "bare")), direct)


def _print_row(row: Measured, bare: Measured | None, direct: Measured | None) -> None:
    ratio = _ratio(row, bare)
    shown = f"{ratio:.2f}" if ratio else "-"
    added = row.ttft_p50_us - direct.ttft_p50_us if direct is not None else float("nan")
    print(
        f"  {row.candidate:8} {row.per_s:9.0f} {row.cpu_us:8.1f} {shown:>8} {row.latency_p50_us:9.0f} "
        f"{row.latency_p99_us:9.0f} {row.ttft_p50_us:9.0f} {added:8.0f} {row.ttft_p99_us:9.0f} "
        f"{row.events_per_read:8.2f} {row.errors:6}"
    )


def print_memory(sizes: dict[str, tuple[float, float]]) -> None:
    print("\nmemory (PSS): after some use, and for each idle stream")
    for name, (base_mb, stream_kb) in sizes.items():
        print(f"  {name:8} {base_mb:7.1f} MB {stream_kb:7.1f} KB")
