"""A scrape is cheap with as many tenants and engines as there are in a large house."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from kvgate.telemetry.cardinality import series_max
from kvgate.telemetry.metrics import TENANTS_MAX

ROOT = Path(__file__).parents[2]
SLACK = 10.0
"""A processor that others use as well takes longer for the same work, in processor time too."""


@pytest.fixture
def scrape(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("bench.scrape")


def test_five_hundred_tenants_and_a_hundred_engines(scrape: Any) -> None:
    telemetry = scrape.a_busy_telemetry()
    page = generate_latest(telemetry.registry)
    assert 2_000 < scrape.series_of(page) <= series_max(scrape.ENGINES)
    whole_ms = scrape.cpu_ms(lambda: (telemetry.refresh(), generate_latest(telemetry.registry)))
    assert whole_ms < scrape.BOUND_MS * SLACK
    assert scrape.cpu_ms(telemetry.refresh) < whole_ms / 4, "what happens on the event loop is the small part"


def test_tenants_beyond_the_cap_cost_nothing(scrape: Any) -> None:
    pages = [
        generate_latest(scrape.a_busy_telemetry(tenants, 2).registry)
        for tenants in (TENANTS_MAX + 1, 10 * TENANTS_MAX)
    ]
    few, many = (scrape.series_of(page) for page in pages)
    assert few == many


def test_the_page_of_several_workers_costs_less_than_theirs(scrape: Any) -> None:
    telemetry = scrape.a_busy_telemetry()
    page = generate_latest(telemetry.registry)
    one_ms = scrape.cpu_ms(lambda: generate_latest(telemetry.registry))
    assert scrape.cpu_ms(lambda: scrape.merged(page)) < one_ms * scrape.WORKERS
