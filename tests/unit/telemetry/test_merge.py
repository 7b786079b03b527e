"""One page of several: what each counts is added, what all tell of the same thing is told once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kvgate.telemetry import Telemetry
from kvgate.telemetry.catalogue import METRICS, SHARED_BLOCKS, Across
from kvgate.telemetry.merge import STARTED, MergedPages
from kvgate_policies.types import EngineLimits, EngineShape, EngineUse, KVCost, LedgerView

LIMITS = EngineLimits("http://a:1", EngineShape(16, 4096), blocks=100, seqs=8, prefill_tokens=8192)
NAMES = ("worker 1", "worker 2")


def page(*, grants: int = 0, mode: str = "redis", queued: int = 0, waits_s: tuple[float, ...] = ()) -> str:
    """As a worker exports it."""
    telemetry = Telemetry("p")
    view = LedgerView((EngineUse(LIMITS, KVCost(40, 3, 512), 3),), queued, mode=mode, totals={"bypasses": 4})
    telemetry.watch(lambda: view, list)
    for wait_s in waits_s or (0.0,) * grants:
        telemetry.granted("t", wait_s)
    return generate_latest(telemetry.registry).decode()


def started(at_s: float, text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith(f"{STARTED} ")]
    return "\n".join([*lines, f"{STARTED} {at_s}", ""])


def value(pages: MergedPages, name: str, **labels: str) -> float | None:
    families = text_string_to_metric_families(pages.render().decode())
    return next((s.value for f in families for s in f.samples if (s.name, s.labels) == (name, labels)), None)


def merged(*texts: str) -> MergedPages:
    pages = MergedPages(NAMES)
    for name, text in zip(NAMES, texts, strict=False):
        pages.take(name, text)
    return pages


def test_counters_and_histograms_are_added() -> None:
    pages = merged(page(waits_s=(0.001, 3.0)), page(waits_s=(3.0,)))
    assert value(pages, "kvgate_grants_total", pool="p", tenant="t") == 3
    assert value(pages, "kvgate_queue_wait_seconds_bucket", pool="p", tenant="t", le="0.005") == 1
    assert value(pages, "kvgate_queue_wait_seconds_bucket", pool="p", tenant="t", le="+Inf") == 3
    assert value(pages, "kvgate_queue_wait_seconds_sum", pool="p", tenant="t") == pytest.approx(6.001)


def test_the_shared_ledger_is_told_once() -> None:
    pages = merged(page(queued=7), page(queued=7))
    assert value(pages, "kvgate_queue_depth", pool="p") == 7
    assert value(pages, "kvgate_ledger_reserved_blocks", pool="p", engine="http://a:1") == 40
    assert value(pages, "kvgate_bypasses_total", pool="p") == 4


def test_every_mode_that_some_worker_is_in_shows() -> None:
    pages = merged(page(mode="redis"), page(mode="local"))
    modes = {
        mode: value(pages, "kvgate_ledger_mode", pool="p", mode=mode) for mode in ("redis", "local", "open")
    }
    assert modes == {"redis": 1, "local": 1, "open": 0}


def test_a_worker_that_is_replaced_leaves_its_counts() -> None:
    pages = merged(started(1, page(grants=5)), started(1, page(grants=2)))
    pages.take("worker 1", started(2, page(grants=1)))
    assert value(pages, "kvgate_grants_total", pool="p", tenant="t") == 8
    pages.take("worker 1", started(2, page(grants=3)))
    pages.take("worker 1", started(3, page()))
    assert value(pages, "kvgate_grants_total", pool="p", tenant="t") == 10
    assert value(pages, "kvgate_queue_depth", pool="p") == 0


def test_of_a_silent_worker_the_counts_stay_and_the_gauges_go() -> None:
    pages = merged(page(grants=5, queued=9), page(grants=2, queued=8))
    both = value(pages, "process_resident_memory_bytes") or 0
    pages.miss("worker 1")
    assert value(pages, "kvgate_grants_total", pool="p", tenant="t") == 7
    assert value(pages, "kvgate_queue_depth", pool="p") == 8
    assert 0 < (value(pages, "process_resident_memory_bytes") or 0) < both
    pages.miss("worker 2")
    assert value(pages, "kvgate_grants_total", pool="p", tenant="t") == 7
    assert value(pages, "kvgate_queue_depth", pool="p") is None
    pages.take("worker 1", page(grants=5, queued=9))
    assert value(pages, "kvgate_queue_depth", pool="p") == 9


LIVES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["more", "anew", "silent"]), st.integers(1, 5)),
    max_size=20,
)


@given(LIVES)
def test_a_counter_never_goes_back_and_is_the_sum_of_all_lives(lives: list[tuple[str, str, int]]) -> None:
    pages, count, start = MergedPages(NAMES), dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    text = "# TYPE x_total counter\nx_total{{}} {}\n# TYPE process_start_time_seconds gauge\n"
    total = 0
    for name, what, number in lives:
        if what == "silent":
            pages.miss(name)
            continue
        if what == "anew":
            start[name] += 1
            count[name] = 0
        count[name] += number
        total += number
        pages.take(name, text.format(count[name]) + f"{STARTED} {start[name]}\n")
        assert value(pages, "x_total") == total


def test_the_merged_page_is_a_page() -> None:
    pages = merged(page(grants=2), page(grants=1, waits_s=(0.5,)))
    single = {f.name: f for f in text_string_to_metric_families(page(grants=2))}
    both = {f.name: f for f in text_string_to_metric_families(pages.render().decode())}
    assert both.keys() == single.keys()
    for name, family in both.items():
        assert (family.type, family.documentation) == (single[name].type, single[name].documentation)
        assert {tuple(s.labels) for s in family.samples} == {tuple(s.labels) for s in single[name].samples}
    names = {family.name for family in parse_openmetrics(pages.render(openmetrics=True).decode())}
    assert names == single.keys()


def openmetrics_page(waits_s: dict[str, float], tenant: str = "t") -> str:
    """As a worker exports it; `waits_s` by trace."""
    telemetry = Telemetry("p")
    for trace_id, wait_s in waits_s.items():
        telemetry.granted(tenant, wait_s, trace_id)
    return str(generate_openmetrics(telemetry.registry), "utf-8")


def exemplars(page_: bytes) -> dict[str, str]:
    """By upper bound of the bucket."""
    return {
        sample.labels["le"]: sample.exemplar.labels["trace_id"]
        for family in parse_openmetrics(page_.decode())
        for sample in family.samples
        if sample.exemplar is not None
    }


def test_each_bucket_keeps_its_latest_exemplar() -> None:
    first = openmetrics_page({"aa": 0.001, "bb": 3.0})
    second = openmetrics_page({"cc": 3.0})
    for texts in ((first, second), (second, first)):
        pages = merged(*texts)
        assert exemplars(pages.render(openmetrics=True)) == {"0.005": "aa", "5.0": "cc"}
        assert b"trace_id" not in pages.render()
        assert value(pages, "kvgate_queue_wait_seconds_count", pool="p", tenant="t") == 3


NAMES_OF_TENANTS = ('a" # {trace_id="x"} 1.0 2', "b} # {", "c\\", "d\ne", "f g", "h\x85i\u2028j", "k{")


@pytest.mark.parametrize("tenant", NAMES_OF_TENANTS)
def test_names_may_look_like_syntax(tenant: str) -> None:
    pages = merged(*[openmetrics_page({"aa": 0.001}, tenant)] * 2)
    assert value(pages, "kvgate_grants_total", pool="p", tenant=tenant) == 2
    assert exemplars(pages.render(openmetrics=True)) == {"0.005": "aa"}


def test_what_is_no_page_is_refused() -> None:
    for text in ("<html>", "x_total{} one", 'x_bucket{le="1"} # {trace_id="a"} 1'):
        with pytest.raises(ValueError, match=r"."):
            MergedPages(NAMES).take("worker 1", text)


def test_only_what_each_has_a_part_of_is_summed() -> None:
    """Gauges tell of what all see; but who shares with whom, each process knows of its own requests."""
    for metric in METRICS:
        parts = metric.kind != "gauge" or metric is SHARED_BLOCKS
        assert (metric.across is Across.SUM) <= parts, metric.name
        assert metric.kind != "histogram" or metric.across is Across.SUM, metric.name
