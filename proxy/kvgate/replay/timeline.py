"""How a few quantities went over time, each as its mean in a fixed number of equal spans."""

from __future__ import annotations

from dataclasses import dataclass, field

BINS = 240
"""Spans of a whole run: six minutes of a day, and about what a picture can show."""


@dataclass(slots=True)
class Curve:
    """A quantity that keeps its value until it changes. Its times must not go back."""

    span_s: float
    """Of the whole; what comes after it is not counted."""
    value: float = 0.0
    area: float = 0.0
    """Value times seconds, up to `span_s`."""
    most: float = 0.0
    _at_s: float = 0.0
    _areas: list[float] = field(default_factory=lambda: [0.0] * BINS)

    def change(self, value: float, now_s: float) -> None:
        """From now on it has this value."""
        self.go_on(now_s)
        self.value = value
        self.most = max(self.most, value)

    def go_on(self, now_s: float) -> None:
        """It has kept its value until now."""
        end_s = min(now_s, self.span_s)
        if end_s > self._at_s:
            if self.value:
                self._add(self._at_s, end_s)
            self._at_s = end_s

    def _add(self, from_s: float, to_s: float) -> None:
        width_s = self.span_s / BINS
        first, last = int(from_s / width_s), min(int(to_s / width_s), BINS - 1)
        self.area += self.value * (to_s - from_s)
        if first == last:
            self._areas[first] += self.value * (to_s - from_s)
            return
        for number in range(first, last + 1):
            inside_s = min(to_s, (number + 1) * width_s) - max(from_s, number * width_s)
            self._areas[min(number, BINS - 1)] += self.value * max(inside_s, 0.0)

    @property
    def mean(self) -> float:
        return self.area / self.span_s if self.span_s > 0 else 0.0

    def points(self) -> list[tuple[float, float]]:
        """The middle of each span, seconds, and the mean in it; none where the whole has no length."""
        if self.span_s <= 0:
            return []
        width_s = self.span_s / BINS
        return [((number + 0.5) * width_s, area / width_s) for number, area in enumerate(self._areas)]
