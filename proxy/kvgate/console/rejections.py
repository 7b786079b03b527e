"""The last rejections of this process, for people who ask "why was I refused?".

Kept by pool, tenant and reason, so that a flood of one tenant does not push the others out within a moment: of
each kind the number and the last one. A bounded number of kinds; the one that was quiet for longest goes first.
Neither keys nor prompts can be in it: it is made from a `RequestRecord`, which has none.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.console.snapshot import RejectionShown
from kvgate_policies.types import Outcome

if TYPE_CHECKING:
    from kvgate.clock import Clock
    from kvgate.telemetry.record import RequestRecord

KINDS_MAX = 50
"""Of pool, tenant and reason: a page that is read from top to bottom."""
CHARS_MAX = 300
"""Of a message: it may quote a name that the client made up."""

REJECTIONS = frozenset(one for one in Outcome if one.value.startswith(("rejected_", "evicted_")))
"""kvgate itself turned the request away, at the door or in the queue."""

Key = tuple[str | None, str, str, int | None]
"""Pool, tenant, reason, and the status that was sent."""


@dataclass(slots=True)
class _Kind:
    outcome: str
    told: str
    count: int
    last_s: float


class Rejections:
    def __init__(self, clock: Clock, *, kinds_max: int = KINDS_MAX) -> None:
        self._clock = clock
        self._kinds_max = kinds_max
        self._kinds: OrderedDict[Key, _Kind] = OrderedDict()
        """The last one at the end."""

    def ended(self, record: RequestRecord) -> None:
        """Take note of a request that ended, if it was refused."""
        outcome = record.outcome
        if outcome is None or outcome not in REJECTIONS or _is_nothing_of_ours(record):
            return
        key = (record.pool, record.tenant, record.reason or outcome.value, record.status)
        kind = self._kinds.pop(key, None) or _Kind(outcome.value, "", 0, 0.0)
        kind.told = (record.told or "")[:CHARS_MAX]
        kind.count += 1
        kind.last_s = self._clock.monotonic()
        self._kinds[key] = kind
        if len(self._kinds) > self._kinds_max:
            self._kinds.popitem(last=False)

    def shown(self) -> tuple[RejectionShown, ...]:
        """The last one first."""
        now_s = self._clock.monotonic()
        return tuple(
            RejectionShown(
                pool=pool,
                tenant=tenant,
                reason=reason,
                outcome=kind.outcome,
                status=status,
                told=kind.told,
                count=kind.count,
                age_s=round(now_s - kind.last_s, 1),
            )
            for (pool, tenant, reason, status), kind in reversed(self._kinds.items())
        )


def _is_nothing_of_ours(record: RequestRecord) -> bool:
    """A path that is not served: scanners ask for hundreds of them."""
    return record.endpoint is None and record.outcome is Outcome.REJECTED_BAD_REQUEST
