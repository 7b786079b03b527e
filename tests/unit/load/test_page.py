"""The charts and the page: well-formed, self-contained, and with everything that the terminal has."""

from __future__ import annotations

import html
import io
import json
import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.load import EngineSample, Objective, Outcome, Result, StreamEnd, StreamRecord, report, result_json
from kvgate.load.ceiling import Ceiling, Probe
from kvgate.load.chart import Chart, Line, legend, svg
from kvgate.load.page import page, shares
from kvgate.load.score import by_tenant, score
from kvgate.load.tables import print_result, seconds


def parsed(text: str) -> ET.Element:
    """Raises for what is not well-formed; nothing here comes from outside."""
    return ET.fromstring(text)  # noqa: S314


POINTS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=30)


def chart(*points: tuple[float, float], **more: Any) -> str:
    return svg(Chart("t", "x", "y", [Line("one", points)], **more))


@given(POINTS, st.booleans())
def test_every_chart_is_xml_and_stays_in_its_frame(points: list[tuple[float, float]], log_x: bool) -> None:
    drawn = chart(*points, log_x=log_x, marked=True)
    root = parsed(drawn)
    for circle in root.iter("circle"):
        assert -1 <= float(circle.attrib["cx"]) <= 561
        assert -1 <= float(circle.attrib["cy"]) <= 301


def test_nothing_to_draw() -> None:
    assert "nothing to draw" in chart()
    assert "nothing to draw" in chart((math.inf, 1.0), (0.0, math.nan))
    assert "nothing to draw" in chart((0.0, 1.0), log_x=True)


def test_many_points_are_thinned_and_the_last_one_is_kept() -> None:
    root = parsed(chart(*((float(n), float(n % 7)) for n in range(10_001))))
    [line] = root.iter("polyline")
    points = line.attrib["points"].split()
    assert len(points) < 700
    assert float(points[-1].split(",")[0]) == pytest.approx(548, abs=1)


def test_names_are_escaped() -> None:
    drawn = svg(Chart('<a "b">', "<x>", "&y", [Line("<script>", [(1.0, 1.0)])]))
    assert parsed(drawn) is not None
    assert "<script>" not in drawn + legend([Line("<script>", []), Line("b", [])])


def test_shares() -> None:
    assert shares([3.0, 1.0]) == [(1.0, 50.0), (3.0, 100.0)]
    assert shares([]) == []
    assert len(shares([float(n) for n in range(10_000)])) <= 502


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0315, "31.5 ms"), (1.239, "1.24 s"), (120.0, "120 s")]
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


def outcome(name: str, preemptions: int = 3, **more: Any) -> Outcome:
    records = [
        StreamRecord(0, "u", 3, 1.0, [1.5, 1.6, 1.7], StreamEnd.COMPLETED, 1.8, tenant="a"),
        StreamRecord(1, "u", 3, 1.0, [], StreamEnd.REFUSED, 1.1, status=429, reason="queue_full", tenant="b"),
    ]
    samples = [EngineSample("http://e", 1.0 + n, 0.5, 2, 1, n * preemptions) for n in range(2)]
    known: dict[str, Any] = {
        "name": name, "url": "http://u", "report": report(records, samples), "score": score(records, Objective(), 0.8),
        "tenants": by_tenant(records, Objective(), 0.8), "records": tuple(records), "samples": tuple(samples),
        "started_s": 1.0, "left_out": 4, "interrupted": False, "watched": True,
    }  # fmt: skip
    return Outcome(**(known | more))


def results() -> list[Result]:
    ceiling = Ceiling(192, 129, (Probe(1, outcome("1", 0)), Probe(2, outcome("2"))), 12)
    return [
        Result("what was sent", Objective(), (outcome("direct"), outcome("kvgate & co", 0))),
        Result("sessions", Objective(), (), ceiling, interrupted=True),
        Result("nothing", Objective(), (outcome("none", report=None, records=(), samples=(), tenants={}),)),
        Result("nothing at all", Objective()),
    ]


@pytest.mark.parametrize("result", results(), ids=lambda result: result.what)
def test_the_page_needs_nothing_else(result: Result) -> None:
    text = page(result)
    assert not re.search(r"<script|https?://(?!u|e)|@import|url\(|<link|<img", text)
    assert "prefers-color-scheme: dark" in text
    body = text[text.index("<body>") : text.index("</body>") + 7]
    assert parsed(body.replace("&nbsp;", " ")) is not None


def test_the_page_and_the_terminal_show_the_same_table() -> None:
    result = results()[0]
    file = io.StringIO()
    print_result(result, file)
    told, shown = file.getvalue(), html.unescape(page(result))
    for said in (
        "kvgate & co",
        "completed",
        "1 of 2",
        "error: queue_full",
        "preemptions",
        "streams that froze",
    ):
        assert said in told
        assert said in shown
    assert "4 requests were not sent, because --in-flight-max" in told


def test_an_interrupted_search_says_so() -> None:
    file = io.StringIO()
    print_result(results()[1], file)
    told = " ".join(file.getvalue().split())
    assert "Stopped early" in told
    assert "it should be 12" in told
    assert "Stopped early" in page(results()[1])


@pytest.mark.parametrize("result", results(), ids=lambda result: result.what)
def test_the_json(result: Result) -> None:
    told = json.loads(json.dumps(result_json(result)))
    assert told["interrupted"] is result.interrupted
    assert [run["name"] for run in told["runs"]] == [one.name for one in result.outcomes]
    for run in told["runs"]:
        assert {"ttft_p99_s", "itl_p99_s", "good", "errors", "preemptions", "tenants"} <= run.keys()
    if told["ceiling"]:
        assert told["ceiling"]["planned_sessions"] == 12
        assert [probe["sessions"] for probe in told["ceiling"]["probes"]] == [1, 2]


def test_notes_tell_what_the_numbers_do_not() -> None:
    cut = StreamRecord(0, "u", 3, 1.0, [1.5], StreamEnd.INTERRUPTED, 1.8)
    lost = outcome("o", records=(cut,), report=None, left_out=0)
    file = io.StringIO()
    print_result(Result("w", Objective(), (lost,)), file)
    assert "1 streams still ran when the time was over" in file.getvalue()
    assert "no engine told its metrics" in file.getvalue()
