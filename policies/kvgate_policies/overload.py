"""When a queue refuses, and when a refused client should come back.

1. A tenant whose queue is at its depth limit is refused (`queue_full`). The ledger decides that, in one step with
   the rest.
2. `Retry-After` is the time the queue ahead needs at the present rate of grants, not a constant: a client
   that comes back sooner only meets the same queue, and one sent away for too long leaves the engines idle.
3. It is spread by ±25 %, so that clients refused together do not return together, and lies within 1 and 60
   s: the common SDKs ignore anything longer and fall back to their own half-second backoff.
4. The rate is an exponentially weighted one, so that it follows a change of load within seconds and needs
   two numbers of memory however many grants there were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 60.0
RETRY_JITTER = 0.25
"""Half-width of the spread, as a part of the time itself."""
GRANT_MEMORY_S = 10.0
"""Time constant of the grant rate: long beside the gaps between grants, short beside a change of load."""
GRANT_AGE_S_MIN = 1.0
"""A rate is never taken over less than this: two grants in a millisecond are not two thousand a second."""


@dataclass(frozen=True, slots=True)
class GrantRate:
    """How many grants there are a second, as a value: `observe` one grant gives the next value.

    Until `GRANT_MEMORY_S` has passed it is the plain mean since the first grant: the weights that are
    missing at the start are made up for by `1 - exp(-age / memory)`.
    """

    weight: float = 0.0
    """Grants so far, each faded by its age."""
    since_s: float | None = None
    """When the first grant was seen; None before it."""
    last_s: float = 0.0
    """When `weight` was true."""

    def observe(self, now_s: float) -> GrantRate:
        """The rate after one more grant at `now_s` (monotonic seconds)."""
        if self.since_s is None:
            return GrantRate(weight=1.0, since_s=now_s, last_s=now_s)
        return GrantRate(self._faded(now_s) + 1.0, self.since_s, max(now_s, self.last_s))

    def per_s(self, now_s: float) -> float:
        """Grants per second at `now_s`; 0 before the first one, and fading while there are none."""
        if self.since_s is None:
            return 0.0
        age_s = max(now_s - self.since_s, GRANT_AGE_S_MIN)
        span_s = GRANT_MEMORY_S * -math.expm1(-age_s / GRANT_MEMORY_S)
        return self._faded(now_s) / span_s

    def _faded(self, now_s: float) -> float:
        return self.weight * math.exp(-max(now_s - self.last_s, 0.0) / GRANT_MEMORY_S)


def retry_after_s(ahead: int, grants_per_s: float, jitter: float) -> float:
    """Seconds until the `ahead` requests should have been granted, spread by `jitter` in [0, 1).

    The middle is kept low enough for the spread to end at 60 s, so that a long queue does not send everyone
    away for exactly the same time. Raises ValueError for a jitter outside [0, 1).
    """
    if not 0.0 <= jitter < 1.0:
        raise ValueError(f"jitter is {jitter}: expected a number in [0, 1)")
    longest_s = RETRY_AFTER_S_MAX / (1.0 + RETRY_JITTER)
    wait_s = min(ahead / grants_per_s, longest_s) if grants_per_s > 0.0 else longest_s
    spread = 1.0 - RETRY_JITTER + 2.0 * RETRY_JITTER * jitter
    return max(wait_s * spread, RETRY_AFTER_S_MIN)
