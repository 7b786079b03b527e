"""The simulated engine over real sockets, with httpx and the OpenAI SDK."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from kvgate.sim import SimServer, find_profile
from kvgate_policies.engine_model import StepProfile

pytestmark = pytest.mark.e2e

CHAT = {"messages": [{"role": "user", "content": "hello the proxy"}], "ignore_eos": True}
GENERATING = [
    ("/v1/chat/completions", {**CHAT, "max_tokens": 5}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 5, "ignore_eos": True}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 5, "ignore_eos": True}),
    ("/v1/messages", {**CHAT, "max_tokens": 5}),
    ("/v1/embeddings", {"input": "hello"}),
]


@pytest.fixture
async def sim():
    async with SimServer() as server:
        yield server


@pytest.fixture
async def http(sim):
    async with httpx.AsyncClient(base_url=sim.url, timeout=30) as client:
        yield client


@pytest.fixture
async def sdk(sim):
    async with openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def until(condition, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def idle(sim: SimServer) -> bool:
    return sim.engine.jobs == 0 and sim.model.kv_used == 0 and not sim.model.has_work


# Management


async def test_every_answer_says_that_it_is_a_simulator(sim, http):
    answers = [await http.get(path) for path in ("/health", "/v1/models", "/metrics", "/nope")]
    answers += [await http.post(path, json=body) for path, body in GENERATING]
    answers.append(await http.post("/v1/completions", content=b"{"))
    assert {answer.headers["server"] for answer in answers} == {"kvgate-sim"}


async def test_management_routes(sim, http):
    models = (await http.get("/v1/models")).json()
    assert (models["data"][0]["id"], models["data"][0]["max_model_len"]) == ("sim", 2048)
    assert (await http.get("/version")).json() == {"version": "0.32.0"}
    assert (await http.get("/load")).json() == {"server_load": 0}
    for answer in (await http.get("/health"), await http.get("/ping"), await http.post("/ping", json={})):
        assert (answer.status_code, answer.content) == (200, b"")


async def test_unknown_routes_and_methods(http):
    missing = await http.get("/server_info")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    wrong = await http.get("/v1/completions")
    assert (wrong.status_code, wrong.json(), wrong.headers["allow"]) == (
        405,
        {"detail": "Method Not Allowed"},
        "POST",
    )
    head = await http.head("/health")
    assert (head.status_code, head.headers["allow"], head.headers["content-length"]) == (405, "GET", "31")
    render = await http.post("/v1/chat/completions/render", json=CHAT)
    assert (render.status_code, render.json()["error"]["type"]) == (403, "PermissionDeniedError")


async def test_tokenize_agrees_with_what_is_charged(sim, http):
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "how many tokens are these?"}),
    ):
        counted = (await http.post("/tokenize", json={"model": "sim", **body})).json()
        answer = (await http.post(path, json={**body, "max_tokens": 1})).json()
        assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
        assert counted["max_model_len"] == 2048
        ids = {"prompt": counted["tokens"], "max_tokens": 1}
        by_id = (await http.post("/v1/completions", json=ids)).json()
        assert by_id["usage"]["prompt_tokens"] == counted["count"]


async def test_tokenize_options_and_counting_of_messages(http):
    body = {"prompt": "hello the proxy", "add_special_tokens": False, "return_token_strs": True}
    told = (await http.post("/tokenize", json=body)).json()
    assert (told["count"], "".join(told["token_strs"])) == (4, "hello the proxy")
    back = await http.post("/detokenize", json={"tokens": told["tokens"]})
    assert back.json() == {"prompt": "hello the proxy"}
    long = (await http.post("/tokenize", json={"prompt": "x" * 40_000})).json()
    assert long["count"] == 10_001
    counted = await http.post("/v1/messages/count_tokens", json=CHAT)
    assert counted.json() == {"input_tokens": 8, "context_management": {"original_input_tokens": 8}}
    assert (await http.post("/tokenize", json={"model": "other", "prompt": "x"})).status_code == 404
    assert (await http.post("/detokenize", json={"tokens": ["x"]})).status_code == 400


# Generating


@pytest.mark.parametrize(("path", "body"), GENERATING)
async def test_every_generating_route_answers_and_leaves_nothing(sim, http, path, body):
    answer = await http.post(path, json=body)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert idle(sim)


@pytest.mark.parametrize(("path", "body"), GENERATING[:4])
async def test_every_stream_ends_as_it_should(sim, http, path, body):
    answer = await http.post(path, json={**body, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["transfer-encoding"] == "chunked"
    done = answer.text.endswith("data: [DONE]\n\n")
    assert done == (path in {"/v1/chat/completions", "/v1/completions"})
    assert idle(sim)


async def test_the_sdk_reads_a_chat(sdk):
    answer = await sdk.chat.completions.create(model="sim", messages=CHAT["messages"], max_tokens=4)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 4
    assert len(answer.choices[0].message.content) == 16


async def test_the_sdk_reads_a_stream_with_usage(sdk):
    stream = await sdk.chat.completions.create(
        model="sim",
        messages=CHAT["messages"],
        max_tokens=20,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    texts = ["", ""]
    usage = None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert [len(text) for text in texts] == [80, 80]
    assert texts[0] != texts[1]
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (8, 40)


async def test_the_sdk_reads_completions_embeddings_and_models(sdk):
    completion = await sdk.completions.create(model="sim", prompt=["one", "two"], max_tokens=3)
    assert [choice.index for choice in completion.choices] == [0, 1]
    embedding = await sdk.embeddings.create(model="sim", input="hello")  # asks for base64
    assert len(embedding.data[0].embedding) == 8
    assert [model.id async for model in sdk.models.list()] == ["sim"]


async def test_the_sdk_reads_responses(sdk):
    answer = await sdk.responses.create(model="sim", input="hello", max_output_tokens=3)
    assert (answer.status, answer.usage.output_tokens, len(answer.output_text)) == ("incomplete", 3, 12)
    events = await sdk.responses.create(model="sim", input="hello", max_output_tokens=3, stream=True)
    kinds = [event.type async for event in events]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


async def test_the_sdk_raises_the_right_errors(sdk):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await sdk.chat.completions.create(model="other", messages=CHAT["messages"])
    with pytest.raises(openai.BadRequestError, match="cannot be greater than max_model_len"):
        await sdk.chat.completions.create(model="sim", messages=CHAT["messages"], max_tokens=5000)


async def test_an_error_of_messages_is_anthropics(http):
    answer = await http.post("/v1/messages", json={**CHAT, "max_tokens": 5000})
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "BadRequestError"


async def test_a_body_that_is_not_declared_as_json_is_refused(http):
    answer = await http.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert answer.json()["error"]["message"] == (
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    )


async def test_the_request_id_is_the_clients(http):
    answer = await http.post(
        "/v1/chat/completions", json={**CHAT, "max_tokens": 1}, headers={"x-request-id": "abc-123"}
    )
    assert answer.json()["id"] == "chatcmpl-abc-123"


async def test_the_output_length_can_be_asked_for(http):
    body = {"prompt": "hello", "max_tokens": 50}
    answer = (await http.post("/v1/completions", json=body, headers={"x-sim-output-tokens": "7"})).json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("stop", 7)


async def test_the_same_request_gives_the_same_answer(http):
    answers = [
        (await http.post("/v1/chat/completions", json={"messages": CHAT["messages"]})).json() for _ in "ab"
    ]
    contents = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert contents[0] == contents[1]
    assert answers[0]["choices"][0]["finish_reason"] == "stop"


async def test_a_second_request_with_the_same_prompt_hits_the_prefix_cache(sim, http):
    body = {"prompt": list(range(8, 138)), "max_tokens": 1}
    for _ in range(2):
        await http.post("/v1/completions", json=body)
    assert sim.model.counters.prefix_hits == 128


async def test_connections_are_kept_alive(sim, http):
    for _ in range(3):
        await http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 2, "stream": True})
    assert len(sim._state.connections) == 1


# Load


async def test_beyond_the_capacity_requests_are_preempted_and_all_end():
    requests = [{"prompt": [8 + k] * 192, "max_tokens": 129, "ignore_eos": True} for k in range(24)]
    async with SimServer(profile=StepProfile("quick", 0.002)) as sim:
        async with httpx.AsyncClient(base_url=sim.url, timeout=60) as http:
            answers = await asyncio.gather(*(http.post("/v1/completions", json=body) for body in requests))
        lengths = {answer.json()["usage"]["completion_tokens"] for answer in answers}
        assert lengths == {129}
        assert sim.model.counters.preemptions > 0
        assert max(step.kv_used for step in sim.log) <= 120
        assert sum(len(step.preempted) for step in sim.log) == sim.model.counters.preemptions
        assert idle(sim)


async def test_within_the_capacity_nobody_is_preempted():
    requests = [{"prompt": [8 + k] * 192, "max_tokens": 129, "ignore_eos": True} for k in range(12)]
    async with SimServer() as sim:
        async with httpx.AsyncClient(base_url=sim.url, timeout=60) as http:
            await asyncio.gather(*(http.post("/v1/completions", json=body) for body in requests))
        assert sim.model.counters.preemptions == 0
        assert max(step.kv_used for step in sim.log) > 100


async def test_a_hundred_streams_get_every_token():
    body = {**CHAT, "max_tokens": 40, "stream": True, "stream_options": {"include_usage": True}}
    async with SimServer(blocks=1000, profile=StepProfile("quick", 0.005)) as sim:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=sim.url, timeout=60, limits=limits) as http:
            answers = await asyncio.gather(
                *(http.post("/v1/chat/completions", json=body) for _ in range(100))
            )
        for answer in answers:
            usage = json.loads(answer.text.split("data: ")[-2])
            assert usage["usage"]["completion_tokens"] == 40
        assert max(step.running for step in sim.log) > 50
        assert idle(sim)


# The client leaves


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(sim, http, stream):
    body = {**CHAT, "max_tokens": 2000, "stream": stream}

    async def ask():
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_raw():
                pass

    sim.engine.freeze()  # so that it can't end before we leave
    task = asyncio.create_task(ask())
    await until(lambda: sim.engine.jobs == 1)
    sim.engine.thaw()
    await until(lambda: sim.model.kv_used > 0)
    task.cancel()
    await until(lambda: idle(sim))
    assert sim.engine.stats.ended == dict.fromkeys(sim.engine.stats.ended, 0)


async def test_a_client_that_leaves_the_line_is_gone_from_it():
    slow = find_profile("vllm-cpu-tiny")
    async with SimServer(max_num_seqs=1, profile=slow) as sim, httpx.AsyncClient(base_url=sim.url) as http:
        body = {**CHAT, "max_tokens": 1000}
        tasks = [asyncio.create_task(http.post("/v1/chat/completions", json=body)) for _ in range(2)]
        await until(lambda: sim.model.running == 1 and sim.model.waiting == 1)
        for task in tasks:
            task.cancel()
        await until(lambda: idle(sim))


# Too busy


async def test_max_num_queued_reqs_refuses_with_503():
    async with SimServer(max_num_queued_reqs=2) as sim, httpx.AsyncClient(base_url=sim.url) as client:
        body = {"prompt": "hello", "n": 3, "max_tokens": 1}
        for stream in (False, True):
            answer = await client.post("/v1/completions", json={**body, "stream": stream})
            assert answer.status_code == 503
            assert answer.json()["error"]["type"] == "Service Unavailable"
            assert "retry-after" not in answer.headers
        metrics = (await client.get("/metrics")).text
        assert 'reason="max_num_queued_reqs"} 2.0' in metrics
        assert idle(sim)


async def test_a_list_of_prompts_is_refused_inside_the_stream():
    async with SimServer(max_num_queued_reqs=2) as sim, httpx.AsyncClient(base_url=sim.url) as client:
        body = {"prompt": ["one", "two", "three"], "max_tokens": 1}
        plain = await client.post("/v1/completions", json=body)
        assert plain.status_code == 503
        stream = await client.post("/v1/completions", json={**body, "stream": True})
        assert stream.status_code == 200
        error, done = stream.text.strip().split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 503
        assert done == "data: [DONE]"
        assert idle(sim)
