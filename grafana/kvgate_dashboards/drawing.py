"""Panels as pictures: the same queries as in Grafana, put to the same Prometheus, drawn by matplotlib.

For people without a Grafana, and for the documents. It draws what a panel says, in the place it has on the dashboard;
it is no second Grafana: no hovering, no zoom.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from kvgate_dashboards import drawn_curves, drawn_values, looks
from kvgate_dashboards.reading import Panel
from kvgate_dashboards.view import View

COLUMNS = 24
COLUMN_IN, ROW_IN = 0.55, 0.36
"""Size of a cell of the grid, inches."""
DPI = 90
COLOURS = 256
"""Of the palette of the file, which is then a third as large."""

mpl.use("Agg")

_DRAW = {
    "timeseries": drawn_curves.lines,
    "stat": drawn_values.numbers,
    "bargauge": drawn_values.bars,
    "state-timeline": drawn_curves.strip,
    "table": drawn_values.sheet,
}


def picture(panels: Iterable[Panel], view: View, title: str) -> bytes:
    """The panels as a PNG, laid out as on the dashboard, without gaps for rows that are left out."""
    chosen = list(panels)
    tops = _tops(chosen)
    rows = max(top + panel.raw["gridPos"]["h"] for panel, top in zip(chosen, tops, strict=True))
    figure = plt.figure(figsize=(COLUMNS * COLUMN_IN, rows * ROW_IN + 0.4), dpi=DPI, facecolor=looks.PAGE)
    head = 0.4 / (rows * ROW_IN + 0.4)
    figure.text(0.006, 1 - head / 2, title, color=looks.TEXT, fontsize=13, va="center", weight="bold")
    for panel, top in zip(chosen, tops, strict=True):
        _place(figure, panel, view, top, rows, head)
    return _compressed(figure)


def _tops(panels: Sequence[Panel]) -> list[int]:
    """Rows of the grid from the top, closed up: each line of panels begins where the one above ends."""
    starts = sorted({panel.raw["gridPos"]["y"] for panel in panels})
    heights = {y: max(p.raw["gridPos"]["h"] for p in panels if p.raw["gridPos"]["y"] == y) for y in starts}
    top, at = 0, {}
    for y in starts:
        at[y] = top
        top += heights[y]
    return [at[panel.raw["gridPos"]["y"]] for panel in panels]


def _place(figure: Figure, panel: Panel, view: View, top: int, rows: int, head: float) -> None:
    grid = panel.raw["gridPos"]
    unit_y = (1 - head) / rows
    left, width = grid["x"] / COLUMNS + 0.003, grid["w"] / COLUMNS - 0.006
    bottom, height = (rows - top - grid["h"]) * unit_y + 0.15 * unit_y, (grid["h"] - 0.3) * unit_y
    frame = figure.add_axes((left, bottom, width, height), facecolor=looks.PANEL)
    frame.set_xticks([])
    frame.set_yticks([])
    for spine in frame.spines.values():
        spine.set_color(looks.GRID)
    line = unit_y * 1.1
    top_y = bottom + height - line / 2
    figure.text(left + 0.006, top_y, _title(panel), color=looks.TEXT, fontsize=10, va="center")
    inner = (left + 0.006, bottom + 0.1 * line, width - 0.012, height - 1.2 * line)
    _DRAW[panel.kind](figure, inner, panel, view)


def _title(panel: Panel) -> str:
    """With the unit, where the axis has only numbers."""
    _, suffix, unit = str(panel.defaults["unit"]).partition("suffix:")
    return f"{panel.title} ({unit.strip()})" if suffix and panel.kind == "timeseries" else panel.title


def _compressed(figure: Figure) -> bytes:
    raw, small = io.BytesIO(), io.BytesIO()
    figure.savefig(raw, format="png", facecolor=figure.get_facecolor())
    plt.close(figure)
    Image.open(raw).convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    return small.getvalue()
