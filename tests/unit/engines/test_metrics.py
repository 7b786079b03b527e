from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.engines.metrics import CacheConfig, Gauges, Metrics, read_metrics
from support.upstream import EngineFace

SCRAPE = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79602266683e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 7.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="tiny"} 2.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.7960228168933784e+09
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 205.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 205.0
vllm:request_prompt_tokens_bucket{engine="0",le="1.0",model_name="tiny"} 0.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} 4201.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{_block_size_resolved="True",block_size="32",enable_prefix_caching="True",engine="0",\
hash_block_size="None",kv_cache_max_concurrency="1.890625",kv_cache_size_tokens="3872",num_gpu_blocks="121",\
num_gpu_blocks_override="121",sliding_window="None"} 1.0
"""


def config_line(**labels: str) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{inside}}} 1.0\n"


def config_of(text: str) -> CacheConfig:
    cache = read_metrics(text).cache
    assert cache is not None
    return cache


def test_a_scrape_of_vllm_0_32() -> None:
    assert read_metrics(SCRAPE) == Metrics(
        gauges={
            "0": Gauges(
                kv_usage=0.25,
                running=3,
                waiting=1,
                preemptions=2,
                generation_tokens=4201,
                prompt_tokens=205,
            )
        },
        cache=CacheConfig(
            ranks=("0",),
            num_gpu_blocks=121,
            block_size=32,
            kv_cache_max_concurrency=1.890625,
            enable_prefix_caching=True,
        ),
        process_start_time_s=1796022666.83,
    )


def test_the_older_name_of_the_usage_gauge() -> None:
    text = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:num_requests_running{model_name="m"} 1\n'
    assert read_metrics(text).gauges == {"0": Gauges(kv_usage=0.5, running=1)}


def test_what_is_missing_is_none_not_zero() -> None:
    assert read_metrics("") == Metrics()
    assert read_metrics("<html>hello</html>\nfoo 1\n") == Metrics()
    assert config_of(config_line(engine="0", num_gpu_blocks="None", block_size="16")) == CacheConfig(
        ranks=("0",), block_size=16
    )


def test_the_sum_that_every_rank_repeats_is_divided() -> None:
    text = "".join(config_line(engine=str(i), num_gpu_blocks="4000", block_size="16") for i in (2, 10, 0, 1))
    cache = config_of(text)
    assert cache.ranks == ("0", "1", "2", "10")
    assert cache.num_gpu_blocks == 1000


def test_gauges_of_several_ranks_stay_apart_in_order() -> None:
    text = EngineFace(engines=3, running=4, usage=0.5).metrics_text()
    gauges = read_metrics(text).gauges
    assert list(gauges) == ["0", "1", "2"]
    assert {one.running for one in gauges.values()} == {4}


def test_series_of_one_engine_under_two_names_add_up_but_not_their_share_of_the_cache() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="a"} 2\n'
        'vllm:num_requests_running{engine="0",model_name="b"} 3\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.5\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="b"} 0.5\n'
    )
    assert read_metrics(text).gauges == {"0": Gauges(running=5, kv_usage=0.5)}


@pytest.mark.parametrize(("text", "error"), [("1.890625", 0.0), ("1.89", 0.005), ("2.0", 0.0), ("None", 0.0)])
def test_how_far_a_printed_concurrency_may_be_off(text, error) -> None:
    assert config_of(config_line(engine="0", kv_cache_max_concurrency=text)).concurrency_error == error


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_number_that_is_none_is_left_out(value) -> None:
    assert read_metrics(f'vllm:num_requests_running{{engine="0"}} {value}\n').gauges == {}


def test_a_broken_line_of_a_wanted_name_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"abc|could not"):
        read_metrics('vllm:num_requests_running{engine="0"} abc\n')


def test_a_broken_line_of_another_name_is_nobodys_business() -> None:
    assert read_metrics("vllm:other{ 1 2 3\n" + SCRAPE) == read_metrics(SCRAPE)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text) -> None:
    with suppress(ValueError):
        assert isinstance(read_metrics(text), Metrics)


def test_steps_are_read_from_the_count_of_their_histogram() -> None:
    text = (
        'vllm:iteration_tokens_total_bucket{engine="0",le="8.0",model_name="m"} 3.0\n'
        'vllm:iteration_tokens_total_count{engine="0",model_name="m"} 5.0\n'
        'vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 77.0\n'
    )
    assert read_metrics(text).gauges["0"] == Gauges(steps=5.0)


def test_numbers_that_cannot_be_true_are_left_out_and_named() -> None:
    text = (
        'vllm:kv_cache_usage_perc{engine="0"} 87.5\n'
        'vllm:kv_cache_usage_perc{engine="1"} 1.0000000001\n'
        'vllm:num_preemptions_total{engine="0"} -1\n'
        'vllm:generation_tokens_total{engine="0"} NaN\n'
        'vllm:num_requests_running{engine="0"} 3\n'
    )
    metrics = read_metrics(text)
    assert metrics.gauges["0"] == Gauges(running=3.0)
    assert metrics.gauges["1"].kv_usage == pytest.approx(1.0)
    assert metrics.untrue == (
        "vllm:generation_tokens_total",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
    )
