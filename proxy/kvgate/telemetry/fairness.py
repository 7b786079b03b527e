"""How evenly service went to those that waited: Jain's index over a sliding window.

Shares of tenants that do not wait say nothing about fairness, for they got all they asked for. So the index is
taken over the tenants that waited at both ends of the window, of what they were served in between.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvgate_policies.types import TenantUse

WINDOW_S = 60.0
"""Long beside one request, short beside a change of load."""
SNAPSHOTS_MAX = 64
"""Kept in the window; scrapes that come more often are left out."""


def jain(shares: Iterable[float]) -> float:
    """(Σx)² / (n·Σx²): 1 when all shares are equal, 1/n when one has everything; 1 for none and for all zero.

    Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
    """
    values = [max(share, 0.0) for share in shares]  # a correction may leave a share below zero for a moment
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


class FairnessWindow:
    """Remembers the service of those that waited, one snapshot after the other; reads no clock."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, dict[str, float]]] = deque(maxlen=SNAPSHOTS_MAX)

    def index(self, now_s: float, tenants: Iterable[TenantUse]) -> float:
        """Take a snapshot and give the index since the oldest one in the window; 1 while there is none."""
        waiting = {t.name: t.service / t.rules.weight for t in tenants if t.queued and t.rules.weight > 0}
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - self._window_s:
            self._seen.popleft()
        before = self._seen[0][1] if self._seen else {}
        if not self._seen or now_s - self._seen[-1][0] >= self._window_s / SNAPSHOTS_MAX:
            self._seen.append((now_s, waiting))
        return jain(waiting[name] - before[name] for name in waiting.keys() & before.keys())
