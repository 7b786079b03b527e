"""Costs and risks as they go to the server of a shared ledger, and as they come back.

A cost is its three integers and a *forecast*: text, empty for a guaranteed cost, else the numbers of
`Occupancy.to_numbers` with colons between them, each mean less the peak. So the server adds up forecasts beside the
peaks, and where all is guaranteed there is nothing to add. What is written here is read in `lua/forecasts.lua`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvgate.ledger.door import check_cost
from kvgate_policies.forecast_fit import Z_DEFAULT
from kvgate_policies.occupancy import GRID, SCALE, Occupancy, guaranteed
from kvgate_policies.types import KVCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvgate_policies.forecast_fit import ZVector

INTEGER_MAX = (1 << 53) - 1
"""Numbers in the scripts are doubles, which are exact to here."""
FORECAST_MAX = 1 << 46
"""Of one request in 1/`SCALE`, which is 10¹² blocks: the scripts write numbers of 14 digits in full."""


def check_numbers(*numbers: int, most: int = INTEGER_MAX) -> None:
    """Raises ValueError for one that the server would not keep as it is."""
    if not all(0 <= number <= most for number in numbers):
        raise ValueError(f"numbers are between 0 and {most}: {numbers}")


def parts_of(cost: KVCost, *, forecast_max: int = INTEGER_MAX) -> tuple[int, int, int]:
    """Blocks, sequences, prefill tokens. Raises ValueError for a cost with a negative or too large part."""
    check_cost(cost)
    parts = cost.blocks, cost.seqs, cost.prefill_tokens
    check_numbers(*parts)
    if cost.expected is not None:
        check_numbers(SCALE * cost.blocks, *cost.expected.to_numbers(), most=forecast_max)
    return parts


def forecast_text(cost: KVCost) -> str:
    """Of a cost, or of the difference of two."""
    if cost.expected is None:
        return ""
    peak = SCALE * cost.blocks
    means = (mean - peak for mean in cost.expected.means)
    return ":".join(map(str, (*means, *cost.expected.variances)))


def cost_of(blocks: int, seqs: int, prefill_tokens: int, forecast: str) -> KVCost:
    """The cost that was written so. Raises ValueError for a forecast that nobody writes."""
    if not forecast:
        return KVCost(blocks, seqs, prefill_tokens)
    numbers = [int(word) for word in forecast.split(":")]
    means = [mean + SCALE * blocks for mean in numbers[: len(GRID)]]
    expected = Occupancy.from_numbers(means + numbers[len(GRID) :])
    return KVCost(blocks, seqs, prefill_tokens, expected)


def read_cost(text: str) -> KVCost:
    """From an entry of the stream: `blocks:seqs:prefill tokens`, and the forecast of one that has it."""
    blocks, seqs, prefill_tokens, *forecast = text.split(":", 3)
    return cost_of(int(blocks), int(seqs), int(prefill_tokens), "".join(forecast))


def z_text(z: ZVector) -> str:
    """The same doubles again when it is read; empty for those of the usual risk.

    Raises ValueError for what is no number of deviations at each point of the grid.
    """
    if len(z) != len(GRID) or not all(0.0 <= each < math.inf for each in z):
        raise ValueError(f"{len(GRID)} numbers of deviations, 0 or more: {z}")
    return "" if z == Z_DEFAULT else " ".join(f"{each:.17g}" for each in z)


def least_of(one: KVCost, other: KVCost) -> KVCost:
    """Part by part, and at each point of the grid, the smaller of the two."""
    return KVCost(
        min(one.blocks, other.blocks),
        min(one.seqs, other.seqs),
        min(one.prefill_tokens, other.prefill_tokens),
        None if one.expected is None and other.expected is None else _least(one.occupancy, other.occupancy),
    )


def _least(one: Occupancy, other: Occupancy) -> Occupancy:
    return Occupancy(tuple(map(min, one.means, other.means)), tuple(map(min, one.variances, other.variances)))


def sum_of(costs: Iterable[KVCost]) -> KVCost:
    """As adding them one by one, but in a fraction of the time: a heartbeat sums up all that is held."""
    listed = list(costs)
    blocks = sum(cost.blocks for cost in listed)
    seqs = sum(cost.seqs for cost in listed)
    prefill_tokens = sum(cost.prefill_tokens for cost in listed)
    return KVCost(blocks, seqs, prefill_tokens, _expected(listed, blocks))


def _expected(costs: Sequence[KVCost], blocks: int) -> Occupancy | None:
    """None where all together is the peak, so that sums of equal costs are equal."""
    forecasts = [(cost.blocks, cost.expected) for cost in costs if cost.expected is not None]
    if not forecasts:
        return None
    rest = SCALE * (blocks - sum(peak for peak, _ in forecasts))
    means = tuple(rest + sum(column) for column in zip(*(each.means for _, each in forecasts), strict=True))
    variances = tuple(map(sum, zip(*(each.variances for _, each in forecasts), strict=True)))
    together = Occupancy(means, variances)
    return None if together == guaranteed(blocks) else together
