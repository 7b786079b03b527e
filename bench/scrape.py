"""What a scrape of `/metrics` costs: 500 tenants, 100 engines, all endpoints and outcomes in use.

    .venv/bin/python bench/scrape.py

Processor time of this process, not wall time, so that a busy machine does not count. Two parts: taking the
snapshots, which happens on the event loop, and making the text, which happens in a thread. The last row is the
page of four workers: their pages read, merged and printed, by a process that serves no clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from kvgate.telemetry import RequestRecord, Telemetry
from kvgate.telemetry.merge import MergedPages
from kvgate_policies.types import (
    Endpoint,
    EngineLimits,
    EngineShape,
    EngineUse,
    KVCost,
    LedgerView,
    Outcome,
    TenantRules,
    TenantUse,
)

TENANTS = 500
ENGINES = 100
WORKERS = 4
ROUNDS = 5
BOUND_MS = 100.0
"""Of processor time for one scrape; Prometheus comes every 15 s."""
SHAPE = EngineShape(16, 8192)


@dataclass(frozen=True, slots=True)
class Gauges:
    kv_usage: float | None = 0.5
    running: float | None = 12.0
    waiting: float | None = 0.0
    preemptions: float | None = 3.0


@dataclass(frozen=True, slots=True)
class Status:
    id: str
    url: str
    limits: EngineLimits | None
    state: str = "up"
    gauges: Gauges | None = Gauges()
    gauges_age_s: float | None = 0.5
    elected: bool = True
    current: bool = True
    trust: float | None = 0.93
    bias: float | None = 1.0
    foreign_blocks: float | None = 0.0
    drift_blocks: float | None = -5.0
    stalls: int = 0


def a_busy_telemetry(tenants: int = TENANTS, engines: int = ENGINES) -> Telemetry:
    """As it is after days: every tenant was served, refused and queued at every endpoint."""
    telemetry = Telemetry("llama")
    limits = [EngineLimits(f"http://engine-{n}:8000", SHAPE, 6143, 256, 8192) for n in range(engines)]
    view = LedgerView(
        tuple(EngineUse(one, KVCost(4000, 60, 512), reservations=60) for one in limits),
        queued=tenants,
        oldest_wait_s=3.0,
        mode="redis",
        tenants=tuple(
            TenantUse(f"tenant-{n}", TenantRules(weight=2.0), 40, 10, 600, 3, 1, 0.5, 1000.0 + n)
            for n in range(tenants)
        ),
    )
    statuses = [Status(one.engine_id, one.engine_id, one) for one in limits]
    telemetry.watch(lambda: view, lambda: statuses)
    for n in range(tenants):
        _traffic_of(telemetry, f"tenant-{n}")
    telemetry.observe_gaps([0.01, 0.02, 0.5])
    return telemetry


def _traffic_of(telemetry: Telemetry, tenant: str) -> None:
    ends = (
        (Outcome.SERVED, None),
        (Outcome.CLIENT_GONE, None),
        (Outcome.EVICTED_QUEUE_TIMEOUT, "queue_timeout"),
        (Outcome.REJECTED_QUEUE_FULL, "queue_full"),
    )
    for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.POOLING):
        for outcome, reason in ends:
            telemetry.arrived(endpoint, tenant)
            telemetry.granted(tenant, 0.2, f"{hash(tenant) & (1 << 128) - 1:032x}")
            telemetry.ended(_record(tenant, endpoint, outcome, reason))
    telemetry.rewritten(tenant)
    telemetry.rate_refused(tenant, "tokens_per_minute")


def _record(tenant: str, endpoint: Endpoint, outcome: Outcome, reason: str | None) -> RequestRecord:
    return RequestRecord(
        "r",
        tenant=tenant,
        endpoint=endpoint,
        outcome=outcome,
        reason=reason,
        engine_id="http://engine-1:8000",
        prompt_tokens_counted=110,
        prompt_tokens_real=100,
        completion_tokens=50,
        queue_s=0.2,
        engine_ttft_s=0.1,
        ttft_s=0.3,
        total_s=2.0,
    )


def cpu_ms(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The least of some rounds: the others were disturbed."""
    times: list[float] = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times) * 1000


def series_of(page: bytes) -> int:
    return sum(bool(line) and not line.startswith(b"#") for line in page.splitlines())


def main() -> None:
    telemetry = a_busy_telemetry()
    page = generate_latest(telemetry.registry)
    print(f"{TENANTS} tenants, {ENGINES} engines: {series_of(page):,} series, {len(page) / 1024:,.0f} KiB")
    parts = {
        "snapshots, on the event loop": telemetry.refresh,
        "text, in a thread": lambda: generate_latest(telemetry.registry),
        "OpenMetrics with exemplars, in a thread": lambda: generate_openmetrics(telemetry.registry),
    }
    for name, work in parts.items():
        print(f"{name:45} {cpu_ms(work):8.1f} ms")
    rich = generate_openmetrics(telemetry.registry)
    for name, text, openmetrics in (("text", page, False), ("OpenMetrics", rich, True)):
        row = f"the page of {WORKERS} workers, {name}, in the front"
        print(f"{row:45} {cpu_ms(lambda t=text, o=openmetrics: merged(t, openmetrics=o)):8.1f} ms")
    whole = cpu_ms(lambda: (telemetry.refresh(), generate_latest(telemetry.registry)))
    print(f"a scrape: {whole:.1f} ms, bound {BOUND_MS:g} ms")


def merged(page: bytes, *, openmetrics: bool = False) -> bytes:
    """As the front of a group of workers does it."""
    names = tuple(f"worker {n + 1}" for n in range(WORKERS))
    pages = MergedPages(names)
    for name in names:
        pages.take(name, page.decode())
    return pages.render(openmetrics=openmetrics)


if __name__ == "__main__":
    main()
