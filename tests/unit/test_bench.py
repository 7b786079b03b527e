"""The arithmetic of the benchmark's tables."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("relay_report")


def measured(report, candidate: str, cpu_us: float, errors: int = 0):
    return report.Measured("ns1", candidate, 10, 100.0, cpu_us, 5.0, 9.0, 4.0, 8.0, 1.0, errors)


def test_quantiles_are_values_that_were_seen(report):
    values = [float(value) for value in range(100, 0, -1)]
    assert report.quantile(values, 0.5) == 51.0
    assert report.quantile(values, 0.99) == 100.0
    assert report.quantile(values, 1.0) == 100.0
    assert math.isnan(report.quantile([], 0.5))


def test_medians_are_taken_by_test_and_candidate_and_errors_add_up(report):
    runs = [measured(report, "kvgate", cpu, errors=1) for cpu in (10.0, 900.0, 30.0)]
    row = report.medians([*runs, measured(report, "bare", 20.0)])["ns1", "kvgate"]
    assert row.cpu_us == 30.0
    assert row.errors == 3


def test_processor_time_is_shown_relative_to_the_bare_pass_through(report):
    rows = report.summary([measured(report, "kvgate", 30.0), measured(report, "bare", 20.0)])
    assert {row["candidate"]: row["cpu_to_bare"] for row in rows} == {"kvgate": 1.5, "bare": 1.0}


def test_without_the_bare_one_there_is_no_ratio(report):
    [row] = report.summary([measured(report, "kvgate", 30.0)])
    assert row["cpu_to_bare"] is None
