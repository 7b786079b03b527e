"""Tables and a plot."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean

from bench.admission.score import Score

ROW = (
    "good/s",
    "strict/s",
    "good",
    "victims",
    "preempt/1k",
    "KV use",
    "tok/s",
    "good tok/s",
    "TTFT 50",
    "TTFT 99",
    "stall 99",
    "gave up",
    "cut",
)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown, aligned."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def mean_of(scores: list[Score]) -> Score:
    """The mean of each number over the seeds."""
    return Score(**{field.name: fmean(getattr(one, field.name) for one in scores) for field in fields(Score)})


def plot(kept: list[dict[str, object]], path: Path) -> None:
    """Goodput over load, one panel for each workload. Raises SystemExit without matplotlib."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib") from None
    runs = [run for run in kept if "load" in run and run["limit"] == "unset" and not run["fair"]]
    names = list(dict.fromkeys(run["profile"] for run in runs))
    figure, panels = pyplot.subplots(1, len(names), figsize=(6 * len(names), 4), squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        _panel(panel, str(name), [run for run in runs if run["profile"] == name])
    figure.tight_layout()
    figure.savefig(path)


def _panel(panel: object, name: str, runs: list[dict[str, object]]) -> None:
    for policy in dict.fromkeys(str(run["policy"]) for run in runs):
        mine = [run for run in runs if run["policy"] == policy]
        loads = sorted({float(str(run["load"])) for run in mine})
        goodput = [
            fmean(float(str(run["goodput_per_s"])) for run in mine if run["load"] == load) for load in loads
        ]
        panel.plot(loads, goodput, marker="o", label=policy)  # type: ignore[attr-defined]
    panel.set(title=name, xlabel="load", ylabel="good requests per second", ylim=(0, None))  # type: ignore[attr-defined]
    panel.legend(fontsize=7)  # type: ignore[attr-defined]
