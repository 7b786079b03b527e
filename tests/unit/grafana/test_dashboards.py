"""The dashboards that are committed: made by the code, readable by Grafana, honest about what they show."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from kvgate.telemetry.catalogue import METRICS, Across, Kind, Metric
from kvgate.telemetry.scrape import ENGINE_STATES
from kvgate_dashboards import ClassicDashboard, engines
from kvgate_dashboards.__main__ import files
from kvgate_dashboards.reading import FOLDER, Panel, Query, boards, filled, label_values, panels
from kvgate_dashboards.runbook import UID as RUNBOOK
from kvgate_dashboards.runbook import panel_id, paragraphs

BOARDS = boards()
PANELS = [panel for board in BOARDS.values() for panel in panels(board)]
DRAWN = [panel for panel in PANELS if panel.kind != "text"]
QUERIES = [(panel, query) for panel in DRAWN for query in panel.queries]
BY_NAME = {metric.name: metric for metric in METRICS}
AGAIN = "run: make dashboards"
NAME = re.compile(r"\bkvgate_\w+")

every_panel = pytest.mark.parametrize("panel", DRAWN, ids=str)
every_query = pytest.mark.parametrize(("panel", "query"), QUERIES, ids=[f"{p}-{q.ref}" for p, q in QUERIES])


def metric_of(name: str) -> Metric:
    """Series of a histogram have endings of their own."""
    stem = re.sub(r"_(bucket|count|sum)$", "", name)
    found = BY_NAME.get(name) or BY_NAME.get(stem)
    assert found is not None, f"{name} is not in the catalogue"
    return found


def parsed(query: Query) -> promql_parser.Expr:
    return promql_parser.parse(filled(query.expr, rate_s=60, range_s=3600))


# What is generated.


def test_the_files_are_what_the_code_makes():
    assert {file.name: file.read_text() for file in FOLDER.glob("*.json")} == dict(files()), AGAIN


def test_uids_and_numbers_of_panels_do_not_change_by_themselves():
    assert list(BOARDS) == [
        "kvgate-engines",
        "kvgate-overview",
        "kvgate-runbook",
        "kvgate-tenants",
        "kvgate-tuning",
    ]
    for board in BOARDS.values():
        numbers = [panel["id"] for panel in board["panels"]]
        assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("uid", BOARDS)
def test_grafanas_own_types_read_it_and_lose_nothing(uid: str):
    read = ClassicDashboard.from_json(BOARDS[uid])
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == BOARDS[uid]
    assert BOARDS[uid]["schemaVersion"] == 42
    assert BOARDS[uid]["editable"] is False
    assert BOARDS[uid]["tags"] == ["kvgate"]
    assert 8 <= len(uid) <= 40


@pytest.mark.parametrize("uid", BOARDS)
def test_panels_lie_beside_each_other_on_the_grid(uid: str):
    taken: Counter[tuple[int, int]] = Counter()
    for panel in BOARDS[uid]["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        taken.update(
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        )
    assert set(taken.values()) == {1}


# What each panel says.


@every_panel
def test_a_panel_says_what_it_shows_and_what_to_do(panel: Panel):
    shows, separator, do = panel.raw["description"].partition("\n\n**Do:** ")
    assert separator
    assert len(shows) > 10
    assert len(do) > 10


@every_panel
def test_a_panel_has_a_unit_thresholds_and_a_data_source(panel: Panel):
    assert panel.defaults["unit"]
    steps = panel.defaults["thresholds"]["steps"]
    assert steps[0]["value"] is None, "the first step is the base"
    assert all(step["value"] is not None and step["color"] for step in steps[1:])
    for has_it in (panel.raw, *panel.raw["targets"]):
        assert has_it["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_titles_are_unique_within_a_board():
    twice = [key for key, n in Counter((p.board, p.section, p.title) for p in PANELS).items() if n > 1]
    assert twice == []


@every_panel
def test_its_numbers_have_names(panel: Panel):
    if panel.kind == "table":
        return
    assert all(query.legend for query in panel.queries)
    legends = [query.legend for query in panel.queries]
    assert len(set(legends)) == len(legends)


def test_the_first_row_answers_the_first_question():
    first = [panel.title for panel in panels(BOARDS["kvgate-overview"])][:5]
    assert first == ["Waiting now", "Oldest wait", "Who waits", "Why: what is full", "What would help"]
    rows = {panel.raw["gridPos"]["y"] for panel in list(panels(BOARDS["kvgate-overview"]))[:5]}
    assert rows == {1}, "all in the first row"


def test_every_state_of_an_engine_has_a_word_and_a_colour():
    assert [word for word, _ in engines.STATE_NAMES.values()] == list(ENGINE_STATES)
    assert len({colour for _, colour in engines.STATE_NAMES.values()}) == len(ENGINE_STATES)


# What each query asks.


@every_query
def test_a_query_is_promql(panel: Panel, query: Query):
    assert parsed(query) is not None


@every_query
def test_every_metric_in_a_query_is_exported(panel: Panel, query: Query):
    names = NAME.findall(query.expr)
    assert names
    for name in names:
        metric_of(name)


@every_query
def test_rates_are_of_counters_and_look_back_as_grafana_says(panel: Panel, query: Query):
    for function, name, window in calls(query.expr):
        metric = metric_of(name)
        rising = metric.kind is not Kind.GAUGE
        assert rising == (function in {"rate", "increase"}), f"{function} of a {metric.kind}"
        assert window == {"rate": "$__rate_interval", "deriv": "$__rate_interval"}.get(function, "$__range")
    bare = [name for name in NAME.findall(query.expr) if metric_of(name).kind is not Kind.GAUGE]
    assert len(bare) == sum(function in {"rate", "increase"} for function, _, _ in calls(query.expr)), (
        "a bare counter"
    )


@every_query
def test_what_all_processes_tell_of_the_same_thing_is_not_added_up(panel: Panel, query: Query):
    """The innermost aggregation around a metric takes the largest of them, or adds up what each counts for itself."""
    for found in re.finditer(r"(\w+)(?: by \([\w, ]*\))? \((?:\w+\()?(kvgate_\w+)", query.expr):
        metric = metric_of(found[2])
        if found[1] == "count" or "kvgate_engine_state" in found[2]:
            continue
        assert found[1] == ("sum" if metric.across is Across.SUM else "max"), query.expr


@every_query
def test_a_metric_is_narrowed_down_by_the_variables_it_has_labels_for(panel: Panel, query: Query):
    for name, inside in re.findall(r"(kvgate_\w+)\{([^}]*)\}", query.expr):
        wanted = {label for label in ("pool", "tenant", "engine") if label in metric_of(name).label_names}
        assert set(re.findall(r'(\w+)=~"\$\1"', inside)) == wanted
    assert len(re.findall(r"kvgate_\w+\{", query.expr)) == len(NAME.findall(query.expr)), (
        "a metric without a selector"
    )


@every_query
def test_labels_in_a_query_are_those_of_its_metrics(panel: Panel, query: Query):
    known = {"le"} | {label for name in NAME.findall(query.expr) for label in metric_of(name).label_names}
    for labels in re.findall(r"\b(?:by|on) \(([\w, ]*)\)", query.expr):
        assert set(labels.split(", ")) <= known
    assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= known


def test_every_metric_is_on_a_panel():
    shown = {metric_of(name).name for _, query in QUERIES for name in NAME.findall(query.expr)}
    assert set(BY_NAME) - shown == set()


def calls(expr: str) -> list[tuple[str, str, str]]:
    """Functions over a window: their name, the metric, the window."""
    return re.findall(r"(\w+)\((kvgate_\w+)\{[^}]*\}\[([^\]]+)\]\)", expr)


# Variables and links.


def drawn_boards() -> Iterator[Mapping[str, Any]]:
    return (board for uid, board in BOARDS.items() if uid != RUNBOOK)


def test_the_variables_are_the_same_on_all_boards_so_that_links_carry_them_over():
    for board in drawn_boards():
        listed = {variable["name"]: variable for variable in board["templating"]["list"]}
        assert list(listed) == ["datasource", "pool", "tenant", "engine"]
        for name in ("pool", "tenant", "engine"):
            selector, label = label_values(listed[name]["query"])
            assert label == name
            assert name in metric_of(NAME.findall(selector)[0]).label_names
            assert (listed[name]["includeAll"], listed[name]["multi"], listed[name]["allValue"]) == (
                True,
                True,
                ".*",
            )


def test_the_boards_link_to_each_other():
    for board in BOARDS.values():
        [link] = board["links"]
        assert (link["type"], link["tags"], link["keepTime"], link["includeVars"]) == (
            "dashboards",
            ["kvgate"],
            True,
            True,
        )


def test_links_to_the_runbook_lead_to_its_paragraphs():
    titles = {panel.raw["id"]: panel.title for panel in panels(BOARDS[RUNBOOK])}
    links = [link for panel in DRAWN for link in panel.raw.get("links", ())]
    assert len(links) > 20
    for link in links:
        found = re.fullmatch(r"/d/([\w-]+)\?viewPanel=(\d+)", link["url"])
        assert found
        assert found[1] == RUNBOOK
        assert link["title"] == f"Runbook: {titles[int(found[2])]}"


def test_the_runbook_board_is_the_runbook():
    texts = {panel.title: panel.raw["options"]["content"] for panel in panels(BOARDS[RUNBOOK])}
    assert texts == paragraphs()
    with pytest.raises(ValueError, match="no paragraph"):
        panel_id("Nothing of the kind")
