"""Which requests are taken back when an engine turns out to be promised twice?

A request that was admitted on a forecast which proves wrong cannot be taken back once its client has seen part
of the answer. One that has sent nothing yet (not streaming, or still in its prompt) can: it is aborted on the
engine and queued again at its old place, and only the work is lost. That is opt-in, for the class `batch`.

Rules: it is done only when the near future does not fit (the first `NEAR_POINTS` of the grid), since what is
further off is seen off by admitting nobody; those with the fewest tokens emitted go first, for the least work
is lost; no request is revoked more than `REVOCATIONS_MAX` times, so that each gets through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvgate_policies.forecast_fit import ZVector, load
from kvgate_policies.occupancy import GRID, Occupancy

NEAR_POINTS = 6
"""Up to 128 tokens ahead: about five seconds, enough for an abort to free its blocks."""
REVOCATIONS_MAX = 2
"""How often one request may be sent back; then it stays."""


@dataclass(frozen=True, slots=True)
class Revocable:
    """A running request that has sent its client nothing and may be sent back."""

    request_id: str
    vector: Occupancy
    generated: int
    """Tokens emitted: the work that would be lost."""
    revoked: int = 0
    """How often it was sent back already."""


def to_revoke(
    held: Occupancy, candidates: Iterable[Revocable], *, capacity_blocks: float, z: ZVector
) -> tuple[str, ...]:
    """Whom to send back until the near future fits again, or no candidate is left. Usually nobody.

    `capacity_blocks` is capacity times trust.
    """
    left = held
    chosen: list[str] = []
    for candidate in sorted(candidates, key=lambda one: (one.generated, one.request_id)):
        if _near(left, capacity_blocks, z) <= 1.0:
            break
        if candidate.revoked < REVOCATIONS_MAX:
            chosen.append(candidate.request_id)
            left -= candidate.vector
    return tuple(chosen)


def _near(held: Occupancy, capacity_blocks: float, z: ZVector) -> float:
    beyond = (0,) * (len(GRID) - NEAR_POINTS)
    near = Occupancy((*held.means[:NEAR_POINTS], *beyond), (*held.variances[:NEAR_POINTS], *beyond))
    return load(near, capacity_blocks, z)
