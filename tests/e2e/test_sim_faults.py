"""Faults on demand: each does what it says on real sockets, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from kvgate.sim import SimServer

pytestmark = pytest.mark.e2e

BODY = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True}
BROKEN = (httpx.ReadError, httpx.RemoteProtocolError)


@pytest.fixture
async def sim():
    async with SimServer() as server:
        yield server


@pytest.fixture
async def http(sim):
    async with httpx.AsyncClient(base_url=sim.url, timeout=10) as client:
        yield client


async def until(condition, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def idle(sim: SimServer) -> bool:
    return sim.engine.jobs == 0 and sim.model.kv_used == 0 and not sim.model.has_work


async def post(http, fault, *, stream=True, path="/v1/completions", **more):
    return await http.post(path, json={**BODY, "stream": stream, **more}, headers={"x-sim-fault": fault})


async def read_until_broken(http, fault: str) -> tuple[int, str]:
    """Status and text of a stream that must break off."""
    text = ""
    headers = {"x-sim-fault": fault}
    async with http.stream(
        "POST", "/v1/completions", json={**BODY, "stream": True}, headers=headers
    ) as answer:
        chunks = answer.aiter_text()
        while True:
            try:
                text += await anext(chunks)
            except BROKEN:
                return answer.status_code, text


@pytest.mark.parametrize("stream", [True, False])
async def test_reset_before_an_answer(sim, http, stream):
    with pytest.raises(BROKEN):
        await post(http, "reset-before", stream=stream)
    assert idle(sim)


@pytest.mark.parametrize("tokens", [0, 1, 7])
async def test_reset_after_some_tokens(sim, http, tokens):
    status, text = await read_until_broken(http, f"reset-after={tokens}")
    assert status == 200
    assert text.count("data: {") == tokens
    assert "[DONE]" not in text
    await until(lambda: idle(sim))


async def test_reset_after_some_tokens_of_a_json_answer(sim, http):
    with pytest.raises(BROKEN):
        await post(http, "reset-after=3", stream=False)
    await until(lambda: idle(sim))


async def test_a_request_that_ends_sooner_escapes_the_fault(http):
    answer = await post(http, "reset-after=20")
    assert answer.text.endswith("[DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_hang_says_nothing_while_health_is_fine(sim, http, stream):
    task = asyncio.create_task(post(http, "hang", stream=stream))
    await until(lambda: sim.engine.jobs == 1)
    assert (await http.get("/health")).status_code == 200
    assert (await http.post("/v1/completions", json=BODY)).status_code == 200
    assert not task.done()
    task.cancel()
    await until(lambda: idle(sim))


async def test_a_stream_that_goes_silent(sim, http):
    told = []

    async def read():
        headers = {"x-sim-fault": "hang-after=3"}
        async with http.stream(
            "POST", "/v1/completions", json={**BODY, "stream": True}, headers=headers
        ) as answer:
            async for line in answer.aiter_lines():
                told.extend([line] if line else [])

    task = asyncio.create_task(read())
    await until(lambda: len(told) == 3)
    await until(lambda: not sim.model.has_work)  # the engine is done; the stream is not
    assert (len(told), task.done()) == (3, False)
    task.cancel()
    await until(lambda: idle(sim))


async def test_busy_in_both_ways(http):
    plain = await post(http, "busy")
    assert plain.status_code == 503
    inside = await post(http, "busy-in-stream")
    assert inside.status_code == 200
    first, done = inside.text.strip().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["error"] == plain.json()["error"]
    assert done == "data: [DONE]"
    assert (await post(http, "busy-in-stream", stream=False)).status_code == 503


async def test_an_engine_that_dies_in_a_stream(sim, http):
    answer = await post(http, "error-in-stream=4")
    *tokens, error, done = answer.text.strip().split("\n\n")
    assert (answer.status_code, len(tokens), done) == (200, 4, "data: [DONE]")
    assert json.loads(error.removeprefix("data: "))["error"]["type"] == "InternalServerError"
    plain = await post(http, "error-in-stream=4", stream=False)
    assert (plain.status_code, plain.json()["error"]["code"]) == (500, 500)
    assert idle(sim)


@pytest.mark.parametrize(("path", "name"), [("/v1/messages", "error"), ("/v1/responses", "error")])
async def test_an_engine_that_dies_in_a_stream_of_named_events(http, path, name):
    body = {"messages": [{"role": "user", "content": "x"}], "input": "x"}
    answer = await post(http, "error-in-stream", path=path, **body)
    assert answer.text.strip().split("\n\n")[-1].startswith(f"event: {name}\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_abort_is_a_200_that_is_no_success(http, stream):
    answer = await post(http, "abort=2", stream=stream)
    assert answer.status_code == 200
    assert '"finish_reason":"abort"' in answer.text
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert answer.json()["usage"]["completion_tokens"] == 2


async def test_empty_answers_as_a_draining_engine_gives_them(sim, http):
    assert (await post(http, "empty")).text == "data: [DONE]\n\n"
    plain = (await post(http, "empty", stream=False)).json()
    assert (plain["usage"]["completion_tokens"], plain["choices"][0]["finish_reason"]) == (0, "abort")
    assert sim.model.counters.steps == 0


async def test_500(http):
    answer = await post(http, "500")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")


async def test_an_unknown_fault_is_a_400_that_names_them(http):
    answer = await post(http, "explode")
    assert answer.status_code == 400
    assert "reset-before" in answer.json()["error"]["message"]


async def test_refused_connections_for_a_while(sim, http):
    with pytest.raises(BROKEN):
        await post(http, "refuse=0.2")
    async with httpx.AsyncClient(base_url=sim.url) as fresh:
        with pytest.raises(httpx.ConnectError):
            await fresh.get("/health")
        await until(lambda: sim._listener is not None)
        assert (await fresh.get("/health")).status_code == 200


# The control endpoint


async def test_faults_for_the_next_requests(http):
    state = (await http.post("/sim/faults", json={"fault": "busy", "count": 2})).json()
    assert state["faults_waiting"] == 2
    statuses = [(await http.post("/v1/completions", json=BODY)).status_code for _ in range(3)]
    assert statuses == [503, 503, 200]


@pytest.mark.parametrize(
    "body", [{"fault": "explode"}, {"fault": "busy", "count": 0}, {"fault": "busy", "count": None}, {}]
)
async def test_a_wrong_control_body_is_a_400(http, body):
    assert (await http.post("/sim/faults", json=body)).status_code == 400


async def test_faults_can_be_cleared(http):
    await http.post("/sim/faults", json={"fault": "busy", "count": 9})
    await http.post("/sim/faults", json={"fault": "health-503"})
    assert (await http.get("/health")).status_code == 503
    await http.delete("/sim/faults")
    assert (await http.get("/health")).status_code == 200
    assert (await http.post("/v1/completions", json=BODY)).status_code == 200


async def test_stale_metrics_stand_still(sim, http):
    sim.add_fault("metrics-stale")
    before = (await http.get("/metrics")).text
    await http.post("/v1/completions", json=BODY)
    assert (await http.get("/metrics")).text == before
    sim.clear_faults()
    assert (await http.get("/metrics")).text != before


async def test_missing_metrics_have_no_series_of_vllm(sim, http):
    sim.add_fault("metrics-missing")
    text = (await http.get("/metrics")).text
    assert "vllm:" not in text
    assert "process_start_time_seconds" in text


async def test_slow_metrics_hold_up_nothing_else(sim, http):
    sim.add_fault("metrics-slow=30")
    task = asyncio.create_task(http.get("/metrics"))
    assert (await http.post("/v1/completions", json=BODY)).status_code == 200
    assert not task.done()
    task.cancel()


async def test_a_frozen_engine_holds_requests_and_stays_healthy(sim, http):
    before = (await http.get("/metrics")).text
    sim.add_fault("freeze")
    task = asyncio.create_task(http.post("/v1/completions", json=BODY))
    await until(lambda: sim.engine.jobs == 1)
    assert (await http.get("/health")).status_code == 200
    assert sim.model.counters.steps == 0
    assert (await http.get("/metrics")).text == before
    sim.clear_faults()
    assert (await task).status_code == 200


async def test_preempt_now(sim, http):
    task = asyncio.create_task(http.post("/v1/completions", json={**BODY, "max_tokens": 400}))
    await until(lambda: sim.model.running == 1)
    assert (await http.post("/sim/preempt")).json()["preempted"] is not None
    assert (await task).json()["usage"]["completion_tokens"] == 400
    state = (await http.get("/sim/state")).json()
    assert state["preemptions"] == 1
    assert state["recomputed_tokens"] > 0


async def test_a_restart_breaks_every_stream_and_forgets_everything(sim, http):
    await http.post("/v1/completions", json=BODY)
    before = (await http.get("/sim/state")).json()
    streams = [
        asyncio.create_task(http.post("/v1/completions", json={**BODY, "max_tokens": 2000, "stream": stream}))
        for stream in (True, False)
    ]
    await until(lambda: sim.model.running == 2)
    after = (await http.post("/sim/restart")).json()
    ends = await asyncio.gather(*streams, return_exceptions=True)
    assert all(isinstance(end, BROKEN) for end in ends)
    assert after["started_at"] > before["started_at"]
    assert (after["steps"], after["generation_tokens"], after["blocks_used"]) == (0, 0, 0)
    assert (await http.post("/v1/completions", json=BODY)).status_code == 200


async def test_a_restart_can_take_a_while(sim):
    async with httpx.AsyncClient(base_url=sim.url) as http:
        await http.post("/sim/restart", json={"down_s": 0.2})
    async with httpx.AsyncClient(base_url=sim.url) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("/health")
        await until(lambda: sim._listener is not None)
        assert (await http.get("/health")).status_code == 200


async def test_a_stop_ends_streams_with_abort_and_done(http, sim):
    body = {**BODY, "max_tokens": 2000}
    tasks = [
        asyncio.create_task(http.post("/v1/completions", json={**body, "stream": stream}))
        for stream in (True, False)
    ]
    hanging = asyncio.create_task(post(http, "hang"))
    await until(lambda: sim.engine.jobs == 3 and sum(len(step.tokens) for step in sim.log) > 6)
    await sim.stop()
    stream, plain = await asyncio.gather(*tasks)
    last, done = stream.text.strip().split("\n\n")[-2:]
    assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
    assert done == "data: [DONE]"
    assert plain.json()["choices"][0]["finish_reason"] == "abort"
    with pytest.raises(BROKEN):
        await hanging
    with pytest.raises(httpx.ConnectError):
        await http.get("/health")
