"""What the traffic comes to: concurrency, waste, and whom limits cut, by numbers that are easily checked."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from kvgate.telemetry.request_line import LoggedRequest
from kvgate.traffic import Tally, of_log, print_traffic, traffic_json
from kvgate.traffic.summary import Traffic


def request(arrived: float = 0.0, **fields: Any) -> LoggedRequest:
    known: dict[str, Any] = {
        "tenant": "chat", "endpoint": "chat", "outcome": "served", "total_s": 10.0, "queue_s": 2.0,
        "prompt_tokens": 100, "completion_tokens": 20, "max_tokens_charged": 100, "tokens_reserved": 200,
    }  # fmt: skip
    return LoggedRequest(arrived, **(known | fields))


def traffic(*requests: LoggedRequest, **limits: Any) -> Traffic:
    tally = Tally("log")
    for one in requests:
        tally.add(one)
    return of_log(tally, **limits)


def test_concurrency_is_what_was_in_the_engines_at_once() -> None:
    found = traffic(request(0.0), request(4.0), request(8.0, total_s=12.0)).concurrency
    # [2, 10], [6, 14], [10, 20] of 20 seconds; where one ends as the other begins they are not two
    assert found.largest == 2
    assert (found.mean or 0, found.waiting_mean or 0) == pytest.approx((26 / 20, 6 / 20))


def test_waste_is_told_apart_by_who_set_a_limit() -> None:
    found = traffic(
        request(),
        request(max_tokens_asked=400, tokens_reserved=500, total_s=22.0),
        request(tokens_reserved=None),
    )
    assert found.all_waste is not None
    assert (found.all_waste.requests, found.all_waste.reserved_tokens, found.all_waste.used_tokens) == (
        3,
        700,
        240,
    )
    assert found.with_default is not None
    assert found.with_default.wasted == pytest.approx(1 - 120 / 200)
    assert found.with_own is not None
    assert found.with_own.wasted == pytest.approx(1 - 120 / 500)
    held = 200 * 8.0 + 500 * 20.0
    assert found.all_waste.wasted_over_time == pytest.approx(1 - (120 * 8.0 + 120 * 20.0) / held)


def test_tenants_the_busiest_first() -> None:
    found = traffic(request(tenant="a"), request(tenant="b"), request(tenant="b"))
    assert {name: waste.requests for name, waste in found.tenants.items()} == {"b": 2, "a": 1}
    assert next(iter(found.tenants)) == "b"


def test_a_window_cuts_what_is_longer_and_refuses_what_asks_for_more() -> None:
    found = traffic(
        request(prompt_tokens=100, completion_tokens=20),
        request(prompt_tokens=100, completion_tokens=20, max_tokens_asked=500),
        request(prompt_tokens=300, completion_tokens=20),
        request(prompt_tokens=100, completion_tokens=300, max_tokens_asked=300),
        windows=[256, 512],
        caps=[100],
    )
    assert [(cut.limit, cut.cut, cut.refused) for cut in found.windows] == [
        (256, 0.5, 0.75),
        (512, 0.0, 0.25),
    ]
    assert [(cut.limit, cut.cut) for cut in found.caps] == [(100, 0.25)]


def test_limits_are_suggested_below_the_longest() -> None:
    found = traffic(request(prompt_tokens=5000, completion_tokens=600))
    assert [cut.limit for cut in found.windows] == [256, 512, 1024, 2048, 4096]
    assert [cut.limit for cut in found.caps] == [256, 512]


def test_nothing_ran_to_its_end() -> None:
    found = traffic(request(outcome="rejected_never_fits", queue_s=None, total_s=0.0))
    assert (found.whole, found.total.mean, found.windows, found.concurrency.mean) == (0, 0.0, (), None)
    text = io.StringIO()
    print_traffic(found, text)
    assert "1 did not" in text.getvalue()


def test_the_report_and_the_json_say_the_same() -> None:
    found = traffic(request(), request(tenant="b", max_tokens_asked=400, tokens_reserved=500), windows=[110])
    text = io.StringIO()
    print_traffic(found, text)
    for said in (
        "2 requests in 10 s: log",
        "both",
        "tenant b",
        "without a max_tokens of their own",
        "100.0%",
    ):
        assert said in text.getvalue()
    told = json.loads(json.dumps(traffic_json(found)))
    assert told["total"] == {"mean": 120, "p50": 120, "p90": 120, "p99": 120, "longest": 120, "exact": True}
    assert told["max_model_len"] == [{"limit": 110, "cut": 1.0, "refused_as_asked": 0.5}]
    assert told["waste_without_max_tokens"]["wasted"] == 0.4
