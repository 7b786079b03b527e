"""How many KV blocks will a request hold, now and further on? The vector a ledger adds up.

For each look-ahead of `GRID` (tokens from now, the same for all that run, since every step of an engine gives
each running sequence one token) the vector has the mean and the variance of the blocks held then. A request is
charged for the *sum over time*, not for its peak: it will have ended, more likely than not, before the others
have grown.

For a request of g emitted tokens that is cut at `limit`, with the survival curve S, and blocks(t) held after
t emitted tokens:

    π_k = S(g + τ_k) / S(g)                                  still running τ_k tokens from now
    c   = S(limit − 1) / S(g)                                runs into its limit
    left  = blocks(g + τ_k + lag)
    right = blocks(min(g + τ_{k+1} + lag, limit))
    mean_k = (π_k − c)·left + c·right       variance_k = (π_k − c)·left² + c·right² − mean_k²

and 0 from the limit on. A request that runs into its limit has a known end: in its part the *upper envelope*
is taken between two grid points, alive at the left one, as large as at the right one. So a sum of known lengths
is an upper bound of what is held at any moment, not only at the grid points, with no variance at all. `lag`
covers what it has grown since the vector was made.

`occupancy` has the vector and its arithmetic, `forecast_fit` the inequality.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil

from kvgate_policies.forecast_lengths import LENGTH_MAX
from kvgate_policies.forecast_survival import Survival
from kvgate_policies.kv_cost import blocks_after_prompt, price
from kvgate_policies.occupancy import GRID, SCALE, Occupancy
from kvgate_policies.types import EngineShape

LAG_TOKENS = 16
"""Tokens a request may have grown since its vector was made, for who knows no better: a beat of 250 ms at 16 ms for
each token. And by how many steps one may start late, behind the prompts before it."""
CHANCE_MIN = 1e-6
"""A chance below this changes no number of a vector."""
SHAPES_MAX = 64
"""Shapes of engines whose rule is kept at hand; a pool has one or two."""
_ENDS = (*GRID[1:], LENGTH_MAX)
"""Where the interval that begins at each point of the grid is over."""

Blocks = Callable[[int], int]
"""Blocks that all running sequences of one request hold once each has emitted so many tokens."""


def forecast_occupancy(
    curve: Survival,
    blocks: Blocks,
    *,
    generated: int,
    limit: int,
    min_tokens: int = 0,
    lag_tokens: int = LAG_TOKENS,
) -> Occupancy:
    """The vector of a request whose sequences have emitted `generated` tokens each.

    `limit` is the most each may emit (at least 1), `min_tokens` what each will emit at least. A request with
    nothing emitted yet may start late, behind the prompts before it: it is taken to last `lag_tokens` longer.
    `lag_tokens` is what it may grow until its next vector is added up in place of this one.
    """
    left_over = max(limit - generated, 1) + (0 if generated else lag_tokens)
    certain = max(generated, min(min_tokens, limit) - 1)
    ahead = [tokens for tokens in GRID if tokens < left_over]
    *alive, cut = curve.chances([*(generated + tokens for tokens in ahead), limit - 1], certain)
    grown = [
        blocks(min(generated + tokens + lag_tokens, limit)) for tokens in (*ahead, _ENDS[len(ahead) - 1])
    ]
    means: list[int] = []
    variances: list[int] = []
    for chance, left, right in zip(alive, grown, grown[1:], strict=False):
        ending = chance - cut if chance > cut else 0.0
        most = right if cut > CHANCE_MIN else left
        mean = ending * left + cut * most
        spread = ending * left * left + cut * most * most - mean * mean
        means.append(ceil(mean * SCALE))
        variances.append(ceil(spread * SCALE) if spread > 0.0 else 0)
    beyond = (0,) * (len(GRID) - len(means))
    return Occupancy((*means, *beyond), (*variances, *beyond))


def blocks_of_request(shape: EngineShape, prompt_tokens: int, n: int) -> Blocks:
    """The size of a request of `n` running sequences on an engine of this shape, by the rules of `kv_cost`.

    The prompt blocks that the sequences share are counted once. They are taken to end together, the cautious
    choice for the variance; call it with those still running once some have ended. Raises ValueError for n < 1.
    """
    if n == 1:
        whole = _whole(shape)
        if whole is None:
            return lambda generated: blocks_after_prompt(shape, prompt_tokens + max(generated, 1) - 1)
        size, before = shape.block_size, prompt_tokens - 1
        return lambda generated: min(-(-(before + (generated or 1)) // size), whole)

    def blocks(generated: int) -> int:
        return price(shape, (prompt_tokens,), max(generated, 1), n).blocks

    return blocks


@lru_cache(SHAPES_MAX)
def _whole(shape: EngineShape) -> int | None:
    """Blocks of the whole window, where a sequence grows evenly up to it; else None.

    Nearly all engines are so, and a vector asks for a size at each point.
    """
    return blocks_after_prompt(shape, shape.max_model_len) if shape.grows_evenly else None
