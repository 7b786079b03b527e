"""Fitting the step time of an engine to what was measured. Pure.

    seconds = a · steps + b · decoding + c · kv_tokens + p · prefill_tokens + h · requests

a to p are the terms of `StepProfile`; h is what a request takes beside the engine's step (HTTP, tokenizing, the
way there and back), which must not be taken for a step. Errors count relative to what was measured, so that a
long prefill does not outweigh all decode steps, and no term may be below zero: of all choices of terms that are
left out, the one is taken that fits best. Source: least squares with non-negative terms, by trying the 32 subsets
(Lawson and Hanson, "Solving Least Squares Problems", 1974, give the general method).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from kvgate_policies.engine_model import StepProfile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TERMS = 5
SINGULAR = 1e-12
"""Of a scaled system, all of whose entries are at most 1: two terms that can't be told apart."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A step, or the only step of a request, and how long it took."""

    what: str
    decoding: int
    kv_tokens: float
    prefill_tokens: int
    seconds: float
    requests: int = 0
    """1 where the time is that of a whole request."""

    @property
    def terms(self) -> tuple[float, ...]:
        return (1.0, float(self.decoding), self.kv_tokens, float(self.prefill_tokens), float(self.requests))


@dataclass(frozen=True, slots=True)
class Fit:
    """The terms, in seconds, and how well they explain what was measured."""

    step_s: float
    decode_s_per_seq: float
    kv_s_per_token: float
    prefill_s_per_token: float
    request_s: float
    observations: tuple[Observation, ...]

    def predicted_s(self, seen: Observation) -> float:
        terms = (
            self.step_s,
            self.decode_s_per_seq,
            self.kv_s_per_token,
            self.prefill_s_per_token,
            self.request_s,
        )
        return sum(each * count for each, count in zip(terms, seen.terms, strict=True))

    def off(self, seen: Observation) -> float:
        """How far the fit is above what was measured, as a share of that."""
        return self.predicted_s(seen) / seen.seconds - 1

    @property
    def off_median(self) -> float:
        """Half of the observations are fitted better."""
        ordered = sorted(abs(self.off(seen)) for seen in self.observations)
        return ordered[len(ordered) // 2]

    @property
    def off_max(self) -> float:
        return max(abs(self.off(seen)) for seen in self.observations)

    def profile(self, name: str, source: str) -> StepProfile:
        return StepProfile(
            name,
            step_s=self.step_s,
            decode_s_per_seq=self.decode_s_per_seq,
            kv_s_per_token=self.kv_s_per_token,
            prefill_s_per_token=self.prefill_s_per_token,
            source=source,
        )


def fit(observations: Sequence[Observation]) -> Fit:
    """The terms that fit best. Raises ValueError for fewer observations than terms, or times that are not above 0."""
    if len(observations) < TERMS:
        raise ValueError(f"{len(observations)} observations cannot tell {TERMS} terms apart")
    if any(seen.seconds <= 0 for seen in observations):
        raise ValueError("an observation took no time")
    rows = [[term / seen.seconds for term in seen.terms] for seen in observations]
    best = min(_solutions(rows), key=lambda solution: _squares(rows, solution))
    step_s, decode_s, kv_s, prefill_s, request_s = best
    return Fit(step_s, decode_s, kv_s, prefill_s, request_s, tuple(observations))


def _solutions(rows: list[list[float]]) -> Iterator[list[float]]:
    """Of every subset of terms, the best one, if all its terms are above zero. That without any is among them."""
    yield [0.0] * TERMS
    for size in range(1, TERMS + 1):
        for chosen in combinations(range(TERMS), size):
            solved = _least_squares(rows, chosen)
            if solved is not None and min(solved) >= 0:
                solution = [0.0] * TERMS
                for term, value in zip(chosen, solved, strict=True):
                    solution[term] = value
                yield solution


def _squares(rows: list[list[float]], solution: list[float]) -> float:
    """Sum of the squared relative errors."""
    return sum((sum(a * x for a, x in zip(row, solution, strict=True)) - 1) ** 2 for row in rows)


def _least_squares(rows: list[list[float]], chosen: tuple[int, ...]) -> list[float] | None:
    """The normal equations of these columns against 1, each column scaled; None where they are singular."""
    scales = [max(abs(row[term]) for row in rows) for term in chosen]
    if min(scales) == 0:
        return None
    columns = [[row[term] / scale for row in rows] for term, scale in zip(chosen, scales, strict=True)]
    system = [[_dot(one, other) / len(rows) for other in columns] + [sum(one) / len(rows)] for one in columns]
    solved = _eliminated(system)
    return None if solved is None else [x / scale for x, scale in zip(solved, scales, strict=True)]


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _eliminated(system: list[list[float]]) -> list[float] | None:
    """Gauss and Jordan, the largest pivot first."""
    size = len(system)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(system[row][column]))
        if abs(system[pivot][column]) < SINGULAR:
            return None
        system[column], system[pivot] = system[pivot], system[column]
        for row in range(size):
            if row != column:
                factor = system[row][column] / system[column][column]
                pairs = zip(system[row], system[column], strict=True)
                system[row] = [own - factor * other for own, other in pairs]
    return [system[row][size] / system[row][row] for row in range(size)]
