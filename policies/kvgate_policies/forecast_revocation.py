"""Which requests are taken back when an engine turns out to be promised twice?

A request that was admitted on a forecast which proves wrong cannot be taken back once its client has seen part
of the answer. One that has sent nothing yet (not streaming, or still in its prompt) can: it is aborted on the
engine and queued again at its old place, and only the work is lost. That is opt-in, for the class `batch`.

Rules: it is done only when the near future is *expected* not to fit (the means at the first `NEAR_POINTS` of the
grid). What is further off is seen off by admitting nobody, and so is the room for chance that admission leaves: a full
engine needs some of it at any moment, and to throw work away for what will most likely not happen costs more than it
saves. Those with the fewest tokens emitted go first, for the least work is lost; no request is revoked more than
`REVOCATIONS_MAX` times, so that each gets through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvgate_policies.occupancy import SCALE, Occupancy

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


def to_revoke(held: Occupancy, candidates: Iterable[Revocable], *, capacity_blocks: float) -> tuple[str, ...]:
    """Whom to send back until the near future is expected to fit again, or no candidate is left. Usually nobody.

    `capacity_blocks` is capacity times trust.
    """
    left = held
    chosen: list[str] = []
    for candidate in sorted(candidates, key=lambda one: (one.generated, one.request_id)):
        if max(left.means[:NEAR_POINTS]) <= capacity_blocks * SCALE:
            break
        if candidate.revoked < REVOCATIONS_MAX:
            chosen.append(candidate.request_id)
            left -= candidate.vector
    return tuple(chosen)
