"""What engines say of themselves, as a brake: preemptions, and blocks that the ledger can't account for.

It is the feedback that serves over HTTP (`kvgate.engines.feedback`), with readings taken as often. It matters where
forecasts are: a guaranteed reservation never lets an engine preempt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.engines.feedback import Feedback
from kvgate.engines.metrics import Gauges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.ledger.core import LedgerCore
    from kvgate.replay.engine_base import Seen
    from kvgate_policies.types import EngineLimits


class Brake:
    """Of all engines of a pool."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core
        self._feedback: dict[str, Feedback] = {}

    def look(self, seen: Mapping[str, Seen], now_s: float) -> None:
        """Take in a reading of each, and tell the ledger where it changes what may be filled."""
        for use in self._core.view(now_s).engines:
            limits = use.limits
            feedback = self._feedback.setdefault(limits.engine_id, Feedback())
            feedback.read(_gauges(seen[limits.engine_id], limits), use, now_s)
            usable = feedback.usable(limits.blocks, limits.blocks_usable, now_s)
            if usable != limits.blocks_usable:
                self._core.observe(replace(limits, blocks_usable=usable))


def _gauges(seen: Seen, limits: EngineLimits) -> Gauges:
    return Gauges(
        kv_usage=seen.used_blocks / limits.blocks,
        running=seen.running,
        waiting=seen.waiting,
        preemptions=seen.preemptions,
    )
