"""Rules, runbook and provisioning: what they name is there, and every alert leads to a paragraph."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from kvgate.admission import Reason
from kvgate.telemetry.catalogue import METRICS, Across, Kind
from kvgate_dashboards.reading import boards
from kvgate_dashboards.runbook import FILE, anchor, paragraphs
from support.watched_run import in_seconds

GRAFANA = Path(__file__).parents[3] / "grafana"
FILES = sorted((GRAFANA / "rules").glob("*.yaml"))
RULES: list[dict[str, Any]] = [
    rule for file in FILES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in RULES if "record" in rule}
BY_NAME = {metric.name: metric for metric in METRICS}
BLAME_OF_CLIENTS = {
    Reason.TENANT_RATE,
    Reason.NEVER_FITS,
    Reason.UNAUTHORIZED,
    Reason.UNKNOWN_MODEL,
    Reason.BAD_REQUEST,
    Reason.TOO_LARGE,
    Reason.NOT_FOUND,
    Reason.METHOD_NOT_ALLOWED,
}
PLANNED = {Reason.DRAINING}
"""A rollout refuses for a moment; nobody should be woken."""

every_rule = pytest.mark.parametrize(
    "rule", RULES, ids=[str(r.get("alert") or r.get("record")) for r in RULES]
)


def stem(name: str) -> str:
    return re.sub(r"_(bucket|count|sum)$", "", name) if name not in BY_NAME else name


@every_rule
def test_a_rule_is_promql_of_metrics_that_exist(rule: dict[str, Any]):
    assert promql_parser.parse(rule["expr"]) is not None
    for name in re.findall(r"(?<![:\w])kvgate_\w+(?!\w*:)", rule["expr"]):
        assert stem(name) in BY_NAME, name
    for record in re.findall(r"\w+:kvgate_\w+:\w+", rule["expr"]):
        assert record in RECORDS, record


@every_rule
def test_counters_are_rated_and_gauges_are_not(rule: dict[str, Any]):
    for function, name in re.findall(r"(\w+)\((kvgate_\w+)(?:\{[^}]*\})?\[", rule["expr"]):
        assert (BY_NAME[stem(name)].kind is not Kind.GAUGE) == (function in {"rate", "increase"}), name


@every_rule
def test_what_all_processes_tell_of_the_same_thing_is_not_added_up(rule: dict[str, Any]):
    for found in re.finditer(r"(\w+) by \([\w, ]*\) \((?:\w+\()?(kvgate_\w+)", rule["expr"]):
        metric = BY_NAME[stem(found[2])]
        assert found[1] == ("sum" if metric.across is Across.SUM else "max")


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_it_is_and_leads_to_a_paragraph_and_a_board(alert: str):
    rule = ALERTS[alert]
    assert alert.startswith("Kvgate")
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard"}
    file, _, fragment = rule["annotations"]["runbook_url"].partition("#")
    assert (GRAFANA / file) == FILE
    assert fragment in {anchor(title) for title in paragraphs()}
    assert rule["annotations"]["dashboard"].removeprefix("/d/") in boards()


def test_every_paragraph_is_led_to():
    led = {rule["annotations"]["runbook_url"].partition("#")[2] for rule in ALERTS.values()}
    panels = {"what-would-help", "forecasts-too-low"}
    assert {anchor(title) for title in paragraphs()} == led | panels


@pytest.mark.parametrize("title", paragraphs())
def test_a_paragraph_says_what_it_means_and_what_to_do(title: str):
    if title == "What would help":
        return
    text = paragraphs()[title]
    assert text.startswith("**Means:**")
    assert "**Do" in text or "do:**" in text


def test_links_within_the_runbook_lead_somewhere():
    anchors = {anchor(title) for title in paragraphs()}
    links = re.findall(r"\]\(#([\w-]+)\)", FILE.read_text())
    assert links
    assert set(links) <= anchors


def test_every_reason_of_a_refusal_is_either_ours_or_the_clients():
    found = re.search(r'reason=~"([\w|]+)"', RECORDS["pool:kvgate_rejections:ratio_rate5m"]["expr"])
    assert found
    ours = {Reason(reason) for reason in found[1].split("|")}
    assert ours | BLAME_OF_CLIENTS | PLANNED == set(Reason)
    assert not ours & (BLAME_OF_CLIENTS | PLANNED)


def test_minutes_become_seconds_and_nothing_else_changes():
    rules = "interval: 15s\nfor: 2m\nexpr: a[5m] offset 10m + rate5m > 0.5"
    assert in_seconds(rules) == "interval: 1s\nfor: 2s\nexpr: a[5s] offset 10s + rate5m > 0.5"
    for file in FILES:
        assert not re.search(r"\[\d+m\]|for: \d+m|offset \d+m", in_seconds(file.read_text()))


# How it is brought up.


def test_prometheus_reads_the_rules_beside_its_file():
    config = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text())
    [pattern] = config["rule_files"]
    assert sorted(GRAFANA.glob(pattern)) == FILES
    assert "kvgate" in {job["job_name"] for job in config["scrape_configs"]}
    assert 'up{job="kvgate"}' in ALERTS["KvgateDown"]["expr"]


def test_grafana_finds_the_data_source_and_the_dashboards():
    [source] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    config = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text())
    assert source["type"] == "prometheus"
    assert source["isDefault"] is True, "the variable datasource begins with the default"
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/kvgate.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"] == "/etc/grafana/dashboards"


def test_the_readme_lists_every_alert_with_its_paragraph():
    readme = (GRAFANA / "README.md").read_text()
    rows = re.findall(
        r"^\| `(Kvgate\w+)` \| (\w+) \| .* \| \[.*\]\((RUNBOOK\.md#[\w-]+)\) \|$", readme, re.MULTILINE
    )
    rules = {
        name: (rule["labels"]["severity"], rule["annotations"]["runbook_url"])
        for name, rule in ALERTS.items()
    }
    assert {name: (severity, link) for name, severity, link in rows} == rules


@pytest.mark.parametrize("name", ["overview.png", "tenants.png", "engines.png"])
def test_pictures_are_there_and_small(name: str):
    picture = (GRAFANA / "images" / name).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000
    documents = [(GRAFANA / "README.md").read_text(), (GRAFANA.parent / "README.md").read_text()]
    assert any(f"images/{name})" in text for text in documents)
