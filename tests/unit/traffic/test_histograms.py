"""The histograms of a server: the simulator's, and pages that are none."""

from __future__ import annotations

import anyio.to_thread
import pytest

from kvgate.errors import ConfigError
from kvgate.load import mixed, offer
from kvgate.sim import SimServer
from kvgate.traffic import of_metrics, scrape, traffic_json
from kvgate.traffic.histograms import read_histograms

PAGE = """
vllm:request_prompt_tokens_bucket{engine="0",le="10.0"} 1
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf"} 2
vllm:request_prompt_tokens_bucket{engine="1",le="10.0"} 1
vllm:request_prompt_tokens_bucket{engine="1",le="+Inf"} 1
vllm:request_prompt_tokens_sum{engine="0"} 30
vllm:request_prompt_tokens_sum{engine="1"} 6
vllm:request_generation_tokens_bucket{le="10.0"} 3
vllm:request_generation_tokens_bucket{le="+Inf"} 3
vllm:request_generation_tokens_sum 15
"""


async def test_the_simulators(anyio_backend: str) -> None:
    async with SimServer(blocks=401, block_size=32, max_model_len=2048, profile="instant", model="m") as sim:
        await offer(sim.url, mixed("m", [(90, 30), (450, 60), (450, 150)], seed=1))
        found = of_metrics(await anyio.to_thread.run_sync(scrape, sim.url + "/v1"), windows=[150, 600])
    assert (found.requests, found.prompt.mean, found.output.mean, found.total.mean) == (3, 330, 80, 410)
    assert (found.prompt.percentile(50), found.output.percentile(100), found.prompt.exact) == (
        500,
        200,
        False,
    )
    assert [cut.limit for cut in found.windows] == [150, 600]
    assert found.windows[0].cut >= 2 / 3
    assert found.all_waste is not None
    assert found.all_waste.wasted == 0, "every answer took all of its limit"
    assert found.concurrency.mean is not None


def test_ranks_are_added_up_and_what_is_beyond_has_no_number() -> None:
    found = of_metrics(read_histograms("u", PAGE), now=1.0)
    assert (found.prompt.count, found.prompt.mean) == (3, 12.0)
    told = traffic_json(found)
    assert told["prompt"] == {
        "mean": 12.0,
        "p50": 10,
        "p90": None,
        "p99": None,
        "longest": None,
        "exact": False,
    }
    assert found.concurrency.mean is None
    assert found.all_waste is None


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("other 1\n", "is this a vLLM server"),
        (PAGE.replace("} 1\n", "} 0\n").replace("} 2\n", "} 0\n"), "no request"),
    ],
)
def test_a_page_without_them(page: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_histograms("u", page)


@pytest.mark.parametrize(
    ("url", "said"),
    [("ftp://x", "allowed: a URL"), ("http://127.0.0.1:9", "gave no answer"), ("http://[", "gave no answer")],
)
def test_a_url_that_gives_none(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"--from-metrics: .*{said}"):
        scrape(url)
