"""One metrics page of several pools in one process.

Each pool has instruments of its own, with the same names and another value of the label `pool`. Printed one after
the other they would say each name twice, which no scraper takes; so families of one name become one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import CollectorRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvgate.telemetry.metrics import Telemetry


class PoolsTelemetry:
    """What the metrics page is made of; `refresh` on the event loop, then render `registry` anywhere."""

    def __init__(self, pools: Sequence[Telemetry]) -> None:
        self._pools = pools
        self.registry: CollectorRegistry = _Joined([pool.registry for pool in pools])

    def refresh(self) -> None:
        for pool in self._pools:
            pool.refresh()


class _Joined(CollectorRegistry):
    """Reads other registries; nothing is registered here."""

    def __init__(self, parts: Sequence[CollectorRegistry]) -> None:
        super().__init__()
        self._parts = parts

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for family in (family for part in self._parts for family in part.collect()):
            known = families.setdefault(family.name, Family(family.name, family.documentation, family.type))
            known.samples += family.samples
        yield from families.values()
