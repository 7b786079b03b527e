"""What a shared ledger reports of itself: how its calls go, and what happened to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.telemetry.labels import LabelCap

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram

    from kvgate.telemetry.labels import Children

NAMES_MAX = 32
"""Calls and causes are closed sets of about ten; the cap is a fuse."""
MODE = "mode_"
ALONE = "alone_"


class LedgerCounters:
    """Counts what it is told; a call costs a few microseconds and never fails."""

    def __init__(
        self,
        *,
        calls: Children[Histogram],
        failures: Children[Counter],
        epochs: Children[Counter],
        leases: Children[Counter],
        switches: Children[Counter],
        alone: Children[Counter],
        repairs: Children[Counter],
    ) -> None:
        self._calls = calls
        self._failures = failures
        self._switches = switches
        self._alone = alone
        self._repairs = repairs
        self._single = {"epoch_changed": epochs, "lease_lost": leases}
        self._name = LabelCap(NAMES_MAX)
        for counters in self._single.values():
            counters()  # exported as 0 from the start

    def called(self, verb: str, took_s: float, *, ok: bool) -> None:
        """A call was answered after `took_s`, or was not (`ok` false)."""
        name = self._name(verb)
        self._calls(name).observe(took_s)
        if not ok:
            self._failures(name).inc()

    def happened(self, event: str) -> None:
        """`epoch_changed`, `lease_lost`, `mode_<mode>`, `alone_<mode>`; anything else is a repair of that name."""
        counters = self._single.get(event)
        if counters is not None:
            counters().inc()
        elif event.startswith(MODE):
            self._switches(self._name(event.removeprefix(MODE))).inc()
        elif event.startswith(ALONE):
            self._alone(self._name(event.removeprefix(ALONE))).inc()
        else:
            self._repairs(self._name(event)).inc()
