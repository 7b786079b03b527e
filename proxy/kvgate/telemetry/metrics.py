"""The counters and histograms of the request line, and the page they are read from.

Promises: a call costs a few microseconds (children are cached), never waits, and never fails because of a
label; the number of series is bounded whatever clients send. What the ledger and the engines know is not
counted here a second time: it is read when scraped (`scrape.PoolCollector`).

The event loop and the thread that renders the page are different threads: call `refresh` on the loop, then
render `registry` wherever it doesn't hurt.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from kvgate import __version__
from kvgate.telemetry import catalogue
from kvgate.telemetry.forecasts import ForecastCounters
from kvgate.telemetry.gaps import BulkHistogram
from kvgate.telemetry.labels import Children, LabelCap
from kvgate.telemetry.ledger import LedgerCounters
from kvgate.telemetry.scrape import EngineStatus, PoolCollector
from kvgate.telemetry.traces import SpanCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvgate.telemetry.catalogue import Metric
    from kvgate.telemetry.record import RequestRecord
    from kvgate_policies.types import Endpoint, LedgerView

TENANTS_MAX = 50
"""Tenants with their own series; a histogram by tenant has 20 series for each of them."""
REASONS_MAX = 64
"""Reasons and causes are closed sets of less than twenty; the cap is a fuse."""
NO_ENDPOINT = "none"


class Telemetry:
    """The metrics of one pool."""

    def __init__(
        self, pool: str, registry: CollectorRegistry | None = None, *, tenants_max: int = TENANTS_MAX
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter that nobody reads
        self.pool = pool
        self.registry = registry if registry is not None else _process_registry()
        self._tenant = LabelCap(tenants_max)
        self._reason = LabelCap(REASONS_MAX)
        self._gaps = BulkHistogram(catalogue.GAP_BUCKETS_S)
        self._collector: PoolCollector | None = None
        self._make_instruments()
        self.ledger = LedgerCounters(
            calls=self._histograms(catalogue.LEDGER_CALLS),
            failures=self._counters(catalogue.LEDGER_CALL_FAILURES),
            epochs=self._counters(catalogue.LEDGER_EPOCHS),
            leases=self._counters(catalogue.LEDGER_LEASES_LOST),
            switches=self._counters(catalogue.LEDGER_MODE_SWITCHES),
            alone=self._counters(catalogue.LEDGER_GRANTS_ALONE),
            repairs=self._counters(catalogue.LEDGER_REPAIRS),
        )
        """For a shared ledger to report to."""
        self.forecasts = ForecastCounters(
            calibration=self._counters(catalogue.FORECAST_CALIBRATION),
            changes=self._counters(catalogue.FORECAST_CHANGES),
            revocations=self._counters(catalogue.FORECAST_REVOCATIONS),
            guarded=self._gauge(catalogue.FORECAST_GUARDED).labels(pool),
            tenant=self._tenant,
        )
        """For forecasts to report to."""
        self._gauge(catalogue.BUILD_INFO).labels(pool, __version__).set(1)

    def watch(
        self,
        ledger_view: Callable[[], LedgerView],
        engine_statuses: Callable[[], Sequence[EngineStatus]],
        shared_blocks: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """Export what the ledger and the engines say, too, and of each engine the blocks that requests share there.
        Once per process.
        """
        self._collector = PoolCollector(
            self.pool,
            ledger_view,
            engine_statuses,
            self._gaps,
            self._tenant,
            time.monotonic,
            shared_blocks,
        )
        self.registry.register(self._collector)

    def refresh(self) -> None:
        """Take the snapshots that the next rendering shows. On the event loop, whose objects they are."""
        if self._collector is not None:
            self._collector.refresh()

    def arrived(self, endpoint: Endpoint, tenant: str) -> None:
        self._arrived(endpoint.value, self._tenant(tenant)).inc()

    def granted(self, tenant: str, wait_s: float, trace_id: str | None = None) -> None:
        """`trace_id` of a sampled trace becomes an exemplar."""
        tenant = self._tenant(tenant)
        self._grants(tenant).inc()
        self._queue_wait(tenant).observe(wait_s, _exemplar(trace_id))

    def rewritten(self, tenant: str) -> None:
        """A request's output limit was set or lowered."""
        self._rewrites(self._tenant(tenant)).inc()

    def rate_refused(self, tenant: str, budget: str) -> None:
        """A budget of the tenant did not cover a request."""
        self._rate_refusals(self._tenant(tenant), self._reason(budget)).inc()

    def observed(self, tenant: str, would: str) -> None:
        """A request went on unhindered; `would` is what enforcing would have done to it."""
        self._observed(self._tenant(tenant), self._reason(would)).inc()

    def requeued(self, cause: str) -> None:
        """A granted request goes back to the queue; `cause` is what it saw of the engine."""
        self._requeues(self._reason(cause)).inc()

    def policy_read(self, *, taken: bool) -> None:
        """The policy file was read again, and is in force now, or was refused."""
        self._policy_reloads("taken" if taken else "refused").inc()
        self._policy_refused.set(0.0 if taken else 1.0)

    def request_log_dropped(self) -> None:
        """A request that ended is missing in the request log."""
        self._request_log_dropped().inc()

    def trace_spans(self, result: SpanCount, spans: int) -> None:
        """What became of spans. From any thread."""
        self._trace_spans(result.value).inc(spans)

    def observe_gaps(self, gaps_s: Iterable[float]) -> None:
        """Times between the reads of one stream, many at once: at its end, or every so often."""
        self._gaps.observe(gaps_s)

    def ended(self, record: RequestRecord) -> None:
        """Count a request that is over; exactly once each.

        Raises ValueError for a record without an outcome: such a request is not over.
        """
        if record.outcome is None:
            raise ValueError(f"request {record.request_id} has no outcome")
        tenant = self._tenant(record.tenant)
        endpoint = record.endpoint.value if record.endpoint else NO_ENDPOINT
        self._requests(tenant, endpoint, record.outcome.value).inc()
        if record.reason is not None:
            self._rejections(tenant, self._reason(record.reason)).inc()
        if record.resends:
            self._resends().inc(record.resends)
        self._count_tokens(tenant, record)
        self._observe_times(record, record.outcome.value)
        self._observe_estimate(record)

    def _count_tokens(self, tenant: str, record: RequestRecord) -> None:
        if record.engine_id is None:  # never ran: it cost no tokens
            return
        prompt = record.prompt_tokens_real or record.prompt_tokens_counted
        if prompt:
            self._prompt_tokens(tenant).inc(prompt)
        if record.completion_tokens:
            self._completion_tokens(tenant).inc(record.completion_tokens)

    def _observe_times(self, record: RequestRecord, outcome: str) -> None:
        exemplar = _exemplar(record.trace_id)
        if record.total_s is not None:
            self._duration(outcome).observe(record.total_s, exemplar)
        if record.ttft_s is None:
            return
        parts = (("queue", record.queue_s), ("engine", record.engine_ttft_s), ("total", record.ttft_s))
        for part, seconds in parts:
            if seconds is not None:
                self._ttft(part).observe(seconds, exemplar)

    def _observe_estimate(self, record: RequestRecord) -> None:
        real, counted = record.prompt_tokens_real, record.prompt_tokens_counted
        if real and counted is not None and not record.prompt_tokens_exact:
            self._estimate().observe(counted / real)

    def _make_instruments(self) -> None:
        self._arrived = self._counters(catalogue.REQUESTS_ARRIVED)
        self._grants = self._counters(catalogue.GRANTS)
        self._requests = self._counters(catalogue.REQUESTS)
        self._rejections = self._counters(catalogue.REJECTIONS)
        self._rewrites = self._counters(catalogue.REWRITES)
        self._rate_refusals = self._counters(catalogue.RATE_REFUSALS)
        self._observed = self._counters(catalogue.OBSERVED)
        self._requeues = self._counters(catalogue.REQUEUES)
        self._resends = self._counters(catalogue.RESENDS)
        self._prompt_tokens = self._counters(catalogue.PROMPT_TOKENS)
        self._completion_tokens = self._counters(catalogue.COMPLETION_TOKENS)
        self._request_log_dropped = self._counters(catalogue.REQUEST_LOG_DROPPED)
        self._trace_spans = self._counters(catalogue.TRACE_SPANS)
        self._queue_wait = self._histograms(catalogue.QUEUE_WAIT)
        self._duration = self._histograms(catalogue.DURATION)
        self._ttft = self._histograms(catalogue.TTFT)
        self._estimate = self._histograms(catalogue.ESTIMATE)
        self._policy_reloads = self._counters(catalogue.POLICY_RELOADS)
        self._policy_refused = self._gauge(catalogue.POLICY_REFUSED).labels(self.pool)
        for result in ("taken", "refused"):
            self._policy_reloads(result)
        for result in SpanCount:
            self._trace_spans(result.value)
        self._request_log_dropped()
        self._resends()  # without further labels: exported as 0 from the start

    def _counters(self, metric: Metric) -> Children[Counter]:
        counter = Counter(metric.name, metric.meaning, metric.label_names, registry=self.registry)
        return Children(lambda values: counter.labels(self.pool, *values))

    def _histograms(self, metric: Metric) -> Children[Histogram]:
        histogram = Histogram(
            metric.name, metric.meaning, metric.label_names, buckets=metric.buckets, registry=self.registry
        )
        return Children(lambda values: histogram.labels(self.pool, *values))

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.meaning, metric.label_names, registry=self.registry)


def _exemplar(trace_id: str | None) -> dict[str, str] | None:
    """What leads from a bucket to a trace; in OpenMetrics only."""
    return None if trace_id is None else {"trace_id": trace_id}


def _process_registry() -> CollectorRegistry:
    """A registry of our own, with the process's CPU, memory and descriptors."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry
