"""Panels of the moment as pictures: numbers, words, bars and tables."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvgate_dashboards import looks
from kvgate_dashboards.drawn_curves import Box, or_zero
from kvgate_dashboards.reading import Panel
from kvgate_dashboards.view import View


def _bare(figure: Figure, box: Box) -> Axes:
    axes = figure.add_axes(box, facecolor=looks.PANEL)
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    return axes


def numbers(figure: Figure, box: Box, panel: Panel, view: View) -> None:
    axes = _bare(figure, box)
    if panel.raw["options"]["textMode"] == "name":
        _names(axes, panel, view)
        return
    values = view.values(panel)
    unit, steps = panel.defaults["unit"], panel.defaults["thresholds"]["steps"]
    for at, (name, value) in enumerate(values):
        shade = looks.threshold_colour(value, steps)
        text = looks.written(value, unit)
        if len(values) == 1:
            axes.text(0.5, 0.6, text, color=shade, fontsize=26, ha="center", va="center", weight="bold")
            continue
        y = 1 - (at + 0.5) / len(values)
        axes.text(0.5, y + 0.08, text, color=shade, fontsize=15, ha="center", va="center", weight="bold")
        axes.text(0.5, y - 0.1, name, color=looks.FAINT, fontsize=7, ha="center", va="center")
    curves = view.curves(panel)
    if len(curves) == 1:
        spark = figure.add_axes((box[0], box[1], box[2], box[3] * 0.3))
        spark.set_axis_off()
        spark.fill_between(
            curves[0][1], [or_zero(v) for v in curves[0][2]], color=looks.PALETTE[2], alpha=0.25
        )


def _names(axes: Axes, panel: Panel, view: View) -> None:
    names = [name for name, _ in view.values(panel)] or [str(panel.defaults.get("noValue", "–"))]
    height = min(1 / len(names), 0.34)
    shade = looks.colour(panel.defaults["thresholds"]["steps"][0]["color"])
    for at, name in enumerate(names):
        top = 1 - at * height
        axes.add_patch(
            mpl.patches.Rectangle((0, top - height * 0.92), 1, height * 0.92, color=shade, alpha=0.3)
        )
        wrapped = _wrapped(name, round(panel.raw["gridPos"]["w"] * 8))
        axes.text(0.02, top - height * 0.46, wrapped, color=looks.TEXT, fontsize=8.5, va="center")


def _wrapped(text: str, width: int) -> str:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) >= width and line:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def bars(figure: Figure, box: Box, panel: Panel, view: View) -> None:
    axes = _bare(figure, box)
    values = view.values(panel)
    if not values:
        axes.text(
            0.5,
            0.5,
            panel.defaults.get("noValue", "–"),
            color=looks.TEXT,
            fontsize=15,
            ha="center",
            va="center",
        )
    if panel.defaults.get("max") is None:
        values.sort(key=lambda item: -item[1])
    largest = panel.defaults.get("max") or max((value for _, value in values), default=1) or 1
    height = 1 / max(len(values), 3)
    for at, (name, value) in enumerate(values):
        y = 1 - (at + 0.62) * height
        shade = looks.threshold_colour(value, panel.defaults["thresholds"]["steps"])
        axes.add_patch(mpl.patches.Rectangle((0, y - height * 0.22), 0.8, height * 0.4, color=looks.GRID))
        share = 0.8 * min(value / largest, 1)
        axes.add_patch(
            mpl.patches.Rectangle((0, y - height * 0.22), share, height * 0.4, color=shade, alpha=0.8)
        )
        axes.text(0, y + height * 0.33, name, color=looks.FAINT, fontsize=8, va="center")
        text = looks.written(value, panel.defaults["unit"])
        axes.text(0.82, y, text, color=shade, fontsize=11, va="center", weight="bold")


def sheet(figure: Figure, box: Box, panel: Panel, view: View) -> None:
    axes = _bare(figure, box)
    rows = view.table(panel)
    renamed = panel.raw["transformations"][1]["options"]["renameByName"]
    units = {
        o["matcher"]["options"]: o["properties"][0]["value"] for o in panel.raw["fieldConfig"]["overrides"]
    }
    titles = [renamed[f"Value #{query.ref}"] for query in panel.queries]
    columns = ["pool", "tenant", *titles]
    height = 1 / max(len(rows) + 1, 6)
    places = [0.01 + at * 0.98 / len(columns) for at in range(len(columns))]
    for x, column in zip(places, columns, strict=True):
        axes.text(
            x, 1 - height / 2, column, color=looks.colour("blue"), fontsize=9, va="center", weight="bold"
        )
    for at, (labels, values) in enumerate(rows.items()):
        known = dict(labels)
        cells = [known.get("pool", ""), known.get("tenant", "")]
        for query, title in zip(panel.queries, titles, strict=True):
            value = values.get(query.ref)
            cells.append("" if value is None else looks.written(value, units.get(title, "")))
        y = 1 - (at + 1.5) * height
        axes.axhline(y + height / 2, color=looks.GRID, linewidth=0.8)
        for x, cell in zip(places, cells, strict=True):
            axes.text(x, y, cell, color=looks.TEXT, fontsize=9, va="center")
