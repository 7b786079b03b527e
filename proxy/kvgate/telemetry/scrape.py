"""What the ledger and the engines know, exported when scraped.

Nothing is counted twice: these numbers live in the ledger and in the engines' own metrics, and a copy kept in
step by hand would drift. A scrape shows one consistent snapshot of each, taken on the event loop.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from kvgate.telemetry import catalogue
from kvgate.telemetry.fairness import FairnessWindow
from kvgate.telemetry.tenants import Row, tenant_rows
from kvgate_policies.occupancy import SCALE
from kvgate_policies.placement import blocks_at_risk
from kvgate_policies.types import EngineLimits, EngineUse, LedgerView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvgate.telemetry.catalogue import Metric
    from kvgate.telemetry.gaps import BulkHistogram

ENGINE_STATES = ("unknown", "up", "trial", "busy", "draining", "suspended", "stalled", "down", "error")
"""All of them are exported, so that a state that was left reads 0 and not "no data"."""
SHARED_MODES = ("redis", "local", "closed", "open")
"""All of them are exported for a shared ledger, for the same reason."""
WELL_STATES = frozenset({"up", "trial", "busy", "draining"})


class EngineGauges(Protocol):
    """An engine's own numbers, as of the last probe; None where it did not export one."""

    @property
    def kv_usage(self) -> float | None: ...

    @property
    def running(self) -> float | None: ...

    @property
    def waiting(self) -> float | None: ...

    @property
    def preemptions(self) -> float | None: ...


class EngineStatus(Protocol):
    """What is exported of an engine."""

    @property
    def id(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def limits(self) -> EngineLimits | None:
        """None before the first discovery."""
        ...

    @property
    def gauges(self) -> EngineGauges | None:
        """None before the first good probe."""
        ...

    @property
    def gauges_age_s(self) -> float | None:
        """Since they were last new; None before the first."""
        ...

    @property
    def elected(self) -> bool:
        """Whether this process is the one that scrapes it."""
        ...

    @property
    def current(self) -> bool:
        """Whether this process is the one that scrapes it, and the numbers are those of now."""
        ...

    @property
    def trust(self) -> float | None: ...

    @property
    def bias(self) -> float | None: ...

    @property
    def foreign_blocks(self) -> float | None: ...

    @property
    def drift_blocks(self) -> float | None: ...

    @property
    def stalls(self) -> int: ...


class PoolCollector(Collector):
    """Exports the snapshots of the last `refresh`; the first `collect` takes one itself."""

    def __init__(
        self,
        pool: str,
        ledger_view: Callable[[], LedgerView],
        engine_statuses: Callable[[], Sequence[EngineStatus]],
        gaps: BulkHistogram,
        tenant_label: Callable[[str], str],
        now_s: Callable[[], float],
        shared_blocks: Callable[[str], int],
    ) -> None:
        """`tenant_label` gives the name of a tenant or, beyond the cap, `other`; `now_s` is monotonic;
        `shared_blocks` is asked for each engine.
        """
        self._pool = pool
        self._ledger_view = ledger_view
        self._engine_statuses = engine_statuses
        self._gaps = gaps
        self._tenant_label = tenant_label
        self._now_s = now_s
        self._shared_blocks = shared_blocks
        self._fairness = FairnessWindow()
        self._rows: list[tuple[Metric, Iterable[Row]]] = []

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing, so that registering doesn't take a snapshot."""
        return ()

    def refresh(self) -> None:
        view, engines = self._ledger_view(), tuple(self._engine_statuses())
        index = self._fairness.index(self._now_s(), view.tenants)
        self._rows = [
            *_ledger_rows(view),
            (catalogue.SHARED_BLOCKS, _of_each(view, lambda use: self._shared_blocks(use.limits.engine_id))),
            *tenant_rows(view.tenants, self._tenant_label),
            (catalogue.FAIRNESS, [((), index)]),
            *_engine_rows(engines),
        ]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        if not self._rows:
            self.refresh()
        for metric, rows in self._rows:
            yield self._family(metric, rows)
        yield self._gap_family()

    def _family(self, metric: Metric, rows: Iterable[Row]) -> GaugeMetricFamily | CounterMetricFamily:
        kind = CounterMetricFamily if metric.kind is catalogue.Kind.COUNTER else GaugeMetricFamily
        family = kind(metric.name, metric.meaning, labels=metric.label_names)
        for labels, value in rows:
            family.add_metric((self._pool, *labels), value)
        return family

    def _gap_family(self) -> HistogramMetricFamily:
        metric = catalogue.GAPS
        family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.label_names)
        buckets = [
            ("+Inf" if bound == inf else str(float(bound)), count) for bound, count in self._gaps.cumulative()
        ]
        family.add_metric((self._pool,), buckets, self._gaps.sum)
        return family


