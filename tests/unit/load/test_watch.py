from __future__ import annotations

import pytest

from kvgate.load.watch import from_metrics, from_state

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b c"} 5.0
vllm:num_requests_running{engine="1",model_name="a}b c"} 4.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0 1796022876
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:num_preemptions_total 1.6e+01
"""


def test_metrics_of_two_ranks_are_one_engine():
    sample = from_metrics("http://e", 7.0, METRICS)
    assert (sample.running, sample.waiting, sample.preemptions, sample.kv_use) == (9, 3, 16, 0.5)
    assert (sample.at_s, sample.recomputed_tokens, sample.running_max) == (7.0, None, None)


@pytest.mark.parametrize("text", ["", METRICS.replace("vllm:num_preemptions_total", "other")])
def test_a_missing_series_is_an_error_not_a_zero(text):
    with pytest.raises(KeyError):
        from_metrics("http://e", 0.0, text)


def test_state_of_the_simulator():
    state = {
        "blocks_used": 60,
        "blocks_usable": 120,
        "running": 6,
        "waiting": 1,
        "preemptions": 2,
        "steps": 9,
        "recomputed_tokens": 300,
        "running_max": 18,
    }
    sample = from_state("http://e", 1.0, state)
    assert (sample.kv_use, sample.blocks_total) == (0.5, 120)
    assert (sample.recomputed_tokens, sample.running_max) == (300, 18)
    with pytest.raises(KeyError):
        from_state("http://e", 1.0, {})
