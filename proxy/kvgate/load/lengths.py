"""How long sessions are: fixed, drawn from a distribution, or as in a request log. Pure but for reading the log.

Every distribution has a longest session, and knows it: averages hide what happens when many long ones come at
once, so a run with the longest only can be put beside a run with all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

LENGTH_ALLOWED = (
    "a number of tokens such as 512, uniform:LEAST:MOST, or lognormal:MEDIAN:P99 with the 99th percentile"
)
P99_SIGMAS = 2.3263
"""Standard deviations from the median to the 99th percentile of a normal distribution."""
LOGNORMAL_MOST = 2
"""The tail is cut at so many times the 99th percentile: otherwise there would be no longest session."""
TOKENS_MAX = 10_000_000
"""A window of ten million tokens is more than any model has; a longer length is a slip of the pen."""


class Length(Protocol):
    """The length of one side of a session, tokens."""

    @property
    def most(self) -> int: ...

    def draw(self, source: random.Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    most: int

    def draw(self, source: random.Random) -> int:
        del source
        return self.most


@dataclass(frozen=True, slots=True)
class Uniform:
    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        return source.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Many short ones and a long tail, as prompts and answers have."""

    median: int
    p99: int

    @property
    def most(self) -> int:
        return LOGNORMAL_MOST * self.p99

    def draw(self, source: random.Random) -> int:
        sigma = math.log(self.p99 / self.median) / P99_SIGMAS
        return min(max(round(source.lognormvariate(math.log(self.median), sigma)), 1), self.most)


def read_length(text: str) -> Length:
    """Read `512`, `uniform:64:2048` or `lognormal:300:4000`. Raises ValueError with what is allowed."""
    kind, *numbers = text.strip().split(":")
    try:
        if not numbers:
            return Fixed(_tokens(kind))
        low, high = (_tokens(number) for number in numbers)
    except ValueError:
        raise ValueError(LENGTH_ALLOWED) from None
    if kind == "uniform" and low <= high:
        return Uniform(low, high)
    if kind == "lognormal" and low < high:
        return LogNormal(low, high)
    raise ValueError(LENGTH_ALLOWED)


def _tokens(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= TOKENS_MAX):
        raise ValueError(text)
    return int(text)


class Sizes(Protocol):
    """Both sides of a session."""

    @property
    def largest(self) -> tuple[int, int]:
        """Prompt and output of the longest session."""
        ...

    def draw(self, source: random.Random) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class Independent:
    """Prompt and output, drawn each by itself."""

    prompt: Length
    output: Length

    @property
    def largest(self) -> tuple[int, int]:
        return self.prompt.most, self.output.most

    def draw(self, source: random.Random) -> tuple[int, int]:
        return self.prompt.draw(source), self.output.draw(source)


class Measured:
    """Pairs of prompt and output that belong together, as in a request log."""

    def __init__(self, prompts: Sequence[int], outputs: Sequence[int]) -> None:
        """Raises ValueError without a pair of which both sides are known."""
        pairs = zip(prompts, outputs, strict=True)
        self._pairs = [(prompt, output) for prompt, output in pairs if prompt > 0 and output > 0]
        if not self._pairs:
            raise ValueError("no request with a prompt and an answer is in it")

    @property
    def largest(self) -> tuple[int, int]:
        return max(self._pairs, key=sum)

    def draw(self, source: random.Random) -> tuple[int, int]:
        return source.choice(self._pairs)


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest session of a distribution, every time: the worst case."""

    of: Sizes

    @property
    def largest(self) -> tuple[int, int]:
        return self.of.largest

    def draw(self, source: random.Random) -> tuple[int, int]:
        del source
        return self.of.largest
