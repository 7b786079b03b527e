"""How many KV blocks are held, now and further on: the vector that a ledger adds up.

For each look-ahead of `GRID` (tokens from now, the same for all that run, since every step of an engine gives
each running sequence one token) it has the mean and the variance of the blocks held then. `forecast_occupancy` makes
one for a request; a ledger needs nothing but `+`, `-` and the inequality of `forecast_fit`.

The numbers are integers, means in 1/`SCALE` block and variances in 1/`SCALE` block²: sums come back to exactly zero, in
Python and in Lua (up to 2⁵³, which is 10⁴ requests of 10⁵ blocks). A guaranteed reservation is the same vector with its
peak at every point and no variance; both kinds share an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, sub

GRID = (0, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
"""Look-aheads in tokens. For unknown lengths five points (0, 16, 128, 768, 4096) are as good. Known ones are charged at
their upper envelope between two points, which costs the less the closer those are, at any distance up to the longest
answers. 48 mixed requests that fill one engine some five times, seen through vectors a few tokens old, take 1.066 times
the steps of no limit with these (prompts and outputs up to 512 tokens; 1.067 with eight times as many). With powers of
two alone it is 1.086 (1.093), and with a point at every 8 tokens 1.056."""
SCALE = 64
"""Parts of a block that are told apart."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Mean and variance of the blocks held at each point of `GRID`."""

    means: tuple[int, ...]
    """In 1/`SCALE` block."""
    variances: tuple[int, ...]
    """In 1/`SCALE` block²."""

    def __add__(self, other: Occupancy) -> Occupancy:
        return Occupancy(
            tuple(map(add, self.means, other.means)), tuple(map(add, self.variances, other.variances))
        )

    def __sub__(self, other: Occupancy) -> Occupancy:
        return Occupancy(
            tuple(map(sub, self.means, other.means)), tuple(map(sub, self.variances, other.variances))
        )

    @property
    def use_blocks(self) -> int:
        """What a tenant is said to use: the largest mean, in blocks, rounded up."""
        return -(-max(self.means) // SCALE)

    def at_most(self, blocks: int) -> Occupancy:
        """The same where no point's mean is above so many blocks."""
        top = blocks * SCALE
        if max(self.means) <= top:
            return self
        return Occupancy(tuple(min(mean, top) for mean in self.means), self.variances)

    def to_numbers(self) -> list[int]:
        """As plain integers, for a store: the means, then the variances."""
        return [*self.means, *self.variances]

    @classmethod
    def from_numbers(cls, numbers: list[int]) -> Occupancy:
        """The inverse of `to_numbers`. Raises ValueError for another count of numbers."""
        points = len(GRID)
        if len(numbers) != 2 * points:
            raise ValueError(f"an occupancy has {2 * points} numbers, not {len(numbers)}")
        return cls(tuple(numbers[:points]), tuple(numbers[points:]))


NOTHING = Occupancy((0,) * len(GRID), (0,) * len(GRID))


def guaranteed(peak_blocks: int) -> Occupancy:
    """A reservation of the peak, held to the end."""
    return Occupancy((peak_blocks * SCALE,) * len(GRID), (0,) * len(GRID))
