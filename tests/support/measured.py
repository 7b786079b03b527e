"""Tables of what tests measured, on their way from whichever worker of pytest ran the test to the end of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

PROPERTY = "measured"
"""Of a test's `user_properties`, which pytest brings along with its report."""


def as_property(lines: Sequence[str]) -> tuple[str, Any]:
    return PROPERTY, [*lines]


def lines_in(reports: Iterable[Any]) -> Iterator[str]:
    """All lines of all tables, each once: the report of a test's end has them again."""
    for report in reports:
        if report.when == "call":
            for name, lines in report.user_properties:
                yield from lines if name == PROPERTY else ()
