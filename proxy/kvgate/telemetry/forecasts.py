"""What forecasts report of themselves: how right they were, and what was done when they were not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate_policies.forecast_request import QUANTILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import Counter, Gauge

    from kvgate.telemetry.labels import Children

YES, NO = "yes", "no"
LONGER, RELEARNED = "longer", "relearned"
POOL_LABEL = "all"
"""For a change that concerns all tenants of the pool."""


class ForecastCounters:
    """Counts what it is told; a call costs a microsecond and never fails."""

    def __init__(
        self,
        *,
        calibration: Children[Counter],
        changes: Children[Counter],
        revocations: Children[Counter],
        guarded: Gauge,
        tenant: Callable[[str], str],
    ) -> None:
        self._calibration = calibration
        self._changes = changes
        self._revocations = revocations
        self._guarded = guarded
        self._tenant = tenant
        guarded.set(0)
        revocations()  # exported as 0 from the start, as the next ones
        for change in (LONGER, RELEARNED):
            changes(POOL_LABEL, change)
        for quantile in QUANTILES:
            for exceeded in (YES, NO):
                calibration(f"{quantile:g}", exceeded)

    def calibrated(self, quantile: float, *, exceeded: bool) -> None:
        """An answer is over, and was longer than the quantile that was forecast at its grant, or not."""
        self._calibration(f"{quantile:g}", YES if exceeded else NO).inc()

    def lengths_changed(self, tenant: str, change: str) -> None:
        """`longer`: a tenant's answers outlive their forecast; `relearned`: they are forecast again.

        An empty name stands for all tenants.
        """
        self._changes(self._tenant(tenant) if tenant else POOL_LABEL, change).inc()

    def guarded(self, tenants: int) -> None:
        """So many are guarded at present."""
        self._guarded.set(tenants)

    def revoked(self) -> None:
        """A running request was sent back to the queue."""
        self._revocations().inc()
