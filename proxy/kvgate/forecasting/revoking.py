"""Sending running requests back to the queue, where an engine was promised twice and their tenants allow it.

Only requests whose clients have seen nothing; which of them, `kvgate_policies.forecast_revocation` says. Processes that
share a ledger see the same excess: each sends back its part. After that an engine is left alone for as long as it takes
its blocks to be free, or the same excess would be seen again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kvgate_policies.forecast_revocation import Revocable, to_revoke

if TYPE_CHECKING:
    from kvgate.forecasting.running import Running
    from kvgate.forecasting.watching import ForecastWatch
    from kvgate.ledger.base import Ledger
    from kvgate_policies.types import EngineUse, LedgerView

PAUSE_S = 1.0
"""Between two times that requests of one engine are sent back: an aborted one holds its blocks for 0.3 s."""


class Revoking:
    def __init__(self, ledger: Ledger, watch: ForecastWatch) -> None:
        self._ledger = ledger
        self._watch = watch
        self._not_before_s: dict[str, float] = {}
        """By engine; of those with something to send back."""

    def look(self, running: Iterable[Running], now_s: float) -> None:
        """Send back what has to go. Where no tenant allows it, nothing is even looked at."""
        candidates: dict[str, list[Running]] = {}
        for run in running:
            if run.revocable:
                candidates.setdefault(run.engine_id, []).append(run)
        self._not_before_s = {name: at for name, at in self._not_before_s.items() if at > now_s}
        if not candidates:
            return
        view = self._ledger.view()
        for use in view.engines:
            engine_id = use.limits.engine_id
            if engine_id in candidates and engine_id not in self._not_before_s:
                self._send_back(_chosen(use, candidates[engine_id], view), now_s)

    def _send_back(self, chosen: Sequence[Running], now_s: float) -> None:
        for run in chosen:
            run.revoke()
            self._watch.revoked()
            self._not_before_s[run.engine_id] = now_s + PAUSE_S


def _chosen(use: EngineUse, candidates: Sequence[Running], view: LedgerView) -> list[Running]:
    by_id: Mapping[str, Running] = {run.request_id: run for run in candidates}
    ids = to_revoke(
        use.reserved.occupancy,
        # How often each was sent back need not be said: one that was too often is no candidate.
        [Revocable(run.request_id, run.held.cost.occupancy, run.reached) for run in candidates],
        capacity_blocks=use.limits.blocks_open,
    )
    mine = math.ceil(len(ids) / max(view.processes, 1))
    return [by_id[request_id] for request_id in ids[:mine]]
