"""The metrics: what the table says is what is exported, and no client can make the page grow."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kvgate.telemetry import RequestRecord, Telemetry
from kvgate.telemetry.catalogue import METRICS, Metric
from kvgate.telemetry.fairness import FairnessWindow, jain
from kvgate.telemetry.labels import OTHER
from kvgate.telemetry.metrics import TENANTS_MAX
from kvgate_policies.types import (
    Endpoint,
    EngineLimits,
    EngineShape,
    EngineUse,
    KVCost,
    LedgerView,
    Outcome,
    TenantRules,
    TenantUse,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

LIMITS = EngineLimits("http://a:1", EngineShape(16, 4096), blocks=100, seqs=8, prefill_tokens=8192)


@dataclass
class Gauges:
    kv_usage: float | None = 0.5
    running: float | None = 3
    waiting: float | None = 0
    preemptions: float | None = 7


@dataclass
class Status:
    id: str = "http://a:1"
    url: str = "http://a:1"
    state: str = "up"
    limits: EngineLimits | None = LIMITS
    gauges: Gauges | None = None
    gauges_age_s: float | None = 0.5
    elected: bool = True
    current: bool = True
    trust: float | None = 0.93
    bias: float | None = 1.0
    foreign_blocks: float | None = 0.0
    drift_blocks: float | None = 10.0
    stalls: int = 0


def a_view(*, reserved: int = 40, queued: int = 2) -> LedgerView:
    use = EngineUse(LIMITS, KVCost(reserved, 3, 512), reservations=3)
    return LedgerView((use,), queued, 1.5, totals={"bypasses": 4, "pins": 1}, tenants=(a_tenant("t"),))


def a_tenant(name: str, *, queued: int = 2, service: float = 900.0, weight: float = 4.0) -> TenantUse:
    rules = TenantRules(weight=weight)
    return TenantUse(
        name, rules, 40, 30, 60, reservations=3, queued=queued, oldest_wait_s=1.5, service=service
    )


def a_record(**changes: object) -> RequestRecord:
    record = RequestRecord(
        "r1", endpoint=Endpoint.CHAT, outcome=Outcome.SERVED, status=200, engine_id="http://a:1"
    )
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def families(telemetry: Telemetry) -> dict[str, Family]:
    page = generate_latest(telemetry.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(page)}


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(name, {"pool": "p", **labels})


def busy_telemetry() -> Telemetry:
    """One in which every metric has at least one sample."""
    telemetry = Telemetry("p")
    telemetry.watch(a_view, lambda: [Status(gauges=Gauges())])
    telemetry.arrived(Endpoint.CHAT, "t")
    telemetry.granted("t", 0.2)
    telemetry.rewritten("t")
    telemetry.requeued("busy")
    telemetry.rate_refused("t", "tokens_per_minute")
    telemetry.observed("t", "queued")
    telemetry.observe_gaps([0.01, 0.02, 0.7])
    telemetry.ledger.called("reserve", 0.003, ok=True)
    telemetry.ledger.called("reserve", 0.25, ok=False)
    for event in ("epoch_changed", "lease_lost", "mode_local", "alone_local", "stray_grant"):
        telemetry.ledger.happened(event)
    times = {"queue_s": 0.2, "engine_ttft_s": 0.3, "ttft_s": 0.5, "total_s": 2.0}
    tokens = {"prompt_tokens_counted": 110, "prompt_tokens_real": 100, "completion_tokens": 50}
    telemetry.ended(a_record(tenant="t", resends=1, **times, **tokens))
    telemetry.ended(
        a_record(tenant="t", engine_id=None, outcome=Outcome.REJECTED_QUEUE_FULL, reason="queue_full")
    )
    return telemetry


def family_name(metric: Metric) -> str:
    return metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name


class TestTable:
    def test_exactly_the_table_is_exported(self) -> None:
        exported = {name for name in families(busy_telemetry()) if name.startswith("kvgate_")}
        assert exported == {family_name(metric) for metric in METRICS}

    @pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
    def test_type_labels_and_help_are_those_of_the_table(self, metric: Metric) -> None:
        family = families(busy_telemetry())[family_name(metric)]
        assert family.type == metric.kind.value
        assert family.documentation == metric.meaning
        assert family.samples
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.label_names), sample

    def test_every_row_says_what_it_means_and_what_to_do(self) -> None:
        for metric in METRICS:
            assert metric.meaning.endswith("."), metric.name
            assert metric.when_it_moves.endswith("."), metric.name
            assert list(metric.buckets) == sorted(metric.buckets)

    def test_names_follow_the_conventions(self) -> None:
        names = [metric.name for metric in METRICS]
        assert len(names) == len(set(names))
        for metric in METRICS:
            assert re.fullmatch(r"kvgate_[a-z_]+", metric.name)
            assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name

    def test_rows_refer_only_to_metrics_that_exist(self) -> None:
        known = {metric.name.removeprefix("kvgate_") for metric in METRICS}
        for metric in METRICS:
            referred = re.findall(r"\b(?:see|See|Above|with|At) ([a-z]+(?:_[a-z]+)+)", metric.when_it_moves)
            assert set(referred) <= known, metric.name

    def test_openmetrics_accepts_the_page(self) -> None:
        page = generate_openmetrics(busy_telemetry().registry).decode()
        assert {f.name for f in parse_openmetrics(page)} >= {family_name(metric) for metric in METRICS}


class TestRequests:
    def test_a_served_request_is_counted_once(self) -> None:
        telemetry = busy_telemetry()
        labels = {"tenant": "t", "endpoint": "chat", "outcome": "served"}
        assert value(telemetry, "kvgate_requests_total", **labels) == 1
        assert value(telemetry, "kvgate_prompt_tokens_total", tenant="t") == 100
        assert value(telemetry, "kvgate_completion_tokens_total", tenant="t") == 50
        assert value(telemetry, "kvgate_upstream_resends_total") == 1
        assert value(telemetry, "kvgate_request_ttft_seconds_sum", part="engine") == 0.3

    def test_a_rejection_has_its_reason_and_no_tokens(self) -> None:
        telemetry = Telemetry("p")
        telemetry.ended(
            a_record(
                engine_id=None,
                outcome=Outcome.REJECTED_QUEUE_FULL,
                reason="queue_full",
                prompt_tokens_counted=9,
            )
        )
        assert value(telemetry, "kvgate_rejections_total", tenant="anonymous", reason="queue_full") == 1
        assert value(telemetry, "kvgate_prompt_tokens_total", tenant="anonymous") is None

    def test_a_request_without_outcome_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="r1 has no outcome"):
            Telemetry("p").ended(a_record(outcome=None))

    def test_the_estimate_is_compared_with_the_truth_unless_it_was_exact(self) -> None:
        telemetry = Telemetry("p")
        telemetry.ended(a_record(prompt_tokens_counted=80, prompt_tokens_real=100))
        telemetry.ended(a_record(prompt_tokens_counted=100, prompt_tokens_real=100, prompt_tokens_exact=True))
        bucket = "kvgate_prompt_estimate_ratio_bucket"
        assert value(telemetry, bucket, le="0.8") == 1
        assert value(telemetry, bucket, le="0.5") == 0
        assert value(telemetry, bucket, le="+Inf") == 1

    def test_gaps_are_counted_in_their_buckets(self) -> None:
        telemetry = busy_telemetry()
        bucket = "kvgate_inter_token_latency_seconds_bucket"
        assert value(telemetry, bucket, le="0.01") == 1
        assert value(telemetry, bucket, le="0.02") == 2
        assert value(telemetry, bucket, le="0.5") == 2
        assert value(telemetry, bucket, le="+Inf") == 3
        assert value(telemetry, "kvgate_inter_token_latency_seconds_sum") == pytest.approx(0.73)


class TestSharedLedger:
    def test_what_it_reports_is_counted(self) -> None:
        telemetry = busy_telemetry()
        assert value(telemetry, "kvgate_ledger_call_duration_seconds_count", call="reserve") == 2
        assert value(telemetry, "kvgate_ledger_call_failures_total", call="reserve") == 1
        assert value(telemetry, "kvgate_ledger_epoch_changes_total") == 1
        assert value(telemetry, "kvgate_ledger_leases_lost_total") == 1
        assert value(telemetry, "kvgate_ledger_mode_switches_total", mode="local") == 1
        assert value(telemetry, "kvgate_ledger_grants_alone_total", mode="local") == 1
        assert value(telemetry, "kvgate_ledger_repairs_total", cause="stray_grant") == 1

    def test_what_has_not_happened_is_a_zero(self) -> None:
        assert value(Telemetry("p"), "kvgate_ledger_epoch_changes_total") == 0
        assert value(Telemetry("p"), "kvgate_ledger_leases_lost_total") == 0

    @pytest.mark.parametrize(
        ("mode", "shown"),
        [
            ("memory", {"memory": 1}),
            ("redis", {"redis": 1, "local": 0, "closed": 0, "open": 0}),
            ("closed", {"redis": 0, "local": 0, "closed": 1, "open": 0}),
        ],
    )
    def test_one_mode_is_in_force(self, mode: str, shown: dict[str, int]) -> None:
        telemetry = Telemetry("p")
        telemetry.watch(lambda: LedgerView(mode=mode), list)
        samples = families(telemetry)["kvgate_ledger_mode"].samples
        assert {sample.labels["mode"]: sample.value for sample in samples} == shown


class TestBounds:
    def test_tenants_beyond_the_cap_share_one_name(self) -> None:
        telemetry = Telemetry("p")
        for number in range(TENANTS_MAX + 25):
            telemetry.granted(f"tenant-{number}", 0.0)
        grants = families(telemetry)["kvgate_grants"].samples
        assert len(grants) == TENANTS_MAX + 1
        assert value(telemetry, "kvgate_grants_total", tenant=OTHER) == 25
        telemetry.granted("tenant-0", 0.0)
        assert value(telemetry, "kvgate_grants_total", tenant="tenant-0") == 2

    def test_ten_thousand_hostile_requests_make_few_series(self) -> None:
        telemetry = Telemetry("p")
        for number in range(10_000):
            record = a_record(tenant=f"t{number}", model=f"model-{number}", request_id=f"id-{number}")
            telemetry.ended(record)
        page = generate_latest(telemetry.registry).decode()
        assert len([line for line in page.splitlines() if line.startswith("kvgate_")]) < 500
        assert "model-" not in page
        assert "id-" not in page


class TestTenants:
    def test_each_is_shown_as_the_ledger_has_it(self) -> None:
        telemetry = busy_telemetry()
        shown = {
            "queue_depth": 2, "queue_oldest_wait_seconds": 1.5, "reserved_blocks": 40, "guarantee_blocks": 30,
            "limit_blocks": 60, "weight": 4, "service_tokens": 900,
        }  # fmt: skip
        for name, number in shown.items():
            assert value(telemetry, f"kvgate_tenant_{name}", tenant="t") == number, name
        assert value(telemetry, "kvgate_rate_refusals_total", tenant="t", budget="tokens_per_minute") == 1
        assert value(telemetry, "kvgate_observed_total", tenant="t", would="queued") == 1

    def test_those_beyond_the_cap_share_a_row_where_a_sum_means_something(self) -> None:
        telemetry = Telemetry("p", tenants_max=2)
        telemetry.watch(lambda: LedgerView(tenants=tuple(a_tenant(f"t{n}") for n in range(5))), list)
        samples = families(telemetry)["kvgate_tenant_queue_depth"].samples
        assert {s.labels["tenant"]: s.value for s in samples} == {"t0": 2, "t1": 2, OTHER: 6}
        assert value(telemetry, "kvgate_tenant_queue_oldest_wait_seconds", tenant=OTHER) == 1.5
        assert value(telemetry, "kvgate_tenant_weight", tenant=OTHER) is None

    def test_the_index_is_over_what_those_who_waited_got_meanwhile(self) -> None:
        window = FairnessWindow(60.0)
        served = {"even": 1000.0, "odd": 0.0}
        assert window.index(0.0, [a_tenant(n, service=s, weight=1) for n, s in served.items()]) == 1.0
        served = {"even": 1300.0, "odd": 300.0}
        assert window.index(10.0, [a_tenant(n, service=s, weight=1) for n, s in served.items()]) == 1.0
        served = {"even": 1900.0, "odd": 300.0}
        index = window.index(20.0, [a_tenant(n, service=s, weight=1) for n, s in served.items()])
        assert index == pytest.approx(jain([900.0, 300.0]))
        late = a_tenant("late", service=1e6, weight=1)
        assert window.index(30.0, [late]) == 1.0  # did not wait before
        rest = [a_tenant(n, service=s, weight=1) for n, s in {"even": 2000.0, "odd": 1300.0}.items()]
        assert window.index(80.0, rest) == pytest.approx(jain([100.0, 1000.0]))  # the window has moved on

    def test_weights_are_taken_out(self) -> None:
        window, index = FairnessWindow(), 0.0
        for now_s, chat, batch in ((0.0, 0.0, 0.0), (5.0, 400.0, 100.0)):
            index = window.index(
                now_s, [a_tenant("chat", service=chat, weight=4), a_tenant("batch", service=batch, weight=1)]
            )
        assert index == 1.0

    def test_the_index_is_one_over_n_when_one_has_everything(self) -> None:
        assert jain([5.0, 0.0, 0.0, 0.0]) == 0.25
        assert jain([]) == jain([0.0, 0.0]) == jain([-3.0]) == 1.0


class TestScrape:
    def test_the_ledger_is_shown_as_it_is(self) -> None:
        telemetry = busy_telemetry()
        engine = {"engine": "http://a:1"}
        assert value(telemetry, "kvgate_queue_depth") == 2
        assert value(telemetry, "kvgate_queue_oldest_wait_seconds") == 1.5
        assert value(telemetry, "kvgate_ledger_capacity_blocks", **engine) == 100
        assert value(telemetry, "kvgate_ledger_reserved_blocks", **engine) == 40
        assert value(telemetry, "kvgate_ledger_reserved_seqs", **engine) == 3
        assert value(telemetry, "kvgate_ledger_reserved_prefill_tokens", **engine) == 512
        assert value(telemetry, "kvgate_engine_kv_blocks_in_use", **engine) == 50
        assert value(telemetry, "kvgate_ledger_drift_blocks", **engine) == 10
        assert value(telemetry, "kvgate_engine_preemptions_total", **engine) == 7
        assert value(telemetry, "kvgate_bypasses_total") == 4
        assert value(telemetry, "kvgate_ledger_mode", mode="memory") == 1

    def test_a_page_shows_the_snapshot_of_the_last_refresh(self) -> None:
        queued = [5]
        telemetry = Telemetry("p")
        telemetry.watch(lambda: a_view(queued=queued[0]), list)
        telemetry.refresh()
        queued[0] = 6
        assert value(telemetry, "kvgate_queue_depth") == 5
        telemetry.refresh()
        assert value(telemetry, "kvgate_queue_depth") == 6

    def test_an_engine_never_seen_has_no_numbers_but_a_state(self) -> None:
        telemetry = Telemetry("p")
        telemetry.watch(LedgerView, lambda: [Status(state="unknown", limits=None, drift_blocks=None)])
        engine = {"engine": "http://a:1"}
        assert value(telemetry, "kvgate_engine_up", **engine) == 0
        assert value(telemetry, "kvgate_engine_state", state="unknown", **engine) == 1
        assert value(telemetry, "kvgate_engine_state", state="up", **engine) == 0
        assert value(telemetry, "kvgate_engine_preemptions_total", **engine) is None
        assert value(telemetry, "kvgate_ledger_drift_blocks", **engine) is None

    def test_an_engine_s_own_numbers_are_told_by_the_process_that_scrapes_it(self) -> None:
        numbers = ("engine_kv_blocks_in_use", "engine_requests_running", "engine_preemptions_total")
        judged = ("engine_trust", "engine_bias", "engine_foreign_blocks", "ledger_drift_blocks")
        engine = {"engine": "http://a:1"}
        for current, elected in ((True, True), (False, True), (False, False)):
            telemetry = Telemetry("p")
            status = Status(gauges=Gauges(), current=current, elected=elected)
            telemetry.watch(a_view, partial(list[Status], [status]))
            for name in (*numbers, *judged):
                assert (value(telemetry, f"kvgate_{name}", **engine) is not None) == current, name
            age_s = value(telemetry, "kvgate_engine_gauges_age_seconds", **engine)
            assert (age_s is not None) == elected
            assert value(telemetry, "kvgate_engine_stalls_total", **engine) == 0

    def test_what_is_usable_is_the_ledger_s_word(self) -> None:
        telemetry = Telemetry("p")
        use = EngineUse(replace(LIMITS, blocks_usable=75), KVCost(40, 3, 512), reservations=3)
        telemetry.watch(lambda: LedgerView((use,)), list)
        assert value(telemetry, "kvgate_ledger_usable_blocks", engine="http://a:1") == 75
        assert value(telemetry, "kvgate_ledger_capacity_blocks", engine="http://a:1") == 100

    def test_the_registry_can_be_given(self) -> None:
        registry = CollectorRegistry()
        Telemetry("p", registry).granted("t", 1.0)
        assert registry.get_sample_value("kvgate_grants_total", {"pool": "p", "tenant": "t"}) == 1
