"""One snapshot of those of several processes that share a pool. Pure.

The ledger and the policy are the same for all, so the first one's are shown; what a process keeps for itself, its
last rejections, is put together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvgate.console.rejections import KINDS_MAX
from kvgate.console.snapshot import RejectionShown, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate.console.rejections import Key


def merged(told: Mapping[str, Snapshot | None]) -> Snapshot | None:
    """By name of the process; None stands for one that does not answer. None when none does."""
    answers = [one for one in told.values() if one is not None]
    if not answers:
        return None
    return msgspec.structs.replace(
        answers[0],
        ready=all(one.ready for one in answers),
        draining=any(one.draining for one in answers),
        rejections=_together(rejection for one in answers for rejection in one.rejections),
        silent=tuple(name for name, one in told.items() if one is None),
    )


def _together(rejections: Iterable[RejectionShown]) -> tuple[RejectionShown, ...]:
    """Equal kinds added up, the last one first."""
    kinds: dict[Key, RejectionShown] = {}
    for one in sorted(rejections, key=lambda one: one.age_s):
        key = (one.pool, one.tenant, one.reason, one.status)
        last = kinds.get(key)
        kinds[key] = one if last is None else msgspec.structs.replace(last, count=last.count + one.count)
    return tuple(kinds.values())[:KINDS_MAX]
