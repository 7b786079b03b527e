"""Does one more fit? The one inequality of a ledger that adds occupancies.

At every point k of the grid: `Σ mean_k + z_k·√(Σ variance_k) ≤ capacity · trust`. By the normal approximation of
a sum of many, the engine would be out of blocks at that moment with a probability of at most the risk that
`z_k` stands for. It is asked for the sum *with* the newcomer, by a ledger that holds the sums of all proxies.

The risk is not the same at every point. A moment 16 tokens ahead comes every half second, one 4096 tokens ahead
every few minutes, and only then is it another draw. So that each point brings about as many preemptions in an
hour, the near ones get a small part of the risk and the far ones much (`RISK_SHARES`). On reasoning workloads
equal risks leave up to a tenth of the engine idle for tails that are seen off in time by admitting nobody.

What grows after it was admitted is never refused: the sum may exceed the capacity then, and nothing is
admitted until it has come down again. An engine with nothing reserved takes whatever fits it, however wide the
forecast.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from kvgate_policies.occupancy import NOTHING, SCALE, Occupancy

RISK_DEFAULT = 0.01
"""How often the sum may exceed the capacity, a moderate time ahead."""
RISK_SHARES = (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.15, 0.2, 0.35, 0.5, 0.75, 1.0, 3.0, 10.0)
"""What part of the risk each point of the grid gets. The near ones are what a full engine of a dozen requests is
held back by: at a risk of 20 %, with answers of some hundred tokens, it takes 1.11 times the steps of no limit with
0.1 there and preempts 0.8 in 100 requests, 1.09 and 1.6 with 0.15, 1.075 and 2 with 0.2."""
RISK_MAX = 0.5
"""At half the risk nothing is left free for chance."""

ZVector = tuple[float, ...]
"""One standard normal quantile for each point of the grid."""


def z_of(risk: float) -> ZVector:
    """How many standard deviations are left free at each point of the grid, for a policy's risk.

    Raises ValueError outside (0, 0.5].
    """
    if not 0.0 < risk <= RISK_MAX:
        raise ValueError(f"a risk of {risk}: expected more than 0 and at most {RISK_MAX}")
    normal = NormalDist()
    return tuple(normal.inv_cdf(1.0 - min(risk * share, RISK_MAX)) for share in RISK_SHARES)


Z_DEFAULT = z_of(RISK_DEFAULT)
"""For the risk that holds where a policy says nothing."""


def blocks_taken(held: Occupancy, newcomer: Occupancy, z: ZVector) -> float:
    """The left side of the inequality for both together, at the point of the grid where it is largest; blocks.

    In this order of operations, so that it is the same double in every ledger.
    """
    most = 0.0
    for mean, more, variance, more_variance, factor in zip(
        held.means, newcomer.means, held.variances, newcomer.variances, z, strict=True
    ):
        most = max(most, mean + more + factor * math.sqrt(SCALE * (variance + more_variance)))
    return most / SCALE


def load(total: Occupancy, capacity_blocks: float, z: ZVector) -> float:
    """The largest part of the capacity that is taken at any point of the grid; 1 is full.

    `capacity_blocks` is what may be used: capacity times trust. Infinite when there is none.
    """
    if capacity_blocks <= 0.0:
        return math.inf
    return blocks_taken(total, NOTHING, z) / capacity_blocks


def fits(
    held: Occupancy,
    newcomer: Occupancy,
    *,
    capacity_blocks: int,
    z: ZVector,
    trust: float = 1.0,
    empty: bool = False,
) -> bool:
    """Whether the newcomer may start beside what is held.

    `empty`: nothing at all is reserved there. Then its means alone are asked: what the whole engine covers may
    start, whatever its variance and however little the engine is trusted.
    """
    if empty:
        return max(newcomer.means) <= capacity_blocks * SCALE
    return load(held + newcomer, capacity_blocks * trust, z) <= 1.0