def _ledger_rows(view: LedgerView) -> Iterator[tuple[Metric, Iterable[Row]]]:
    yield catalogue.QUEUE_DEPTH, [((), view.queued)]
    yield catalogue.QUEUE_OLDEST, [((), view.oldest_wait_s)]
    yield catalogue.BYPASSES, [((), view.totals.get("bypasses", 0))]
    yield catalogue.PINS, [((), view.totals.get("pins", 0))]
    yield catalogue.LEDGER_MODE, [((mode,), float(mode == view.mode)) for mode in _modes(view)]
    yield catalogue.LEDGER_PROCESSES, [((), view.processes)]
    yield catalogue.CAPACITY_BLOCKS, _of_each(view, lambda use: use.limits.blocks)
    yield catalogue.USABLE_BLOCKS, _of_each(view, lambda use: use.limits.blocks_open)
    yield catalogue.RESERVED_BLOCKS, _of_each(view, lambda use: use.reserved.use_blocks)
    yield catalogue.EXPECTED_BLOCKS, _of_each(view, lambda use: use.reserved.occupancy.means[0] / SCALE)
    yield catalogue.AT_RISK_BLOCKS, _of_each(view, blocks_at_risk)
    yield catalogue.PEAK_BLOCKS, _of_each(view, lambda use: use.reserved.blocks)
    yield catalogue.SEQ_SLOTS, _of_each(view, lambda use: use.limits.seqs)
    yield catalogue.RESERVED_SEQS, _of_each(view, lambda use: use.reserved.seqs)
    yield catalogue.RESERVED_PREFILL, _of_each(view, lambda use: use.reserved.prefill_tokens)


def _modes(view: LedgerView) -> Iterable[str]:
    """A ledger in memory has one mode; a shared one shows all it may go over to."""
    return (view.mode,) if view.mode not in SHARED_MODES else SHARED_MODES


def _of_each(view: LedgerView, value: Callable[[EngineUse], float]) -> list[Row]:
    return [((use.limits.engine_id,), value(use)) for use in view.engines]


def _engine_rows(engines: Sequence[EngineStatus]) -> Iterator[tuple[Metric, Iterable[Row]]]:
    yield catalogue.ENGINE_UP, [((e.id,), float(e.state in WELL_STATES)) for e in engines]
    yield catalogue.ENGINE_STATE, [row for engine in engines for row in _state_rows(engine)]
    yield catalogue.ENGINE_RUNNING, _of_gauges(engines, lambda gauges: gauges.running)
    yield catalogue.ENGINE_WAITING, _of_gauges(engines, lambda gauges: gauges.waiting)
    yield catalogue.ENGINE_PREEMPTIONS, _of_gauges(engines, lambda gauges: gauges.preemptions)
    yield catalogue.BLOCKS_IN_USE, [((engine_id,), used) for engine_id, used in _in_use(engines).items()]
    yield catalogue.ENGINE_TRUST, _if_current(engines, lambda engine: engine.trust)
    yield catalogue.ENGINE_BIAS, _if_current(engines, lambda engine: engine.bias)
    yield catalogue.ENGINE_FOREIGN, _if_current(engines, lambda engine: engine.foreign_blocks)
    yield catalogue.DRIFT_BLOCKS, _if_current(engines, lambda engine: engine.drift_blocks)
    yield catalogue.ENGINE_GAUGES_AGE, _known((e.id, e.gauges_age_s) for e in engines if e.elected)
    yield catalogue.ENGINE_STALLS, [((e.id,), e.stalls) for e in engines]


def _state_rows(engine: EngineStatus) -> list[Row]:
    states = dict.fromkeys((*ENGINE_STATES, str(engine.state)))
    return [((engine.id, state), float(state == engine.state)) for state in states]


def _of_gauges(engines: Sequence[EngineStatus], value: Callable[[EngineGauges], float | None]) -> list[Row]:
    return _if_current(engines, lambda engine: None if engine.gauges is None else value(engine.gauges))


def _if_current(engines: Sequence[EngineStatus], value: Callable[[EngineStatus], float | None]) -> list[Row]:
    """From the process that scrapes the engine: the numbers of the others are seconds older."""
    return _known((e.id, value(e)) for e in engines if e.current)


def _known(said: Iterable[tuple[str, float | None]]) -> list[Row]:
    """Engines that did not say have no row: a missing number is not a zero."""
    return [((engine_id,), number) for engine_id, number in said if number is not None]


def _in_use(engines: Sequence[EngineStatus]) -> dict[str, float]:
    """Blocks in use by engine: the engine's usage gauge (a share of its usable blocks) × its capacity."""
    return {
        e.id: e.gauges.kv_usage * e.limits.blocks
        for e in engines
        if e.current and e.gauges is not None and e.limits is not None and e.gauges.kv_usage is not None
    }
