"""One span for each attempt: a request that is tried at another engine, or streams that break."""

from __future__ import annotations

import asyncio

import pytest

from kvgate.config import Timeouts
from support.collector import Collector, Span
from support.gateway import completion, gateway
from support.upstream import End, EngineFace, ScriptedUpstream, engine_endpoints, respond

pytestmark = pytest.mark.e2e

WHOLE = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "tiny",
    "choices": [{"index": 0, "text": " ab", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102},
}
ROOT = "POST /v1/completions"


async def spans_of(collector: Collector, roots: int = 1) -> list[Span]:
    return await asyncio.to_thread(
        collector.until, lambda spans: sum(span.kind == "server" for span in spans) == roots
    )


async def test_a_request_that_is_tried_again_has_a_relay_for_each_engine():
    face = engine_endpoints(EngineFace())
    with Collector() as collector:
        async with (
            ScriptedUpstream((End.RESET,), endpoints=face) as one,
            ScriptedUpstream((End.RESET,), endpoints=face) as other,
            gateway([one.url, other.url], otlp_endpoint=collector.url) as gate,
        ):
            assert (await gate.post("/v1/completions", completion())).status_code == 502
            asked = [seen for up in (one, other) for seen in up.scripted if seen.header("x-request-id")]
            spans = await spans_of(collector)
    assert [span.name for span in spans] == ["reserve", "relay", "reserve", "relay", ROOT]
    _, first, _, second, root = spans
    assert {first.attributes["kvgate.engine"], second.attributes["kvgate.engine"]} == {one.url, other.url}
    told = [seen.header("traceparent") or "" for seen in asked]
    assert {text.split("-")[2] for text in told} == {first.span_id, second.span_id}
    assert (first.status, first.attributes["error.type"]) == ("error", "reset")
    assert (second.status, second.attributes["kvgate.outcome"]) == ("error", "upstream_failed")
    assert root.attributes["kvgate.requeues"] == 1


async def test_an_attempt_that_failed_does_not_make_the_request_fail():
    up = ScriptedUpstream((End.RESET,), respond(WHOLE), endpoints=engine_endpoints(EngineFace()))
    with Collector() as collector:
        async with up, gateway([up.url], otlp_endpoint=collector.url) as gate:
            assert (await gate.post("/v1/completions", completion())).status_code == 200
            spans = await spans_of(collector)
    assert [(span.name, span.status) for span in spans if span.name in {"relay", ROOT}] == [
        ("relay", "error"),
        ("relay", "unset"),
        (ROOT, "unset"),
    ]


async def test_a_call_that_costs_nothing_has_a_relay_too():
    up = ScriptedUpstream(
        respond({"tokens": [1], "count": 1, "max_model_len": 9}), endpoints=engine_endpoints(EngineFace())
    )
    with Collector() as collector:
        async with up, gateway([up.url], otlp_endpoint=collector.url) as gate:
            assert (await gate.post("/tokenize", {"model": "tiny", "prompt": "x"})).status_code == 200
            spans = await spans_of(collector)
            [seen] = [seen for seen in up.requests if seen.path == "/tokenize" and seen.header("traceparent")]
    assert [span.name for span in spans] == ["relay", "POST /tokenize"]
    assert (seen.header("traceparent") or "").split("-")[2] == spans[0].span_id
    assert not any(name.startswith("gen_ai.") for span in spans for name in span.attributes)


async def test_a_call_that_costs_nothing_is_told_of_each_engine_that_it_was_sent_to():
    face = engine_endpoints(EngineFace())
    with Collector() as collector:
        async with (
            ScriptedUpstream((End.RESET,), endpoints=face) as one,
            ScriptedUpstream((End.RESET,), endpoints=face) as other,
            gateway([one.url, other.url], otlp_endpoint=collector.url) as gate,
        ):
            assert (await gate.post("/detokenize", {"model": "tiny", "tokens": [1]})).status_code == 503
            spans = await spans_of(collector)
    assert [span.name for span in spans] == ["relay", "relay", "POST /detokenize"]
    ports = {span.attributes["server.port"] for span in spans[:2]}
    assert {f"http://127.0.0.1:{port}" for port in ports} == {one.url, other.url}
    assert [span.status for span in spans] == ["error"] * 3
    assert spans[0].attributes["error.type"] == "reset"


async def test_an_engine_that_is_silent_ends_the_relay_in_an_error():
    up = ScriptedUpstream((End.HANG,), endpoints=engine_endpoints(EngineFace()))
    timeouts = Timeouts(first_byte_s=0.2, draining_hold_s=0.05)
    with Collector() as collector:
        async with up, gateway([up.url], otlp_endpoint=collector.url, timeouts=timeouts) as gate:
            assert (await gate.post("/v1/completions", completion(stream=True))).status_code == 504
            spans = await spans_of(collector)
    relay, root = spans[-2:]
    assert (relay.status, root.status) == ("error", "error")
    assert relay.attributes["kvgate.outcome"] == root.attributes["kvgate.outcome"] == "upstream_timeout"
    assert 0.19 < relay.length_s < root.length_s
    assert "http.response.status_code" not in relay.attributes, "that was kvgate's"
    assert root.attributes["http.response.status_code"] == 504
