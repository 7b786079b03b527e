"""Engines as the console shows them. Pure: from the pool's statuses and the ledger's view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvgate.console.snapshot import ENGINES_SHOWN_MAX, EngineShown, Part
from kvgate_policies.forecast_fit import Z_DEFAULT
from kvgate_policies.placement import blocks_counted
from kvgate_policies.types import ZERO_COST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.telemetry.scrape import EngineGauges, EngineStatus
    from kvgate_policies.types import EngineUse, KVCost, LedgerView

WHY_DRAINING = "an operator told kvgate to send it no new work: a drain, or a policy without it"

FOREIGN_FACTOR, FOREIGN_SEQS = 1.25, 8
"""How many more sequences than are reserved show that an engine has others, too."""


def engines_shown(statuses: Sequence[EngineStatus], view: LedgerView) -> tuple[tuple[EngineShown, ...], int]:
    """The engines in their order, and how many are left out; of too many, those that take no work come first."""
    uses = {use.limits.engine_id: use for use in view.engines}
    shown = [_engine(status, uses.get(status.id)) for status in statuses]
    if len(shown) <= ENGINES_SHOWN_MAX:
        return tuple(shown), 0
    shown.sort(key=lambda engine: engine.accepting)
    return tuple(shown[:ENGINES_SHOWN_MAX]), len(shown) - ENGINES_SHOWN_MAX


def _engine(status: EngineStatus, use: EngineUse | None) -> EngineShown:
    limits = status.limits if use is None else use.limits
    gauges, reserved = status.gauges, ZERO_COST if use is None else use.reserved
    blocks = 0 if limits is None else limits.blocks
    kv_usage = None if gauges is None else gauges.kv_usage
    state = str(status.state)
    is_draining = state == "draining"
    is_empty = not (use is not None and use.reservations) and not (gauges is not None and _has_any(gauges))
    return EngineShown(
        id=status.id,
        url=status.url,
        state="drained" if is_draining and is_empty else state,
        why=WHY_DRAINING if is_draining else str(getattr(status, "why", "")),
        accepting=use is not None and use.limits.accepting,
        blocks=blocks,
        blocks_open=0 if limits is None else limits.blocks_open,
        trust=_rounded(status.trust, 2),
        parts=_parts(reserved),
        blocks_in_use=None if kv_usage is None else round(kv_usage * blocks),
        seqs=0 if limits is None else limits.seqs,
        seqs_reserved=reserved.seqs,
        prefill_tokens=0 if limits is None else limits.prefill_tokens,
        prefill_tokens_reserved=reserved.prefill_tokens,
        reservations=0 if use is None else use.reservations,
        running=None if gauges is None else _whole(gauges.running),
        waiting=None if gauges is None else _whole(gauges.waiting),
        foreign=gauges is not None and _has_foreign(gauges, reserved.seqs),
        preemptions=None if gauges is None else _whole(gauges.preemptions),
        kept_for=None if use is None else use.pinned_by,
        probe_age_s=_rounded(getattr(status, "probe_age_s", None), 1),
        blocks_share=None if use is None or use.share is None else use.share.blocks,
    )


def _parts(reserved: KVCost) -> tuple[Part, ...]:
    """Of forecasts, the largest mean, and what is set aside for longer answers, where both together are largest, but
    no more than all peaks; otherwise the sum of the peaks, which is surely enough.
    """
    if reserved.expected is None:
        return (Part("guaranteed", reserved.blocks),)
    expected = reserved.use_blocks
    taken = math.ceil(blocks_counted(reserved, ZERO_COST, Z_DEFAULT))
    return Part("expected", expected), Part("at_risk", max(taken - expected, 0))


def _has_foreign(gauges: EngineGauges, seqs_reserved: int) -> bool:
    """Something waits inside, and there is more in it than ours. A scrape is a moment older than the ledger, so it
    takes more than the few that may have ended since.
    """
    waiting, running = gauges.waiting or 0, gauges.running or 0
    return waiting > 0 and waiting + running > FOREIGN_FACTOR * seqs_reserved + FOREIGN_SEQS


def _has_any(gauges: EngineGauges) -> bool:
    """By its own word, and whoever sent it."""
    return bool(gauges.running or gauges.waiting)


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def _rounded(number: float | None, digits: int) -> float | None:
    return None if number is None else round(number, digits)
