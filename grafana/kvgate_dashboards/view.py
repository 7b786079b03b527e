"""What is looked at: a Prometheus, a stretch of time, and what a reader of the dashboard has chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvgate_dashboards import looks
from kvgate_dashboards.reading import Panel, Query, filled, legend
from kvgate_dashboards.source import Labels, Source

POINTS = 240
"""Across a curve: as many as can be told apart."""

Curve = tuple[str, list[float], list[float]]
"""Name, seconds since the start, values."""


@dataclass(frozen=True, slots=True)
class View:
    """What is looked at: a source, a stretch of time, and what the reader has chosen."""

    source: Source
    start_s: float
    end_s: float
    rate_s: int
    """For `$__rate_interval`: four scrapes and one."""
    chosen: Mapping[str, str]
    shades: dict[str, str] = field(default_factory=dict[str, str])
    """Name of a series → its colour, the same on every panel."""

    def shade(self, name: str) -> str:
        return self.shades.setdefault(name, looks.PALETTE[len(self.shades) % len(looks.PALETTE)])

    @property
    def step_s(self) -> float:
        return max(1.0, (self.end_s - self.start_s) / POINTS)

    def _expr(self, query: Query) -> str:
        range_s = math.ceil(self.end_s - self.start_s)
        return filled(query.expr, rate_s=self.rate_s, range_s=range_s, chosen=self.chosen)

    def curves(self, panel: Panel) -> list[Curve]:
        """One for each series."""
        found: list[Curve] = []
        for query in panel.queries:
            rows = self.source.ask_range(self._expr(query), self.start_s, self.end_s, self.step_s)
            for labels, row in sorted(rows.items(), key=lambda item: sorted(item[0])):
                name = legend(query, dict(labels))
                found.append((name, [at - self.start_s for at, _ in row], [value for _, value in row]))
        return found

    def values(self, panel: Panel) -> list[tuple[str, float]]:
        """Name and value as of the end."""
        found = []
        for query in panel.queries:
            rows = self.source.ask(self._expr(query), self.end_s)
            found += [
                (legend(query, dict(labels)), value) for labels, value in sorted(rows.items(), key=_by_labels)
            ]
        return found

    def table(self, panel: Panel) -> dict[Labels, dict[str, float]]:
        """Labels → the value of each query."""
        rows: dict[Labels, dict[str, float]] = {}
        for query in panel.queries:
            for labels, value in self.source.ask(self._expr(query), self.end_s).items():
                rows.setdefault(labels, {})[query.ref] = value
        return dict(sorted(rows.items(), key=_by_labels))


def _by_labels(item: tuple[Labels, Any]) -> list[tuple[str, str]]:
    return sorted(item[0])
