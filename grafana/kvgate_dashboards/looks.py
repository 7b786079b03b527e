"""How numbers and colours look in a picture: Grafana's dark theme, near enough to recognise a panel by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

PAGE, PANEL, TEXT, FAINT, GRID = "#111217", "#181b1f", "#d8d9da", "#8e8e8e", "#2c3235"
PALETTE = (
    *("#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#b877d9", "#ff9899"),
    *("#8ab8ff", "#fa6400", "#ca95e5", "#56a64b", "#ffb357", "#3274d9"),
    *("#e02f44", "#a352cc", "#c8f2c2", "#fff899", "#c0d8ff", "#6ed0e0"),
    *("#ef843c", "#ba43a9", "#508642", "#705da0", "#cca300", "#447ebc"),
)
NAMED = {
    "green": "#73bf69",
    "yellow": "#f2cc0c",
    "orange": "#ff780a",
    "red": "#f2495c",
    "dark-red": "#c4162a",
    "blue": "#5794f2",
    "purple": "#b877d9",
}


def colour(name: str) -> str:
    """A colour by Grafana's name, or as it is."""
    return NAMED.get(name, name)


def threshold_colour(value: float, steps: Sequence[Mapping[str, Any]]) -> str:
    """The colour of the last step that the value has reached."""
    reached = [step for step in steps if step["value"] is None or value >= step["value"]]
    return colour(str(reached[-1]["color"]))


def written(value: float, unit: str) -> str:
    """A number with its unit, short."""
    if math.isnan(value):
        return "–"
    if unit == "percentunit":
        return f"{value * 100:.0f} %"
    if unit == "s":
        return f"{value * 1000:.0f} ms" if 0 < abs(value) < 1 else f"{value:.3g} s"
    suffix = {"reqps": "/s"}.get(unit, unit.removeprefix("suffix: ") if unit.startswith("suffix:") else "")
    return f"{_short(value)} {suffix}".strip()


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:.3g}k"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"
