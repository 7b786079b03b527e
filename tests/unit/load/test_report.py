from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.load import EngineSample, Stall, StreamEnd, StreamRecord, report
from kvgate.load.records import end_of
from kvgate.load.report import freeze_gap, frozen_now, percentile


def _record(times_s, *, index=0, sent_s=0.0, end=StreamEnd.COMPLETED, ended_s=None, **fields) -> StreamRecord:
    times = list(times_s)
    ended = (times[-1] if times else sent_s) if ended_s is None else ended_s
    return StreamRecord(index, "http://e", len(times), sent_s, times, end, ended, **fields)


def _sample(at_s, **fields) -> EngineSample:
    known: dict[str, Any] = {
        "url": "http://e",
        "kv_use": 0.0,
        "running": 0,
        "waiting": 0,
        "preemptions": 0,
    } | fields
    return EngineSample(at_s=at_s, **known)


def test_one_frozen_stream_hides_in_the_pooled_percentile_but_not_in_the_longest_gap():
    steady = [_record((0.5 + step for step in range(200)), index=i) for i in range(9)]
    frozen = _record([0.5 + step + (128 if step > 100 else 0) for step in range(200)], index=9)
    numbers = report([*steady, frozen])
    assert numbers.itl_p99_s == 1.0
    assert (numbers.longest_gap_p50_s, numbers.longest_gap_max_s) == (1.0, 129.0)
    assert (numbers.freeze_gap_s, numbers.frozen) == (20.0, 1)
    assert numbers.tokens == 2000


def test_times_count_from_the_first_attempt_and_to_the_last_end():
    records = [_record([3.0, 4.0], sent_s=1.0, retries=2), _record([2.0], index=1, sent_s=1.5, ended_s=6.0)]
    numbers = report(records)
    assert (numbers.ttft_p50_s, numbers.ttft_p99_s) == (0.5, 2.0)
    assert (numbers.makespan_s, numbers.tokens_per_s, numbers.retries) == (5.0, 3 / 5, 2)


def test_what_the_client_itself_missed_is_no_gap():
    streams = [_record([0.0, 1.0, 6.5, 7.5], index=i) for i in range(3)]
    stalls = [Stall(1.5, 6.0), Stall(100.0, 101.0)]
    assert report(streams).longest_gap_max_s == 5.5
    numbers = report(streams, stalls=stalls)
    assert (numbers.longest_gap_max_s, numbers.client_stalled_s) == (1.0, 5.5)
    assert numbers.makespan_s == 7.5


def test_a_freeze_outside_of_a_stall_stays_one():
    frozen = _record([0.0, 0.1, 0.2, 9.0])
    assert report([frozen], stalls=[Stall(1.0, 2.0)]).longest_gap_max_s == pytest.approx(7.8)


def test_only_completed_streams_are_complete():
    ends = [StreamEnd.COMPLETED, StreamEnd.REFUSED, StreamEnd.FAILED, StreamEnd.COMPLETED]
    numbers = report([_record([1.0], index=i, end=end) for i, end in enumerate(ends)])
    assert (numbers.offered, numbers.completed, numbers.failed) == (4, 2, 2)
    assert numbers.ends == {"completed": 2, "refused": 1, "failed": 1}


def test_streams_without_tokens_give_no_percentiles_rather_than_zeros():
    numbers = report([_record([], end=StreamEnd.FAILED, ended_s=1.0)])
    assert (numbers.ttft_p50_s, numbers.itl_p50_s, numbers.longest_gap_max_s, numbers.freeze_gap_s) == (
        None,
    ) * 4
    assert numbers.frozen == 0


def test_a_running_stream_is_no_result_yet():
    with pytest.raises(ValueError, match="have not ended"):
        report([StreamRecord(0, "http://e", 3, 0.0)])
    with pytest.raises(ValueError, match="nothing to report"):
        report([])


def test_engine_counters_are_differences_and_use_is_taken_from_the_run_alone():
    samples = [
        _sample(-1.0, preemptions=5, recomputed_tokens=100, running_max=0),
        _sample(
            1.0, preemptions=5, recomputed_tokens=100, kv_use=0.5, running=12, waiting=36, running_max=18
        ),
        _sample(2.0, preemptions=8, recomputed_tokens=400, kv_use=1.0, running=10, waiting=2, running_max=18),
        _sample(9.0, preemptions=9, recomputed_tokens=500, kv_use=0.0, running_max=18),
    ]
    numbers = report([_record([1.0, 2.0])], samples)
    engine = numbers.engines["http://e"]
    assert (engine.preemptions, engine.recomputed_tokens, engine.kv_use_mean) == (4, 400, 0.75)
    assert (engine.running_max, engine.in_flight_max) == (18, 48)
    assert (numbers.preemptions, numbers.recomputed_tokens) == (4, 400)


def test_recomputation_unknown_to_one_engine_is_unknown_in_total():
    samples = [
        _sample(0.0, recomputed_tokens=1), _sample(1.0, recomputed_tokens=3),
        _sample(0.0, url="http://f"), _sample(1.0, url="http://f", running=7),
    ]  # fmt: skip
    numbers = report([_record([0.5])], samples)
    assert numbers.recomputed_tokens is None
    assert numbers.engines["http://f"].running_max == 7


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0, 100))
def test_percentile_is_nearest_rank(values, percent):
    chosen = percentile(values, percent)
    assert chosen in values
    assert sum(v <= chosen for v in values) >= len(values) * percent / 100 - 1e-9
    below = [v for v in values if v < chosen]
    assert not below or len(below) < len(values) * percent / 100 + 1e-9


def test_percentiles_of_a_hundred():
    assert [percentile(range(1, 101), p) for p in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([], 50) is None


def test_frozen_now_looks_at_streams_that_have_begun_and_not_ended():
    records = [
        _record([1.0], end=None),
        _record([9.5], end=None),
        _record([], end=None),
        _record([1.0]),
    ]
    assert frozen_now(records, now_s=10.0, freeze_gap_s=2.0) == 1


def test_freeze_gap_is_in_steps_of_the_median():
    assert freeze_gap([0.1, 0.1, 9.0]) == pytest.approx(2.0)
    assert freeze_gap([]) is None


def test_a_hiccup_that_nobody_sees_is_no_freeze_however_short_the_steps():
    assert freeze_gap([0.001] * 9) == 0.25
    assert freeze_gap([0.001] * 9, gap_s_min=0.0) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("finish_reason", "saw_done", "completion_tokens", "end"),
    [
        ("length", True, 2, StreamEnd.COMPLETED),
        ("length", False, 2, StreamEnd.COMPLETED),
        ("length", True, None, StreamEnd.COMPLETED),
        ("length", True, 1, StreamEnd.WRONG_LENGTH),
        ("stop", True, 3, StreamEnd.WRONG_LENGTH),
        ("abort", True, 2, StreamEnd.ABORTED),
        (None, True, None, StreamEnd.ABORTED),
        (None, False, None, StreamEnd.FAILED),
    ],
)
def test_how_a_body_ended(finish_reason, saw_done, completion_tokens, end):
    record = _record([1.0, 2.0], finish_reason=finish_reason, completion_tokens=completion_tokens)
    assert end_of(record, saw_done=saw_done) is end
