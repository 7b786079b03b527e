"""Goodput and errors by reason, of all and of each tenant."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.load import Objective, StreamEnd, StreamRecord
from kvgate.load.score import by_tenant, errors_of, is_good, reason_of, score


def record(*times_s: float, end: StreamEnd = StreamEnd.COMPLETED, **fields: Any) -> StreamRecord:
    return StreamRecord(
        0, "u", len(times_s), 0.0, list(times_s), end, times_s[-1] if times_s else 1.0, **fields
    )


SLO = Objective(ttft_s_max=1.0, itl_s_max=0.1)


@pytest.mark.parametrize(
    ("one", "good"),
    [
        (record(0.5, 0.6, 0.7), True),
        (record(1.0), True),
        (record(1.01, 1.02), False),
        (record(0.5, 0.7, 0.71), False),
        (record(0.5, 0.9, 0.9, 0.9, 0.9, 0.9), True),
        (record(0.5, 0.6, end=StreamEnd.ABORTED), False),
        (record(), False),
    ],
)
def test_a_good_one(one: StreamRecord, good: bool) -> None:
    assert is_good(one, SLO) is good


def test_what_counts() -> None:
    refused = record(end=StreamEnd.REFUSED, status=429, reason="queue_full")
    found = score([record(0.5, 0.6), record(3.0, 3.1), refused], SLO, span_s=4.0)
    assert (found.offered, found.completed, found.good) == (3, 2, 1)
    assert found.good_share == pytest.approx(1 / 3)
    assert (found.goodput_per_s, found.good_tokens_per_s, found.tokens_per_s) == (0.25, 0.5, 1.0)
    assert (found.ttft_p50_s, found.ttft_p99_s) == (0.5, 3.0)
    assert found.errors == {"queue_full": 1}


def test_of_nothing() -> None:
    found = score([], SLO, span_s=0.0)
    assert (found.offered, found.good_share, found.goodput_per_s, found.ttft_p50_s) == (0, 0.0, 0.0, None)


def test_each_tenant_by_itself() -> None:
    found = by_tenant([record(0.5, tenant="b"), record(2.0, tenant="a")], SLO, span_s=1.0)
    assert [(name, one.offered, one.good) for name, one in found.items()] == [("a", 1, 0), ("b", 1, 1)]
    assert by_tenant([record(0.5)], SLO, span_s=1.0) == {}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"end": StreamEnd.REFUSED, "status": 503}, "HTTP 503"),
        ({"end": StreamEnd.REFUSED, "status": 429, "reason": "queue_timeout"}, "queue_timeout"),
        ({"end": StreamEnd.FAILED, "error": "ClientOSError: broken"}, "failed, ClientOSError"),
        ({"end": StreamEnd.FAILED, "error": "the engine died: sorry"}, "failed, error in the stream"),
        ({"end": StreamEnd.FAILED}, "failed"),
        ({"end": StreamEnd.TIMED_OUT, "error": "x"}, "timed out"),
        ({"end": StreamEnd.INTERRUPTED}, "interrupted"),
    ],
)
def test_reasons(fields: dict[str, Any], said: str) -> None:
    assert reason_of(record(**fields)) == said


def test_the_most_common_error_first() -> None:
    cut, late = record(end=StreamEnd.ABORTED), record(end=StreamEnd.TIMED_OUT)
    assert list(errors_of([late, cut, cut, record(1.0)]).items()) == [("aborted", 2), ("timed out", 1)]
