"""One line for each pool: its ledger, its engines, its admission, its metrics. What is scarce is shared by all:
the upstream connections, the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from kvgate.admission.line import Admission
from kvgate.admission.passing import Passing
from kvgate.admission.pricing import Pricer
from kvgate.api.pools import PoolLine, Pools
from kvgate.engines.everywhere import Everywhere
from kvgate.engines.pool import EnginePool
from kvgate.forecasting import Forecaster
from kvgate.forecasting.keeping import Keeping, Nowhere
from kvgate.forecasting.rates import Rates
from kvgate.forecasting.shared import Shared
from kvgate.forecasting.stored import Stored
from kvgate.ledger.memory import MemoryLedger
from kvgate.ledger.redis import RedisLedger
from kvgate.telemetry.metrics import Telemetry
from kvgate.telemetry.pools import PoolsTelemetry
from kvgate.tokens import counter_for

if TYPE_CHECKING:
    import httpx

    from kvgate.clock import Clock
    from kvgate.config.settings import PoolSpec, Settings


NO_POOL = "none"
"""The label of what belongs to no pool."""


@dataclass(frozen=True, slots=True)
class House:
    """Everything there is one of for each pool."""

    pools: Pools
    telemetry: PoolsTelemetry
    """All pools on one page."""
    nowhere: Telemetry
    """Counts requests that end before their pool is known; with one pool, as that pool's."""

    def telemetry_of(self, pool: str | None) -> Telemetry:
        """That of a pool; of none, or one that is not known, as for requests that ended before theirs was."""
        found = (line.telemetry for line in self.pools.lines if line.name == pool)
        return next(found, self.nowhere)

    @property
    def shared_ledgers(self) -> tuple[RedisLedger, ...]:
        """Those that have a life of their own, to be entered before anyone is served."""
        ledgers = (line.ledger for line in self.pools.lines)
        return tuple(ledger for ledger in ledgers if isinstance(ledger, RedisLedger))


def build(settings: Settings, clock: Clock, upstream: httpx.AsyncBaseTransport) -> House:
    """Raises ConfigError for a ledger's URL that can't be used."""
    specs = settings.pool_specs()
    lines = [
        _line(settings, spec, clock, upstream, None if index == 0 else CollectorRegistry())
        for index, spec in enumerate(specs)
    ]
    everywhere = Passing(Everywhere([line.engine_pool for line in lines]), upstream, settings)
    parts = [line.telemetry for line in lines]
    nowhere = parts[0] if len(parts) == 1 else Telemetry(NO_POOL, CollectorRegistry())
    return House(Pools(lines, everywhere), PoolsTelemetry(list(dict.fromkeys([*parts, nowhere]))), nowhere)


def _line(
    whole: Settings,
    spec: PoolSpec,
    clock: Clock,
    upstream: httpx.AsyncBaseTransport,
    registry: CollectorRegistry | None,
) -> PoolLine:
    """`registry` is None for the one pool that tells of the process as well: its memory, its processor time."""
    settings = whole.for_pool(spec)
    telemetry = Telemetry(spec.name, registry)
    ledger = _ledger(settings, clock, telemetry)
    engines = EnginePool(settings, ledger, clock)
    forecaster = Forecaster(
        ledger,
        clock,
        rates=Rates(engines.snapshot),
        watch=telemetry.forecasts,
        keeping=_keeping(settings, clock),
        beat_s=settings.ledger_heartbeat_s,
        told_s=settings.ledger_heartbeat_s if settings.ledger_shared else 0.0,
        waiting=(lambda: ledger.queued) if isinstance(ledger, MemoryLedger) else None,
        prefill_tokens_per_s=settings.prefill_tokens_max,
    )
    token_ids = engines.token_ids if settings.prefix_sharing else None
    admission = Admission(
        engines=engines,
        ledger=ledger,
        pricer=Pricer(counter_for(settings.prompt_tokens, engines.tokenize, token_ids), engines, forecaster),
        upstream=upstream,
        telemetry=telemetry,
        clock=clock,
        settings=settings,
        forecaster=forecaster,
    )
    engines.on_shapes = admission.shapes_changed
    telemetry.watch(ledger.view, engines.snapshot, admission.shared_blocks)
    return PoolLine(
        spec, admission, Passing(engines, upstream, settings), telemetry, engines, ledger, forecaster
    )


def _keeping(settings: Settings, clock: Clock) -> Keeping:
    """Where what is learned of lengths outlives the process."""
    if settings.ledger_shared:
        return Shared(settings.ledger_url, settings.pool, clock)
    return Stored(settings.state_dir, settings.pool) if settings.state_dir is not None else Nowhere()


def _ledger(settings: Settings, clock: Clock, telemetry: Telemetry) -> MemoryLedger | RedisLedger:
    """Raises ConfigError for a URL that can't be used."""
    if not settings.ledger_shared:
        return MemoryLedger(clock, bypass_max=settings.bypass_max)
    return RedisLedger(
        settings.ledger_url,
        pool=settings.pool,
        clock=clock,
        on_failure=settings.ledger_on_failure,
        lease_s=settings.ledger_lease_s,
        heartbeat_s=settings.ledger_heartbeat_s,
        orphan_hold_s=settings.ledger_orphan_hold_s,
        bypass_max=settings.bypass_max,
        watch=telemetry.ledger,
    )
