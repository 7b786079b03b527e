"""Every panel of every dashboard can be drawn from the run, also by the command."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from integration.prometheus.story import Story
from kvgate_dashboards.drawing import COLUMN_IN, COLUMNS, DPI, picture
from kvgate_dashboards.reading import Panel, boards, panels
from kvgate_dashboards.runbook import UID
from kvgate_dashboards.view import View
from support.watched_run import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def one_of_each() -> list[Panel]:
    """The first panel of each kind."""
    every = [panel for uid, board in boards().items() if uid != UID for panel in panels(board)]
    return list({panel.kind: panel for panel in reversed(every)}.values())


def test_every_kind_of_panel_can_be_drawn(story: Story):
    chosen = one_of_each()
    assert {panel.kind for panel in chosen} == {"stat", "bargauge", "timeseries", "state-timeline", "table"}
    view = View(story.run.prometheus, story.begin_s, story.overload_end_s, 5, {})
    for panel in chosen:
        with Image.open(io.BytesIO(picture([panel], view, "A title"))) as drawn:
            assert drawn.width == round(COLUMNS * COLUMN_IN * DPI)
            assert len(drawn.convert("RGB").getcolors(1_000_000) or ()) > 50, "an empty page has fewer"


def test_the_command_draws_chosen_rows(story: Story, tmp_path: Path):
    out = tmp_path / "engines.png"
    where = ["--prometheus", story.run.prometheus.url, "--last", "60s", "--scrape", "1s", "--out", str(out)]
    command = [sys.executable, str(ROOT / "grafana/render.py"), "--board", "kvgate-engines", *where]
    subprocess.run([*command, "--pool", "chat", "--section", "Are they well"], check=True, timeout=50)
    with Image.open(out) as drawn:
        assert drawn.format == "PNG"
    unknown = subprocess.run(
        [*command, "--section", "None such"], capture_output=True, text=True, check=False
    )
    assert unknown.returncode == 1
    assert "no such row: None such" in unknown.stderr
