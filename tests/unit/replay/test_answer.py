"""Curves, tallies and what is made of them for people and machines."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvgate.errors import ConfigError
from kvgate.load.score import Objective
from kvgate.replay import make_plans, replay, replayed_json
from kvgate.replay.plot import write_plot
from kvgate.replay.record import OTHERS, TENANTS_MAX, Fairness, Record
from kvgate.replay.tables import print_replayed
from kvgate.replay.timeline import BINS, Curve
from kvgate_policies.types import LedgerView, Outcome, TenantRules, TenantUse
from unit.replay.make import BY_HEADER, HARDWARE, offered, policy_file, workload


def test_a_curve_is_the_mean_of_each_span():
    curve = Curve(BINS * 10.0)
    curve.change(4, 5.0)
    curve.change(1, 25.0)
    curve.change(0, 30.0)
    assert [value for _, value in curve.points()[:4]] == [2.0, 4.0, 2.5, 0.0]
    assert curve.points()[0][0] == 5.0
    assert (curve.area, curve.mean, curve.most) == (85.0, 85.0 / 2400, 4)


def test_a_curve_ends_with_its_span():
    curve = Curve(BINS * 1.0)
    curve.change(2, BINS - 1.0)
    curve.go_on(10.0 * BINS)
    assert curve.points()[-1][1] == 2
    assert curve.area == 2


def waiting(**service: float) -> LedgerView:
    rules = {"heavy": TenantRules(weight=3)}
    return LedgerView(
        tenants=tuple(
            TenantUse(name, rules.get(name, TenantRules()), queued=1, service=s)
            for name, s in service.items()
        )
    )


def test_fairness_counts_those_that_waited_at_both_ends_by_weight():
    fairness = Fairness()
    fairness.look(waiting(heavy=0, light=0))
    fairness.look(waiting(heavy=300, light=100))
    assert fairness.index == pytest.approx(1.0)
    fairness.look(waiting(heavy=300, light=200))
    assert fairness.index == pytest.approx((1 + 0.5) / 2), "one had it all"
    fairness.look(waiting(light=900))
    assert fairness.windows == 2, "one that waits alone says nothing"


def test_where_nobody_waits_there_is_no_index():
    assert Fairness().index is None


def test_names_of_tenants_are_bounded():
    record = Record(Objective(), 1.0)
    for number in range(TENANTS_MAX + 5):
        record.refused(f"t{number}", Outcome.REJECTED_QUEUE_FULL)
    assert len(record.tenants) == TENANTS_MAX + 1
    assert record.tenants[OTHERS].offered == 5
    assert record.total.offered == TENANTS_MAX + 5


def two_policies(tmp_path: Path):
    policy = policy_file(
        tmp_path,
        BY_HEADER + "defaults: {queue: {depth: 3}}\ntenants: {chat: {weight: 4}, batch: {class: batch}}",
        "shared",
    )
    requests = [offered(number / 10, "chat" if number % 3 else "batch") for number in range(60)]
    made = workload(requests)
    return made, replay(made, make_plans(["direct", policy], HARDWARE), Objective())


def test_the_table_has_each_policy_and_each_tenant(tmp_path: Path):
    made, found = two_policies(tmp_path)
    out = io.StringIO()
    print_replayed(made, found, Objective(), out)
    text = out.getvalue()
    assert "60 requests in 6 s: made here" in text
    assert "1 engine of 101 blocks of 16 tokens, window 1,600, at most 64 sequences, profile fast" in text
    assert {"direct", "shared"} <= set(text.split())
    preemptions = [one.total.preemptions for one in found]
    assert preemptions[0] > preemptions[1] == 0
    assert f"{preemptions[0]}" in next(line for line in text.splitlines() if "preemptions" in line)
    assert "rejected queue full" in text
    rows = {line.strip().rsplit("  ", 1)[0].strip(): line.split() for line in text.splitlines()}
    reserved = next(words for name, words in rows.items() if name.startswith("KV cache reserved"))
    assert reserved[-2] == "–"
    assert reserved[-1].endswith("%")
    assert any(line.strip().startswith("batch") for line in text.splitlines())
    assert "assumed" not in text


def test_what_is_assumed_of_the_engines_is_said(tmp_path: Path):
    made = workload([offered()])
    found = replay(made, make_plans(["default"], replace(HARDWARE, profile=None, engines=None)), Objective())
    out = io.StringIO()
    print_replayed(made, found, Objective(), out)
    assert "it is assumed: --engines 4, --profile 8b-80gb." in out.getvalue().replace("\n", " ").replace(
        "  ", " "
    )


def test_the_json_has_the_numbers(tmp_path: Path):
    _, found = two_policies(tmp_path)
    direct, shared = (json.loads(json.dumps(replayed_json(one))) for one in found)
    assert (direct["policy"], shared["policy"]) == ("direct", "shared")
    assert direct["outcomes"] == {"served": 60}
    assert shared["rejected"] == shared["outcomes"]["rejected_queue_full"] == 60 - shared["served"] > 0
    assert shared["tenants"]["chat"]["offered"] == 40
    assert 0 < shared["wait_s"]["p50"] <= shared["wait_s"]["p90"] <= shared["wait_s"]["p99"]
    assert 0 < shared["kv_held_mean"] <= shared["kv_reserved_mean"] <= 1
    assert direct["kv_reserved_mean"] is direct["jain"] is None, (
        "it reserves nothing, and nobody waits for it"
    )
    assert 0 < direct["kv_held_mean"] <= 1
    assert direct["engines"]["num_gpu_blocks"] == 101


@pytest.mark.parametrize(("name", "begins"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_the_picture_is_a_file(tmp_path: Path, name: str, begins: bytes):
    pytest.importorskip("matplotlib")
    _, found = two_policies(tmp_path)
    write_plot(found, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_picture_that_cannot_be_written(tmp_path: Path):
    pytest.importorskip("matplotlib")
    _, found = two_policies(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_plot(found, tmp_path / "no" / "p.svg")
