"""Traces as an operator sees them: a real `kvgate serve`, a simulated engine, and a collector that speaks OTLP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import pytest

from kvgate.demo.children import Child, Children, free_ports, ready
from kvgate.sim import SimServer
from support.collector import Collector, Span

pytestmark = pytest.mark.e2e

STEP_MS = 20
TOKENS = 100
"""A request of so many keeps the only place of the engine for two seconds."""
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as started:
        yield started


@pytest.fixture
async def engine() -> AsyncGenerator[SimServer]:
    """One that runs one sequence at a time, slowly."""
    async with SimServer(profile=f"fast:{STEP_MS}", model="tiny", max_num_seqs=1) as server:
        yield server


class Proxy:
    def __init__(self, url: str, admin: str, child: Child, http: httpx.AsyncClient) -> None:
        self.url, self.admin, self.child, self.http = url, admin, child, http

    async def ask(
        self, tokens: int = TOKENS, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        body = {"model": "tiny", "prompt": [7] * 20, "max_tokens": tokens, "ignore_eos": True, **more}
        return await self.http.post(f"{self.url}/v1/completions", json=body, headers=headers or {})

    async def queued(self, count: int) -> None:
        async with asyncio.timeout(15):
            while (await self.http.get(f"{self.admin}/admin/ledger")).json()["queued"] != count:
                await asyncio.sleep(0.01)

    def ended(self) -> int:
        """After SIGTERM, its exit code."""
        self.child.process.send_signal(signal.SIGTERM)
        return self.child.process.wait(20)

    def said(self) -> str:
        return self.child.said()


@asynccontextmanager
async def proxy(
    monkeypatch: pytest.MonkeyPatch, engine: SimServer, *options: str, **env: str
) -> AsyncGenerator[Proxy]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    port, admin_port = free_ports(2)
    url, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    words = [
        "--backend",
        engine.url,
        "--max-num-seqs",
        "1",
        "--port",
        str(port),
        "--admin-port",
        str(admin_port),
    ]
    with Children() as children:
        child = children.start("kvgate", "serve", *words, *options)
        async with aiohttp.ClientSession() as look:
            await ready(look, child, f"{admin}/readyz")
        async with httpx.AsyncClient(timeout=30.0, trust_env=False) as http:
            yield Proxy(url, admin, child, http)


async def running(engine: SimServer) -> None:
    """Wait until the engine is at something."""
    async with asyncio.timeout(15):
        while not engine.app.state()["running"]:
            await asyncio.sleep(0.01)


def of_trace(spans: list[Span], trace_id: str) -> dict[str, Span]:
    return {span.name: span for span in spans if span.trace_id == trace_id}


def whole(name: str, count: int = 1) -> Any:
    """Enough spans when so many of this name are there: the root of a trace is ended last."""
    return lambda spans: sum(span.name == name for span in spans) >= count


def is_sampled(traceparent: str) -> bool:
    """The lowest bit of the flags."""
    return bool(int(traceparent.rpartition("-")[2], 16) & 1)


ROOT = "POST /v1/completions"


async def test_the_trace_of_a_queued_request(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, engine: SimServer
):
    async with proxy(monkeypatch, engine, "--otlp-endpoint", collector.url) as gate:
        first = asyncio.create_task(gate.ask())
        await running(engine)
        before_ns = time.time_ns()
        queued = asyncio.create_task(
            gate.ask(5, {"traceparent": PARENT, "tracestate": "shop=cart"}, stream=True)
        )
        await gate.queued(1)
        seen_queued_s = time.monotonic()
        assert (await first).status_code == 200
        held_s = time.monotonic() - seen_queued_s
        answer = await queued
        assert answer.status_code == 200
        spans = await asyncio.to_thread(collector.until, lambda spans: ROOT in of_trace(spans, TRACE))
        after_ns = time.time_ns()

    found = of_trace(spans, TRACE)
    assert set(found) == {ROOT, "reserve", "queue", "relay"}
    root, reserve, queue, relay = (found[name] for name in (ROOT, "reserve", "queue", "relay"))
    assert (root.kind, root.parent_id, root.status) == ("server", PARENT.split("-")[2], "unset")
    assert root.trace_state == "shop=cart"
    assert {child.parent_id for child in (reserve, queue, relay)} == {root.span_id}
    assert [child.kind for child in (reserve, queue, relay)] == ["internal", "internal", "client"]
    # Times: in order, within the parent, within what was measured outside, and as long as the engine was held.
    assert before_ns <= root.start_ns < root.end_ns <= after_ns
    assert all(child.within(root) for child in (reserve, queue, relay))
    assert reserve.end_ns <= queue.start_ns <= queue.end_ns <= relay.start_ns
    assert queue.length_s >= held_s > 0
    assert relay.start_ns < relay.events["first_token"] < relay.end_ns
    # What the engine was told: it is a child of the relay.
    [told] = [text for text in engine.app.traceparents if TRACE in text]
    assert told == f"00-{TRACE}-{relay.span_id}-01"
    # What is told of it.
    said = root.attributes
    assert said["gen_ai.operation.name"] == "text_completion"
    assert said["gen_ai.provider.name"] == "vllm"
    assert said["gen_ai.request.model"] == "tiny"
    assert said["gen_ai.request.max_tokens"] == 5
    assert said["gen_ai.usage.output_tokens"] == 5
    assert (said["http.route"], said["http.response.status_code"]) == ("/v1/completions", 200)
    assert (said["kvgate.outcome"], said["kvgate.tenant"], said["kvgate.pool"]) == (
        "served",
        "anonymous",
        "default",
    )
    assert said["kvgate.queue.wait_s"] == pytest.approx(queue.length_s, abs=0.2)
    assert said["kvgate.reserved.blocks"] >= 1
    assert (relay.attributes["server.address"], relay.attributes["server.port"]) == ("127.0.0.1", engine.port)
    assert relay.attributes["kvgate.engine"] == engine.url
    assert root.resource["service.name"] == "kvgate"
    assert collector.requests[0][0] == "/v1/traces"


async def test_a_request_that_starts_at_once_has_no_queue_and_begins_a_trace(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, engine: SimServer
):
    async with proxy(monkeypatch, engine, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as gate:
        assert (await gate.ask(2, {"traceparent": "00-0-nonsense-01"})).status_code == 200
        spans = await asyncio.to_thread(collector.until, whole(ROOT))
    assert {span.name for span in spans} == {ROOT, "reserve", "relay"}
    [root] = [span for span in spans if span.name == ROOT]
    assert root.parent_id == ""
    assert engine.app.traceparents[-1].split("-")[1] == root.trace_id


async def test_a_queued_request_whose_client_leaves(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, engine: SimServer
):
    async with proxy(monkeypatch, engine, "--otlp-endpoint", collector.url) as gate:
        first = asyncio.create_task(gate.ask())
        await running(engine)
        leaver = asyncio.create_task(gate.ask(headers={"traceparent": PARENT}))
        await gate.queued(1)
        leaver.cancel()
        spans = await asyncio.to_thread(collector.until, lambda spans: ROOT in of_trace(spans, TRACE))
        await first
    found = of_trace(spans, TRACE)
    assert set(found) == {ROOT, "reserve", "queue"}
    assert (
        found["queue"].attributes["kvgate.outcome"]
        == found[ROOT].attributes["kvgate.outcome"]
        == "client_gone"
    )
    assert found[ROOT].status == "unset"


async def test_refusals_end_their_spans_with_the_outcome(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, engine: SimServer
):
    async with proxy(monkeypatch, engine, "--otlp-endpoint", collector.url) as gate:
        assert (await gate.ask(n=2)).status_code == 400
        assert (await gate.ask(max_tokens=4000)).status_code == 400
        assert (await gate.ask(model="other")).status_code == 404
        assert (await gate.http.get(f"{gate.url}/secret/key-123?token=abc")).status_code == 404
        assert (await gate.http.request("PURGE", f"{gate.url}/v1/models")).status_code == 405
        spans = await asyncio.to_thread(
            collector.until, lambda spans: {"GET", "HTTP"} <= {s.name for s in spans}
        )
    roots = {span.attributes["kvgate.outcome"]: span for span in spans if span.name == ROOT}
    assert set(roots) == {"rejected_never_fits", "upstream_refused", "rejected_unknown_model"}
    assert {span.status for span in spans if span.kind == "server"} == {"error"}
    assert roots["rejected_never_fits"].attributes["error.type"] == "never_fits"
    [refused] = [span for span in spans if span.name == "relay"]
    assert (refused.status, refused.attributes["http.response.status_code"]) == ("error", 400)
    [elsewhere] = [span for span in spans if span.name == "HTTP"]
    assert elsewhere.attributes["http.request.method"] == "_OTHER"
    assert "key-123" not in repr(spans)
    assert "PURGE" not in repr(spans)


async def test_no_text_and_no_key_is_in_any_span(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, engine: SimServer
):
    secret = {"authorization": "Bearer sk-very-secret", "cookie": "session=hush", "x-api-key": "sk-other"}
    async with proxy(monkeypatch, engine, "--otlp-endpoint", collector.url) as gate:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "the patient Mr Smith"}],
            "max_tokens": 3,
        }
        answer = await gate.http.post(f"{gate.url}/v1/chat/completions", json=body, headers=secret)
        assert answer.status_code == 200
        spans = await asyncio.to_thread(collector.until, whole("POST /v1/chat/completions"))
    told = repr(spans)
    text = answer.json()["choices"][0]["message"]["content"]
    assert text.strip()
    for word in ("secret", "hush", "sk-other", "Smith", text.strip()):
        assert word not in told


async def test_unsampled_requests_have_no_spans_and_the_engine_is_told(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, engine: SimServer
):
    async with proxy(monkeypatch, engine, "--otlp-endpoint", collector.url, "--trace-sample", "0%") as gate:
        assert (await gate.ask(2)).status_code == 200
        assert (await gate.ask(2, {"traceparent": PARENT.removesuffix("1") + "0"})).status_code == 200
        assert (await gate.ask(2, {"traceparent": PARENT})).status_code == 200
        spans = await asyncio.to_thread(collector.until, whole(ROOT))
    assert {span.trace_id for span in spans} == {TRACE}, "only what its client sampled"
    new, unsampled, sampled = engine.app.traceparents
    assert [is_sampled(text) for text in (new, unsampled, sampled)] == [False, False, True]
    assert unsampled.startswith(f"00-{TRACE}-")


async def test_without_an_endpoint_the_clients_context_passes_as_it_is(
    monkeypatch: pytest.MonkeyPatch, engine: SimServer
):
    async with proxy(monkeypatch, engine) as gate:
        assert (await gate.ask(2, {"traceparent": PARENT})).status_code == 200
        assert (await gate.ask(2)).status_code == 200
    assert list(engine.app.traceparents) == [PARENT, ""]


@pytest.mark.parametrize("trouble", ["away", "refuses", "hangs"])
async def test_a_collector_in_trouble_disturbs_nobody(
    monkeypatch: pytest.MonkeyPatch, engine: SimServer, trouble: str
):
    with Collector(503 if trouble == "refuses" else 200, 60.0 if trouble == "hangs" else 0.0) as collector:
        [nobody] = free_ports(1)
        endpoint = f"http://127.0.0.1:{nobody}" if trouble == "away" else collector.url
        async with proxy(monkeypatch, engine, "--otlp-endpoint", endpoint) as gate:
            answers = [await gate.ask(2) for _ in range(5)]
            assert [answer.status_code for answer in answers] == [200] * 5
            if trouble != "hangs":
                await asyncio.to_thread(failing, gate)
            began_s = time.monotonic()
            assert await asyncio.to_thread(gate.ended) == 0
            assert time.monotonic() - began_s < 15, "the flush is bounded"
            said = gate.said()
    assert "Traceback" not in said
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    told = [line["message"] for line in lines if "traces" in line["message"]]
    assert 1 <= len(told) <= 2, said


def failing(gate: Proxy) -> None:
    """Waits until the metrics have counted a failed export."""
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        page = httpx.get(f"{gate.admin}/metrics", trust_env=False).text
        if 'kvgate_trace_spans_total{pool="default",result="failed"}' in page:
            return
        time.sleep(0.1)
    raise AssertionError("no export failed")


async def test_what_waits_is_sent_at_the_end(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, engine: SimServer
):
    async with proxy(monkeypatch, engine, "--otlp-endpoint", collector.url) as gate:
        for _ in range(3):
            await gate.ask(1)
        assert await asyncio.to_thread(gate.ended) == 0
        assert sum(span.name == ROOT for span in collector.spans) == 3, "without waiting any longer"
