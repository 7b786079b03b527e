"""Write the dashboards: `python -m kvgate_dashboards` (or `make dashboards`)."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate_dashboards import engines, overview, runbook, tenants, tuning
from kvgate_dashboards.board import Board, Section, to_json
from kvgate_dashboards.parts import words
from kvgate_dashboards.reading import FOLDER


def runbook_board() -> Board:
    """The paragraphs of RUNBOOK.md, two beside each other."""
    panels = [words(title, text, width=12, height=11) for title, text in runbook.paragraphs().items()]
    about = "What to do when an alert fires. The same as grafana/RUNBOOK.md."
    return Board(runbook.UID, "Runbook", about, [Section("", panels)], variables=False)


def files() -> Mapping[str, str]:
    """Name of the file → what it holds."""
    boards = (overview.board(), tenants.board(), engines.board(), tuning.board(), runbook_board())
    return {f"{board.uid}.json": to_json(board) for board in boards}


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    write()
