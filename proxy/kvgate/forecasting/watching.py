"""Whom the forecasts report to: the metrics, or nobody."""

from __future__ import annotations

from typing import Protocol


class ForecastWatch(Protocol):
    """Told of what happens; each call is cheap and never fails."""

    def calibrated(self, quantile: float, *, exceeded: bool) -> None:
        """An answer is over, and was longer than the quantile that was forecast at its grant, or not."""
        ...

    def lengths_changed(self, tenant: str, change: str) -> None:
        """`longer`: a tenant's answers outlive their forecast; `relearned`: they are forecast again."""
        ...

    def guarded(self, tenants: int) -> None:
        """So many tenants' requests reserve their peak at present, although their policy says forecast."""
        ...

    def revoked(self) -> None:
        """A running request was sent back to the queue."""
        ...


class NoForecastWatch:
    """Tells nobody."""

    def calibrated(self, quantile: float, *, exceeded: bool) -> None: ...

    def lengths_changed(self, tenant: str, change: str) -> None: ...

    def guarded(self, tenants: int) -> None: ...

    def revoked(self) -> None: ...
