"""A line chart as SVG text: axes, ticks, lines, nothing else. Pure; colours are the page's, by class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 42
VALUE_MIN = 1e-12
"""Below it a value is 0: the logarithms and steps of denormal numbers are no numbers."""
POINTS_MAX = 600
"""Of one line: about one for each pixel."""
COLOURS = 6
"""Lines that can be told apart; the page has a colour for each."""


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    marked: bool = False
    """A dot at each point: for few of them."""


def svg(chart: Chart) -> str:
    """The chart, or a sentence where there is nothing to draw."""
    lines = [Line(line.name, _thinned(_drawable(line.points, log_x=chart.log_x))) for line in chart.lines]
    points = [point for line in lines for point in line.points]
    if not points:
        return '<p class="none">nothing to draw</p>'
    x_axis = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, log=chart.log_x)
    y_axis = _Axis([0.0, *(y for _, y in points)], HEIGHT - BOTTOM, TOP)
    label = escape(f"{chart.title}: {chart.y_label} by {chart.x_label}", quote=True)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">']
    parts += _grid(x_axis, y_axis)
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    turned = f"translate(12 {middle_y:.0f}) rotate(-90)"
    parts.append(f'<text class="axis" x="{middle_x:.0f}" y="{HEIGHT - 6}">{escape(chart.x_label)}</text>')
    parts.append(f'<text class="axis" transform="{turned}">{escape(chart.y_label)}</text>')
    for number, line in enumerate(lines):
        parts += _drawn(line, number % COLOURS, x_axis, y_axis, marked=chart.marked)
    return "".join([*parts, "</svg>"])


def legend(lines: Sequence[Line]) -> str:
    names = (f'<span class="key c{n % COLOURS}">{escape(line.name)}</span>' for n, line in enumerate(lines))
    return f'<p class="legend">{"".join(names)}</p>' if len(lines) > 1 else ""


def _drawable(points: Sequence[tuple[float, float]], *, log_x: bool) -> list[tuple[float, float]]:
    """What has a place in the picture. Nothing that is drawn is that small: it is taken for 0."""
    plain = [(_plain(x), _plain(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    return [(x, y) for x, y in plain if x > 0 or not log_x]


def _plain(value: float) -> float:
    return 0.0 if abs(value) < VALUE_MIN else value


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Every n-th point, and the last."""
    step = -(-len(points) // POINTS_MAX)
    return [*points[::step], points[-1]] if step > 1 else points


class _Axis:
    """From values to pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool = False) -> None:
        self._log = log
        self._start, self._end = start, end
        low, high = min(values), max(values)
        if high <= low:
            high = low + (abs(low) or 1.0)
        self.ticks = _log_ticks(low, high) if log else _ticks(low, high)
        low, high = min(low, self.ticks[0]), max(high, self.ticks[-1])
        self._low, self._span = self._scaled(low), self._scaled(high) - self._scaled(low)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def at(self, value: float) -> float:
        return self._start + (self._scaled(value) - self._low) / self._span * (self._end - self._start)


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers that enclose the values."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (step * factor) <= 6)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts: list[str] = []
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick y" x="{LEFT - 6}" y="{y + 4:.1f}">{tick:g}</text>')
    for tick in x_axis.ticks:
        x = x_axis.at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}">{tick:g}</text>')
    return parts


def _drawn(line: Line, colour: int, x_axis: _Axis, y_axis: _Axis, *, marked: bool) -> list[str]:
    at = [(x_axis.at(x), y_axis.at(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    parts = [
        f'<polyline class="line c{colour}" points="{path}"><title>{escape(line.name)}</title></polyline>'
    ]
    if marked:
        parts += [f'<circle class="dot c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in at]
    return parts
