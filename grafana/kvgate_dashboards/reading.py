"""The dashboards read back from their JSON, as Grafana would: which panels there are, and what each asks.

It is the committed file that counts, so pictures and tests start from it and not from the code that made it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "dashboards"
ALL = ".*"


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str
    ref: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; `raw` is the whole of it."""

    board: str
    section: str
    raw: Mapping[str, Any]

    @property
    def title(self) -> str:
        return str(self.raw["title"])

    @property
    def kind(self) -> str:
        return str(self.raw["type"])

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What holds for all of its values: unit, thresholds, mappings."""
        found: Mapping[str, Any] = self.raw.get("fieldConfig", {}).get("defaults", {})
        return found

    @property
    def queries(self) -> tuple[Query, ...]:
        return tuple(
            Query(t["expr"], t.get("legendFormat", ""), t["refId"]) for t in self.raw.get("targets", ())
        )

    def __str__(self) -> str:
        return f"{self.board}: {self.title}"


def boards() -> dict[str, dict[str, Any]]:
    """uid → the dashboard."""
    read = (json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json")))
    return {board["uid"]: board for board in read}


def panels(board: Mapping[str, Any]) -> Iterator[Panel]:
    """All panels but the rows, each with the title of its row."""
    section = ""
    for panel in board["panels"]:
        if panel["type"] == "row":
            section = panel["title"]
        else:
            yield Panel(board["uid"], section, panel)


def filled(expr: str, *, rate_s: int, range_s: int, chosen: Mapping[str, str] | None = None) -> str:
    """The query with Grafana's variables put in: the two intervals, and what a reader has chosen."""
    text = expr.replace("$__rate_interval", f"{rate_s}s").replace("$__range", f"{range_s}s")
    return re.sub(r"\$(pool|tenant|engine)\b", lambda found: (chosen or {}).get(found[1], ALL), text)


def label_values(query: str) -> tuple[str, str]:
    """The selector and the label of a variable's query."""
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
    if found is None:
        raise ValueError(f"not understood: {query}")
    return found[1], found[2]


def legend(query: Query, labels: Mapping[str, str]) -> str:
    """The name of a series."""
    if not query.legend:
        return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), query.legend)
