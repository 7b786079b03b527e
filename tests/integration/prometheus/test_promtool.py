"""The rules before Prometheus's own tool: well formed, and right about made-up hours."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from integration.prometheus.story import Story
from support.prometheus_server import programs
from support.watched_run import RULES

pytestmark = pytest.mark.integration

TESTS = Path(__file__).with_name("rules_test.yaml")
CONFIG = RULES[0].parents[1] / "prometheus.yaml"


def promtool(*words: str, given: bytes = b"") -> str:
    found = programs()
    if found is None:
        pytest.skip("no promtool on this machine, and apt cannot bring one")
    done = subprocess.run([found.promtool, *words], input=given, capture_output=True, timeout=50, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


def test_rules_and_configuration_are_well_formed():
    assert promtool("check", "rules", *map(str, RULES)).count("SUCCESS") == len(RULES)
    assert "SUCCESS: 2 rule files found" in promtool("check", "config", str(CONFIG))


@pytest.mark.timeout(300)
def test_the_metrics_page_is_as_prometheus_wants_it(story: Story):
    assert promtool("check", "metrics", given=story.page) == ""


def test_each_alert_fires_for_its_fault_and_clears(tmp_path: Path):
    tests = yaml.safe_load(TESTS.read_text())
    tested = {case["alertname"] for test in tests["tests"] for case in test["alert_rule_test"]}
    rules = [
        r for file in RULES for group in yaml.safe_load(file.read_text())["groups"] for r in group["rules"]
    ]
    assert tested == {rule["alert"] for rule in rules if "alert" in rule}
    tests["rule_files"] = [str(file) for file in RULES]
    named = {group["name"] for file in RULES for group in yaml.safe_load(file.read_text())["groups"]}
    assert set(tests["group_eval_order"]) == named
    made = tmp_path / "rules_test.yaml"
    made.write_text(yaml.safe_dump(tests))
    assert "SUCCESS" in promtool("test", "rules", str(made))
