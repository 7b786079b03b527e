"""What is a request expected to hold and to generate? Its price by a forecast.

An `Outlook` is what is known of it when it starts. With the curve of its tenant's lengths it gives the vector that a
ledger adds up, the output that its service is charged with, and, once it is over, whether it was longer than was said.

* `ignore_eos` makes the length exact: only the limit ends it. What `min_tokens` asks for is certain.
* Several prompts are added up: each has what the window leaves it, and their lengths are taken as independent. Several
  sequences of one prompt are taken to end together (`forecast_occupancy`).
* While a prompt is read, a model with windows may hold more than afterwards: a vector made before the first token
  has at least that at its first points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvgate_policies.forecast_occupancy import LAG_TOKENS, blocks_of_request, forecast_occupancy
from kvgate_policies.forecast_survival import Survival, never_ends
from kvgate_policies.kv_cost import output_tokens, price
from kvgate_policies.occupancy import GRID, NOTHING, SCALE, Occupancy
from kvgate_policies.types import EngineShape

READING_POINTS = sum(ahead <= LAG_TOKENS for ahead in GRID)
"""Of the grid, up to 16 tokens ahead: a prompt is read by then, or was not started."""
QUANTILES = (0.5, 0.9, 0.99)
"""At which forecasts are compared with what came."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of a generating request when it starts."""

    prompts: tuple[int, ...]
    """Tokens of each; none is empty for long, so at least one."""
    max_tokens: int
    """Output tokens of a sequence at the most."""
    n: int = 1
    """Sequences of each prompt."""
    min_tokens: int = 0
    ignore_eos: bool = False
    shares_prompt: bool = True
    """Whether the `n` sequences of a prompt may be counted on to share its blocks."""

    @property
    def sequences(self) -> int:
        return self.n * len(self.prompts)

    @property
    def sure(self) -> int:
        """Tokens that cannot be the last of a sequence."""
        return max(min(self.min_tokens, self.max_tokens) - 1, 0)

    def counted_on(self, shape: EngineShape) -> EngineShape:
        """An engine's shape, without the prompt blocks that its sequences may not be counted on to share."""
        return replace(shape, prefix_caching=False) if self.n > 1 and not self.shares_prompt else shape

    @property
    def is_exact(self) -> bool:
        """Whether only its limit ends a sequence."""
        return self.ignore_eos or self.sure >= self.max_tokens - 1

    @property
    def telling(self) -> bool:
        """Whether its length says something about others: of several sequences only the sum is known."""
        return self.sequences == 1 and not self.ignore_eos


def request_occupancy(
    curve: Survival,
    outlook: Outlook,
    shape: EngineShape,
    generated: int = 0,
    apart: int = 0,
    lag_tokens: int = LAG_TOKENS,
) -> Occupancy:
    """The vector of a request whose sequences have emitted `generated` tokens each, on an engine of this shape.

    `apart` blocks of its prompt are left out: they are accounted for elsewhere (`sharing`). Only of one sequence.
    `lag_tokens` as in `forecast_occupancy`.
    """
    curve = never_ends() if outlook.ignore_eos else curve
    vectors = [
        _of_prompt(curve, outlook, shape, prompt, generated, apart, lag_tokens) for prompt in outlook.prompts
    ]
    return vectors[0] if len(vectors) == 1 else sum(vectors, NOTHING)


def expected_output(curve: Survival, outlook: Outlook) -> int:
    """Output tokens of all sequences together, expected when it starts; at least one each."""
    limit = outlook.max_tokens
    sure = limit if outlook.ignore_eos else outlook.sure
    return outlook.sequences * max(math.ceil(sure + curve.mean_more(sure, limit)), 1)


def longer_than_said(
    curve: Survival, length: int, *, limit: int, sure: int = 0, quantiles: Sequence[float] = QUANTILES
) -> Iterator[tuple[float, bool]]:
    """For each quantile whether the length exceeded it, by the curve that the request was priced with.

    `length` is that of a sequence which ended by itself, or `limit` for one that was cut there; more than `sure` tokens
    were certain. Left out are quantiles that the limit hides: whether those are exceeded, no answer can show, and
    counting only what ended below it would flatter the forecast.
    """
    seen, most = _share_below(curve, sure, length), _share_below(curve, sure, limit)
    return ((q, seen >= q) for q in quantiles if most >= q)


def _share_below(curve: Survival, sure: int, length: int) -> float:
    """P(L < length), given that it is more than `sure`."""
    return 1.0 - curve.alive(sure, length - 1 - sure) if length - 1 > sure else 0.0


def _of_prompt(
    curve: Survival,
    outlook: Outlook,
    shape: EngineShape,
    prompt: int,
    generated: int,
    apart: int,
    lag_tokens: int,
) -> Occupancy:
    shape = outlook.counted_on(shape)
    limit = output_tokens(shape, prompt, outlook.max_tokens)
    blocks = blocks_of_request(shape, prompt, outlook.n)
    vector = forecast_occupancy(
        curve,
        (lambda generated: blocks(generated) - apart) if apart else blocks,
        generated=min(generated, limit - 1),
        limit=limit,
        min_tokens=outlook.min_tokens,
        lag_tokens=lag_tokens,
    )
    return vector if generated or not shape.groups else _reading(vector, outlook, shape, prompt)


def _reading(vector: Occupancy, outlook: Outlook, shape: EngineShape, prompt: int) -> Occupancy:
    least = price(shape, (prompt,), 1, outlook.n).blocks * SCALE
    means = (max(mean, least) if point < READING_POINTS else mean for point, mean in enumerate(vector.means))
    return Occupancy(tuple(means), vector.variances)
