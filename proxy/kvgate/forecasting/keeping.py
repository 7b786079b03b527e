"""Where what was learned is kept beside this process: nowhere, in a file, or with the other processes.

What is written is the same in all places: statements of `kvgate_policies.forecast.Lengths` as JSON, a list of numbers
for each tenant. Of what is read nothing is believed that could not have been written: a store may be old, or damaged.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from kvgate_policies.forecast import TENANTS_MAX, Lengths
from kvgate_policies.forecast_lengths import LengthHistogram

TEXT_BYTES_MAX = 1_000_000
"""Of all statements of one process: 256 tenants with 138 numbers each are 300 KB at the most."""
ERAS_MAX = 1_000_000
"""Changes of a tenant's lengths: nobody sees so many."""
DECIMALS = 3

Statements = dict[str, list[float]]


class Keeping(Protocol):
    def serving(self, lengths: Lengths) -> AbstractAsyncContextManager[None]:
        """Begin with what was kept, keep what is learned until the block ends. Raises nothing of its own: whoever
        forgets only learns again.
        """
        ...


class Nowhere:
    """What was learned ends with the process."""

    @asynccontextmanager
    async def serving(self, lengths: Lengths) -> AsyncGenerator[None]:  # noqa: ARG002  nothing to begin with
        yield


def text_of(statements: Mapping[str, Sequence[float]]) -> str:
    """As it is kept."""
    plain = {name: [_short(number) for number in numbers] for name, numbers in statements.items()}
    return json.dumps(plain, separators=(",", ":"))


def statements_of(text: str | bytes) -> Statements:
    """The inverse of `text_of`. Raises ValueError for what that can't have written."""
    if len(text) > TEXT_BYTES_MAX:
        raise ValueError(f"more than {TEXT_BYTES_MAX} bytes")
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict) or len(found) > TENANTS_MAX + 1:
        raise ValueError("not a mapping of a few hundred tenants")
    return {name: _checked(numbers) for name, numbers in found.items()}


def _checked(numbers: object) -> list[float]:
    if not isinstance(numbers, list) or not all(isinstance(number, int | float) for number in numbers):
        raise ValueError("not a list of numbers")
    if not numbers or not 0 <= numbers[0] <= ERAS_MAX:
        raise ValueError("not a statement")
    LengthHistogram.from_numbers(numbers[1:])
    return numbers


def _short(number: float) -> float:
    """Whole numbers, which most are, without a fraction."""
    return int(number) if number == int(number) else round(number, DECIMALS)
