"""Panels over time as pictures: curves, stacks of them, and strips of states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvgate_dashboards import looks
from kvgate_dashboards.reading import Panel
from kvgate_dashboards.view import Curve, View

Box = tuple[float, float, float, float]
"""Left, bottom, width and height, as parts of the picture."""


def lines(figure: Figure, box: Box, panel: Panel, view: View) -> None:
    left, bottom, width, height = box
    curves = view.curves(panel)
    rows = min(math.ceil(len(curves) / _per_row(panel)), 3)
    foot = (0.11 + 0.1 * rows) * height
    margin = 0.032
    axes = figure.add_axes(
        (left + margin, bottom + foot, width - margin - 0.004, height - foot), facecolor=looks.PANEL
    )
    custom = panel.defaults.get("custom", {})
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    if stacked:
        _stack(axes, curves, view)
    else:
        _curves(axes, curves, view, steps=custom.get("lineInterpolation") == "stepAfter")
    unit = panel.defaults["unit"]
    _over_time(axes, view, labelsize=7)
    _values_look(axes, unit)
    for step in panel.defaults["thresholds"]["steps"][1:]:
        if axes.get_ylim()[0] <= step["value"] <= axes.get_ylim()[1]:
            axes.axhline(step["value"], color=looks.colour(step["color"]), linewidth=0.8, linestyle="--")
    if curves:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.06, -0.16 * 8 / panel.raw["gridPos"]["h"]),
            ncols=_per_row(panel),
            fontsize=7.5,
            frameon=False,
            labelcolor=looks.TEXT,
            handlelength=1.0,
            columnspacing=1.0,
            borderpad=0,
        )


def _per_row(panel: Panel) -> int:
    return max(2, round(float(panel.raw["gridPos"]["w"]) / 2.7))


def _over_time(axes: Axes, view: View, *, labelsize: float) -> None:
    axes.set_xlim(0, view.end_s - view.start_s)
    axes.tick_params(colors=looks.FAINT, labelsize=labelsize, length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _values_look(axes: Axes, unit: str) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.0), max(high, 1e-9))
    axes.grid(visible=True, color=looks.GRID, linewidth=0.6)
    axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
    short = "short" if unit.startswith("suffix:") else unit  # the title has it
    axes.yaxis.set_major_formatter(lambda value, _: looks.written(value, short))


def _curves(axes: Axes, curves: Sequence[Curve], view: View, *, steps: bool) -> None:
    for name, at, values in curves:
        shade = view.shade(name)
        axes.plot(
            at, values, color=shade, linewidth=1.3, label=name, drawstyle="steps-post" if steps else "default"
        )
        if not steps:
            axes.fill_between(at, values, color=shade, alpha=0.06, linewidth=0)


def _stack(axes: Axes, curves: Sequence[Curve], view: View) -> None:
    moments = sorted({at for _, row, _ in curves for at in row})
    tables = [dict(zip(at, values, strict=True)) for _, at, values in curves]
    heights = [[or_zero(table.get(moment, 0.0)) for moment in moments] for table in tables]
    if heights:
        names = [name for name, _, _ in curves]
        axes.stackplot(moments, heights, labels=names, colors=[view.shade(name) for name in names], alpha=0.6)


def or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def strip(figure: Figure, box: Box, panel: Panel, view: View) -> None:
    left, bottom, width, height = box
    axes = figure.add_axes(
        (left + 0.13, bottom + 0.22 * height, width - 0.14, 0.76 * height), facecolor=looks.PANEL
    )
    [mapping] = panel.defaults["mappings"]
    words = {
        int(key): (value["text"], looks.colour(value["color"])) for key, value in mapping["options"].items()
    }
    curves = view.curves(panel)
    for at, (_, moments, values) in enumerate(curves):
        for moment, value in zip(moments, values, strict=True):
            axes.barh(
                -at, view.step_s * 1.05, left=moment, color=words[int(value)][1], height=0.75, linewidth=0
            )
    axes.set_yticks([-at for at in range(len(curves))], [name for name, _, _ in curves])
    _over_time(axes, view, labelsize=8)
    seen = sorted({int(value) for _, _, values in curves for value in values})
    handles = [mpl.patches.Patch(color=words[value][1], label=words[value][0]) for value in seen]
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(-0.2, -0.14),
        ncols=8,
        fontsize=8,
        frameon=False,
        labelcolor=looks.TEXT,
    )
