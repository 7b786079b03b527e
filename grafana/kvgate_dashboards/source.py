"""A Prometheus, asked over HTTP: what pictures are drawn from."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Protocol

ANSWER_S_MAX = 30.0
"""For one query; Prometheus itself gives up after two minutes."""

Labels = frozenset[tuple[str, str]]
Series = dict[Labels, list[tuple[float, float]]]
"""Labels → (time, value) in order."""


class Source(Protocol):
    def ask(self, query: str, at_s: float) -> dict[Labels, float]:
        """An instant query at a time of the wall clock, seconds."""
        ...

    def ask_range(self, query: str, start_s: float, end_s: float, step_s: float) -> Series:
        """A range query."""
        ...


class Prometheus:
    """`url` without a path: http://127.0.0.1:9090. What it refuses is raised as urllib's HTTPError."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def ask(self, query: str, at_s: float) -> dict[Labels, float]:
        rows = self._get("query", {"query": query, "time": f"{at_s:.3f}"})
        return {frozenset(row["metric"].items()): float(row["value"][1]) for row in rows}

    def ask_range(self, query: str, start_s: float, end_s: float, step_s: float) -> Series:
        asked = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return {
            frozenset(row["metric"].items()): [(float(at_s), float(value)) for at_s, value in row["values"]]
            for row in self._get("query_range", asked)
        }

    def _get(self, path: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:  # noqa: S310  the operator's own URL
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found
