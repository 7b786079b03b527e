"""Every query of every panel, variable, rule and alert, evaluated by a real Prometheus on a real run.

None is refused, and none is empty: what must be empty in good health is named here, and is there once the fault has
been provoked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from integration.prometheus.story import BY_THE_MOMENT, Story
from kvgate_dashboards.reading import Panel, Query, boards, filled, label_values, panels
from support.watched_run import RULES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RATE_S = 5
"""As Grafana would choose it for a scrape each second: four of them, and one."""

SIGNS_OF_FAULTS = {
    ("What would help", "{{engine}} is down: bring it back"),
    ("What would help", "{{pool}}: the ledger is in mode {{mode}}. Bring Redis back"),
    ("What would help", "{{pool}}: the policy file was refused. /admin/policy says why"),
}
"""Title of the panel and legend of the query: never there in good health."""
MISHAPS = {
    ("Troubles of the shared ledger", "unanswered: {{call}}"),
    ("Troubles of the shared ledger", "went over to {{mode}}"),
    ("Troubles of the shared ledger", "started alone: {{mode}}"),
    ("Troubles of the shared ledger", "repaired: {{cause}}"),
    ("Queued again", "{{cause}}"),
}
"""Counters that begin with the first mishap: on a busy machine that may be one late answer, in good health too."""

ALERTS_IN_OVERLOAD = {"KvgateQueueGrowing", "KvgateHighRejectionRate", "KvgateTenantStarved"}
"""Those that an overload alone sets off; engines, ledger and policy are well all the while."""
ALERTS_THAT_TAKE_A_MINUTE = {"KvgateEngineMetricsOld"}
"""A bound in seconds stays one; rules_test.yaml tries it."""
ALERTS_OF_FAULTS = {
    "KvgatePreemptions",
    "KvgateDrift",
    "KvgateLedgerModeNotNormal",
    "KvgateEngineDown",
    "KvgateEngineStalled",
    "KvgatePolicyRefused",
    "KvgateDown",
}


def every_query() -> Iterator[tuple[Panel, Query]]:
    for board in boards().values():
        for panel in panels(board):
            for query in panel.queries:
                yield panel, query


def samples(story: Story, query: Query, begin_s: float, end_s: float) -> int:
    """How many numbers the query has in a stretch of time; raises what Prometheus says against it."""
    expr = filled(query.expr, rate_s=RATE_S, range_s=math.ceil(end_s - begin_s))
    rows = story.run.prometheus.ask_range(expr, begin_s, end_s, 1.0)
    return sum(not math.isnan(value) for row in rows.values() for _, value in row)


def test_no_query_is_refused_and_none_is_empty(story: Story):
    empty = {
        str(panel): query.expr
        for panel, query in every_query()
        if not samples(story, query, story.begin_s, story.end_s)
    }
    assert empty == {}


@pytest.mark.soak
@BY_THE_MOMENT
def test_in_health_only_the_signs_of_faults_are_empty(story: Story):
    empty = {
        (panel.title, query.legend)
        for panel, query in every_query()
        if not samples(story, query, story.begin_s, story.overload_end_s)
    }
    assert SIGNS_OF_FAULTS <= empty <= SIGNS_OF_FAULTS | MISHAPS


def test_the_variables_offer_what_there_is(story: Story):
    values: dict[str, set[str]] = {}
    for board in boards().values():
        for variable in board.get("templating", {}).get("list", []):
            if variable["type"] == "query":
                expr, label = label_values(filled(variable["query"], rate_s=RATE_S, range_s=60))
                found = story.run.prometheus.get(
                    f"label/{label}/values",
                    {"match[]": expr, "start": str(story.begin_s), "end": str(story.overload_end_s)},
                )
                assert values.setdefault(label, set(found)) == set(found)
    engines = {engine.url for engine in story.run.engines}
    assert values == {
        "pool": {"chat", "small"},
        "tenant": {"web", "jobs", "crawler", "trial"},
        "engine": engines,
    }


def test_a_chosen_pool_and_tenant_narrow_every_panel_down(story: Story):
    for panel, query in every_query():
        expr = filled(
            query.expr,
            rate_s=RATE_S,
            range_s=30,
            chosen={"pool": "nowhere", "tenant": "no one", "engine": "none"},
        )
        rows = story.run.prometheus.ask_range(expr, story.begin_s, story.end_s, 1.0)
        numbers = [value for row in rows.values() for _, value in row if not math.isnan(value)]
        assert not numbers, f"{panel} {expr}"


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for file in RULES
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    ]


def test_every_recording_rule_records(story: Story):
    names = [rule["record"] for rule in rules() if "record" in rule]
    assert names
    empty = [
        n for n in names if not story.run.prometheus.ask_range(n, story.begin_s, story.overload_end_s, 1.0)
    ]
    assert empty == []


def test_rules_are_evaluated_without_errors(story: Story):
    groups = story.run.prometheus.get("rules")["groups"]
    assert {rule["name"] for group in groups for rule in group["rules"]} == {
        str(rule.get("record") or rule.get("alert")) for rule in rules()
    }
    assert [r["lastError"] for group in groups for r in group["rules"] if r.get("lastError")] == []
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}


def fired(story: Story, begin_s: float, end_s: float, where: str = "") -> set[str]:
    rows = story.run.prometheus.ask_range(f'ALERTS{{alertstate="firing"{where}}}', begin_s, end_s, 1.0)
    return {dict(labels)["alertname"] for labels in rows}


@pytest.mark.soak
@BY_THE_MOMENT
def test_overload_sets_off_the_alerts_of_overload_and_no_other(story: Story):
    """In the other pool requests are over within half a second, as old as what is known of its engine: five looks at
    it, in place of twenty, can all be off to one side.
    """
    assert fired(story, story.begin_s, story.settled_s, ', pool!="small"') == ALERTS_IN_OVERLOAD
    assert fired(story, story.begin_s, story.settled_s) <= ALERTS_IN_OVERLOAD | {"KvgateDrift"}


def test_each_fault_sets_off_its_alert(story: Story):
    after = fired(story, story.settled_s, story.end_s)
    assert after >= ALERTS_OF_FAULTS
    assert {
        str(rule["alert"]) for rule in rules() if "alert" in rule
    } == ALERTS_IN_OVERLOAD | ALERTS_OF_FAULTS | ALERTS_THAT_TAKE_A_MINUTE


def test_every_alert_clears_when_its_cause_is_gone(story: Story):
    assert list(story.left) == []
