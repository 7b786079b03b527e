"""Tenants through the whole house, on real sockets: who is let in, what each may do, and what is said of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kvgate.config import Settings
from kvgate.config.tenants import TenantBook
from kvgate.ledger.keeper import reassert_s
from support.gateway import Gate, completion, gateway
from support.redis_server import RedisServer, binary
from support.tenants import POOL, book_of
from support.upstream import Answer, EngineFace, ScriptedUpstream, engine_endpoints, respond, sse

pytestmark = pytest.mark.e2e

CHAT, BATCH = "sk-chat-abcdef", "sk-batch-012345"
KEYS = {"CHAT_KEY": CHAT, "BATCH_KEY": BATCH}
GRACE_S = reassert_s(Settings.model_fields["ledger_heartbeat_s"].default) + 0.1
TENANTS = """
    tenants:
      chat: {keys: [{env: CHAT_KEY}], weight: 4, class: interactive}
      batch: {keys: [{env: BATCH_KEY}], class: batch, queue: {depth: 2, wait: 20s}}
"""
USAGE = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102}
WHOLE = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "tiny",
    "choices": [{"index": 0, "text": " ab", "finish_reason": "length"}],
    "usage": USAGE,
}


def engine(*answers: Answer, blocks: int = 121) -> ScriptedUpstream:
    face = EngineFace(num_gpu_blocks=blocks)
    return ScriptedUpstream(*(answers or (respond(WHOLE),)), endpoints=engine_endpoints(face))


def held(go: asyncio.Event) -> Answer:
    """First event at once; the rest when `go` is set."""
    events = [
        {"choices": [{"index": 0, "text": t, "finish_reason": f}]} for t, f in (("a", None), ("b", "stop"))
    ]
    first, *rest = sse([*events, {"choices": [], "usage": USAGE}])
    return (first, rest[0], go, *rest[1:])


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    if binary() is None:
        pytest.skip("no redis-server is installed")
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.fixture(params=["memory", "shared"])
def ledger(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a ledger: every decision is the same in both."""
    if request.param == "memory":
        return {}
    server: RedisServer = request.getfixturevalue("shared")
    server.flush()
    return {"ledger_url": server.url}


def book(text: str = TENANTS) -> TenantBook:
    return book_of(text, KEYS)


@asynccontextmanager
async def run(up: ScriptedUpstream, text: str = TENANTS, **settings: Any) -> AsyncGenerator[Gate]:
    async with gateway([up.url], pool=POOL, book=book(text), **settings) as gate:
        if (
            "ledger_url" in settings
        ):  # empty as it is, it grants nothing before all who hold something have said so
            await asyncio.sleep(GRACE_S)
            await gate.until(lambda: bool(gate.view.engines), "the shared ledger known")
        yield gate


def key(secret: str = CHAT, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}", **{n.replace("_", "-"): v for n, v in more.items()}}


def sample(gate: Gate, name: str, **labels: str) -> float:
    gate.app.house.telemetry.refresh()
    found = [
        s.value
        for family in gate.app.house.telemetry.registry.collect()
        for s in family.samples
        if s.name == f"kvgate_{name}" and labels.items() <= s.labels.items()
    ]
    return sum(found)


async def queue_one(
    gate: Gate, tasks: asyncio.TaskGroup, headers: dict[str, str]
) -> asyncio.Task[httpx.Response]:
    """Send a request that will have to wait, and see it in the queue."""
    waiting = gate.view.queued
    task = tasks.create_task(gate.post("/v1/completions", completion(stream=True), headers))
    await gate.queued(waiting + 1)
    return task


# Who is let in.


async def test_a_key_lets_in_and_the_engine_sees_the_pools_key_alone():
    async with engine() as up, run(up, backend_api_key="sk-pool") as gate:
        for headers in (key(), {"x-api-key": CHAT}, key(x_api_key="other", cookie="a=b", api_key="c")):
            answer = await gate.post("/v1/completions", completion(), headers)
            assert answer.status_code == 200, answer.text
        for seen in up.scripted:
            assert seen.header("authorization") == "Bearer sk-pool"
            assert CHAT not in str(seen.headers)
            assert not {"x-api-key", "cookie", "api-key"} & {name.lower() for name, _ in seen.headers}
        assert sample(gate, "requests_total", tenant="chat", outcome="served") == 3


async def test_without_a_key_of_the_pool_the_clients_key_goes_no_further_either():
    async with engine() as up, run(up) as gate:
        await gate.post("/v1/completions", completion(), key())
        await gate.post("/tokenize", {"prompt": "a b"}, key())
        assert len(up.requests) > 2
        assert all(CHAT not in str(seen.headers) for seen in up.requests)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        key("sk-wrong"),
        {"x-api-key": "sk-wrong"},
        {"authorization": f"Basic {CHAT}"},
        {"authorization": CHAT},
    ],
)
async def test_nobody_else_reaches_an_engine_by_any_path(headers: dict[str, str]):
    async with engine() as up, run(up) as gate:
        await asyncio.sleep(0)
        for path, body in (
            ("/v1/chat/completions", {"model": "tiny", "messages": []}),
            ("/v1/embeddings", {"model": "tiny", "input": "x"}),
            ("/tokenize", {"prompt": "x"}),
            ("/v1/responses/resp_1/cancel", {}),
        ):
            answer = await gate.post(path, body, headers)
            assert answer.status_code == 401, path
            assert answer.headers["x-kvgate-reason"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["type"] == "authentication_error"
        assert (await gate.http.get("/v1/models", headers=headers)).status_code == 401
        assert (await gate.http.get("/v1/responses/resp_1", headers=headers)).status_code == 401
        spoken = await gate.post("/v1/messages", {"model": "tiny"}, headers)
        assert spoken.json()["error"]["type"] == "authentication_error"
        assert spoken.json()["type"] == "error"
        assert {seen.path for seen in up.requests if seen.header("x-request-id")} == set()
        assert sample(gate, "rejections_total", tenant="unknown", reason="unauthorized") == 3
        assert (await gate.http.get("/v1/models", headers=key())).json()["data"][0]["id"] == "tiny"


async def test_a_stranger_is_told_before_it_has_sent_its_body():
    async with engine() as up, run(up) as gate:
        url = httpx.URL(gate.url)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n"

        def ask() -> bytes:
            with socket.create_connection((url.host, url.port or 80), timeout=10) as sock:
                sock.sendall(head)
                return sock.recv(4096)

        assert (await asyncio.to_thread(ask)).startswith(b"HTTP/1.1 401 ")


async def test_no_key_and_no_digest_is_in_logs_metrics_or_what_operators_see(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG)
    secrets = [CHAT, BATCH, "sk-wrong-one"]
    async with engine() as up, run(up, admin_token="t") as gate:
        answers = [
            await gate.post("/v1/completions", completion(), key(CHAT)),
            await gate.post("/v1/completions", completion(), {"x-api-key": BATCH}),
            await gate.post("/v1/completions", completion(), key("sk-wrong-one")),
            await gate.post("/v1/completions", b"{", key(CHAT)),
        ]
        async with httpx.AsyncClient(base_url=gate.app.admin_url, headers=key("t")) as admin:
            paths = [
                "/metrics",
                *(f"/admin/{p}" for p in ("ledger", "settings", "tenants", "policy", "queue", "pools")),
            ]
            pages = [(await admin.get(path)) for path in paths]
        assert [page.status_code for page in pages[:3]] == [200, 200, 200]
    said = "".join([caplog.text, *(f"{a.text}{a.headers}" for a in [*answers, *pages])])
    assert "sk-" not in said.replace("task-", "")
    for secret in secrets:
        digest = hashlib.sha256(secret.encode())
        assert secret not in said
        assert digest.hexdigest() not in said
        assert repr(digest.digest())[2:-1] not in said


async def test_a_key_revoked_while_its_request_waits_serves_that_one_and_no_other(ledger: dict[str, Any]):
    go = asyncio.Event()
    async with engine(held(go), blocks=5) as up, run(up, **ledger) as gate, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(gate.post("/v1/completions", completion(stream=True), key(BATCH)))
        await gate.until(lambda: gate.reservations == 1)
        waiting = await queue_one(gate, tasks, key(CHAT))
        gate.app.policy.live.current = book("tenants: {batch: {keys: [{env: BATCH_KEY}], class: batch}}")
        refused = await gate.post("/v1/completions", completion(), key(CHAT))
        assert refused.status_code == 401
        go.set()
        assert (await running).status_code == 200
        answer = await waiting
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
        await gate.at_zero()


@pytest.mark.parametrize(("network", "status"), [("127.0.0.0/8", 200), ("10.0.0.0/8", 401)])
async def test_a_header_names_the_tenant_only_from_a_trusted_proxy_and_goes_no_further(
    network: str, status: int
):
    text = f"""
        identity: {{from: header, name: X-Tenant, trusted_proxies: [{network}]}}
        tenants: {{chat: {{}}, batch: {{}}}}
    """
    async with engine() as up, run(up, text) as gate:
        answer = await gate.post(
            "/v1/completions", completion(), {"x-tenant": "batch", "authorization": "Bearer x"}
        )
        assert answer.status_code == status
        assert sample(gate, "grants_total", tenant="batch") == (1 if status == 200 else 0)
        for seen in up.requests:
            assert not {"x-tenant", "authorization"} & {name.lower() for name, _ in seen.headers}


async def test_strangers_may_be_a_tenant_of_their_own():
    text = TENANTS + "\n    unknown_tenant: batch\n"
    async with engine() as up, run(up, text) as gate:
        for headers in ({}, key("sk-wrong"), key(BATCH), key(CHAT)):
            assert (await gate.post("/v1/completions", completion(), headers)).status_code == 200
        assert (await gate.post("/v1/completions", completion(), {"authorization": "x"})).status_code == 401
        assert sample(gate, "grants_total", tenant="batch") == 3


async def test_a_token_names_the_tenant_by_keys_from_a_url_that_are_read_once():
    private = ec.generate_private_key(ec.SECP256R1())
    card: dict[str, Any] = jwt.get_algorithm_by_name("ES256").to_jwk(private.public_key(), as_dict=True)
    provider = ScriptedUpstream(respond({"keys": [{**card, "kid": "k1", "alg": "ES256"}]}))

    def token(team: str, kid: str = "k1") -> dict[str, str]:
        claims = {"team": team, "exp": time.time() + 60, "aud": "kvgate", "iss": "https://id.example"}
        return key(jwt.encode(claims, private, "ES256", headers={"kid": kid}))

    async with provider, engine() as up:
        text = f"""
            identity:
              from: jwt
              claim: team
              jwks_url: {provider.url}/keys
              issuer: https://id.example
              audience: kvgate
              algorithms: [ES256]
            tenants: {{chat: {{}}, batch: {{}}}}
        """
        async with run(up, text) as gate:
            answers = await asyncio.gather(
                *(gate.post("/v1/completions", completion(), token("chat")) for _ in range(5))
            )
            assert [a.status_code for a in answers] == [200] * 5
            for headers in (token("nobody"), token("chat", "k2"), key("abc")):
                assert (await gate.post("/v1/completions", completion(), headers)).status_code == 401
            assert len(provider.requests) == 1
            assert sample(gate, "grants_total", tenant="chat") == 5


# What each may do.


async def test_a_lower_class_waits_behind_and_none_is_raised(ledger: dict[str, Any]):
    go = asyncio.Event()
    async with engine(held(go), blocks=5) as up, run(up, **ledger) as gate:
        order: list[str] = []

        async def one(name: str, headers: dict[str, str]) -> None:
            answer = await gate.post(
                "/v1/completions", completion(stream=True), {**headers, "x-request-id": name}
            )
            assert answer.status_code == 200

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(one("running", key()))
            await gate.until(lambda: gate.reservations == 1)
            wanted = {
                "batch-raised": key(BATCH, x_kvgate_class="interactive"),
                "chat-lowered": key(CHAT, x_kvgate_class="batch"),
                "chat-standard": key(CHAT, x_kvgate_class="standard"),
                "chat": key(CHAT),
            }
            for count, (name, headers) in enumerate(wanted.items(), 1):
                tasks.create_task(one(name, headers))
                await gate.queued(count)
            go.set()
        order = [str(seen.header("x-request-id")) for seen in up.scripted]
        assert order[:3] == ["running", "chat", "chat-standard"]
        assert set(order[3:]) == {"batch-raised", "chat-lowered"}
        assert all(seen.header("x-kvgate-class") is None for seen in up.scripted)


@pytest.mark.parametrize(
    "headers",
    [{"x-kvgate-class": "urgent"}, {"x-kvgate-deadline-ms": "soon"}, {"x-kvgate-deadline-ms": "-1"}],
)
async def test_a_wish_that_cannot_be_read_is_a_bad_request(headers: dict[str, str]):
    async with engine() as up, run(up) as gate:
        answer = await gate.post("/v1/completions", completion(), key() | headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in headers
        assert not up.scripted


async def test_the_requests_own_deadline_ends_its_wait(ledger: dict[str, Any]):
    go = asyncio.Event()
    async with engine(held(go), blocks=5) as up, run(up, **ledger) as gate, asyncio.TaskGroup() as tasks:
        tasks.create_task(gate.post("/v1/completions", completion(stream=True), key()))
        await gate.until(lambda: gate.reservations == 1)
        for deadline in ("0", "50"):
            answer = await gate.post("/v1/completions", completion(), key(x_kvgate_deadline_ms=deadline))
            assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (504, "deadline")
            assert "retry-after" not in answer.headers
            assert answer.json()["error"]["code"] == "deadline"
        assert sample(gate, "requests_total", outcome="evicted_deadline") == 2
        await gate.queued(0)
        go.set()


async def test_a_full_queue_is_the_tenants_own(ledger: dict[str, Any]):
    go = asyncio.Event()
    text = TENANTS.replace("queue: {depth: 2, wait: 20s}", "queue: {depth: 2, wait: 20s}, on_overload: 529")
    async with (
        engine(held(go), blocks=5) as up,
        run(up, text, **ledger) as gate,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(gate.post("/v1/completions", completion(stream=True), key()))
        await gate.until(lambda: gate.reservations == 1)
        for _ in range(2):
            await queue_one(gate, tasks, key(BATCH))
        full = await gate.post("/v1/completions", completion(), key(BATCH))
        assert (full.status_code, full.headers["x-kvgate-reason"]) == (529, "queue_full")
        assert 1 <= int(full.headers["retry-after"]) <= 60
        assert "2" in full.json()["error"]["message"]
        await queue_one(gate, tasks, key(CHAT))
        assert sample(gate, "tenant_queue_depth", tenant="batch") == 2
        assert sample(gate, "tenant_queue_depth", tenant="chat") == 1
        assert sample(gate, "tenant_weight", tenant="chat") == 4
        go.set()


async def test_a_spent_budget_of_requests_says_exactly_when_to_come_back(ledger: dict[str, Any]):
    text = "tenants: {chat: {keys: [{env: CHAT_KEY}], rate: {requests_per_minute: 2}}}"
    async with engine() as up, run(up, text, **ledger) as gate:
        before_s = time.monotonic()
        for _ in range(2):
            assert (await gate.post("/v1/completions", completion(), key())).status_code == 200
        answer = await gate.post("/v1/completions", completion(), key())
        assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (429, "tenant_rate")
        passed_ms = (time.monotonic() - before_s) * 1000
        assert 30_000 - passed_ms - 1 <= int(answer.headers["retry-after-ms"]) <= 30_000
        error = answer.json()["error"]
        assert error["type"] == "rate_limit_error"
        assert "2 requests per minute" in error["message"]
        assert sample(gate, "rate_refusals_total", tenant="chat", budget="requests_per_minute") == 1
        assert len(up.scripted) == 2


async def test_a_budget_of_tokens_is_charged_what_was_really_used(ledger: dict[str, Any]):
    """Each asks for 100 + 73 tokens and takes 102: of 306 a minute two pass at once, where 346 were asked for."""
    text = "tenants: {chat: {keys: [{env: CHAT_KEY}], rate: {tokens_per_minute: 306}}}"
    go = asyncio.Event()
    go.set()
    async with engine(respond(WHOLE), held(go)) as up, run(up, text, **ledger) as gate:
        reasons = []
        for stream in (False, True, False):
            answer = await gate.post("/v1/completions", completion(max_tokens=73, stream=stream), key())
            reasons.append(answer.headers.get("x-kvgate-reason"))
            await gate.at_zero()
        assert reasons == [None, None, "tenant_rate"]
        charged = 2 * (100 + 2 * 2)
        await gate.until(lambda: sample(gate, "tenant_service_tokens", tenant="chat") == charged)


async def test_a_request_above_its_tenants_limit_is_told_so(ledger: dict[str, Any]):
    text = """
        tenants:
          chat: {keys: [{env: CHAT_KEY}]}
          batch: {keys: [{env: BATCH_KEY}], limit: 50%}
        defaults: {reservation: guaranteed, max_tokens: {cap: 1500}}
    """
    async with engine(blocks=41) as up, run(up, text, **ledger) as gate:
        large = completion(tokens=600, max_tokens=300)  # 29 of 40 blocks
        answer = await gate.post("/v1/completions", large, key(BATCH))
        assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (400, "never_fits")
        assert answer.headers["x-should-retry"] == "false"
        assert "at most 20 of this pool" in answer.json()["error"]["message"]
        assert (await gate.post("/v1/completions", large, key(CHAT))).status_code == 200
        huge = await gate.post("/v1/completions", completion(tokens=1200, max_tokens=300), key(CHAT))
        assert "the largest engine has 40 blocks" in huge.json()["error"]["message"]


async def test_a_body_stays_as_it_is_where_the_policy_does_not_rewrite():
    text = "tenants: {chat: {keys: [{env: CHAT_KEY}], max_tokens: {rewrite: off}}}"
    async with engine(blocks=121) as up, run(up, text) as gate:
        body = b'{"model": "tiny",  "messages": [{"role": "user", "content": "hi"}]}'
        answer = await gate.post("/v1/chat/completions", body, key())
        assert answer.status_code == 200
        assert "x-kvgate-max-tokens" not in answer.headers
        assert up.scripted[0].body == body


# Modes.


async def test_observing_changes_nothing_and_counts_what_would_have_been_done(
    caplog: pytest.LogCaptureFixture, ledger: dict[str, Any]
):
    caplog.set_level(logging.INFO, "kvgate.request")
    text = """
        mode: observe
        tenants:
          chat: {keys: [{env: CHAT_KEY}], queue: {depth: 1, wait: 20s}, max_tokens: {default: 100}}
          batch: {keys: [{env: BATCH_KEY}], rate: {requests_per_minute: 1}, mode: off}
    """
    go = asyncio.Event()
    async with (
        engine(held(go), blocks=5) as up,
        run(up, text, **ledger) as gate,
        asyncio.TaskGroup() as tasks,
    ):
        body = b'{"model": "tiny",  "messages": [{"role": "user", "content": "hi"}], "stream": true}'
        wishes = {"x-kvgate-class": "urgent", "x-kvgate-deadline-ms": "0"}
        sent = []
        for number in range(3):
            sent.append(tasks.create_task(gate.post("/v1/chat/completions", body, key() | wishes)))
            await gate.until(lambda n=number: gate.reservations == n + 1)  # type: ignore[misc]
        off = [gate.post("/v1/completions", completion(stream=True), key(BATCH)) for _ in range(2)]
        sent += [tasks.create_task(one) for one in off]
        await gate.until(lambda: gate.reservations == 5)
        go.set()
        for task in sent:
            answer = await task
            assert answer.status_code == 200
            assert not [name for name in answer.headers if name.startswith("x-kvgate-")]
        assert [seen.body for seen in up.scripted[:3]] == [body] * 3
        await gate.at_zero()
        chat = {"tenant": "chat"}
        assert sample(gate, "observed_total", **chat, would="granted") == 1
        assert sample(gate, "observed_total", **chat, would="queued") == 2
        assert sample(gate, "observed_total", **chat, would="max_tokens") == 3
        assert sample(gate, "observed_total", tenant="batch") == 0
        logged = [
            getattr(line, "kvgate_fields", {}) for line in caplog.records if line.name == "kvgate.request"
        ]
        assert sorted(str(fields.get("would")) for fields in logged) == [
            "None",
            "None",
            "granted",
            "queued",
            "queued",
        ]


async def test_observing_sends_even_what_would_be_refused(ledger: dict[str, Any]):
    text = """
        tenants:
          chat: {keys: [{env: CHAT_KEY}], mode: observe, rate: {requests_per_minute: 1}, limit: 50%}
        defaults: {reservation: guaranteed, max_tokens: {cap: 600}}
    """
    refusal = respond({"error": {"message": "This model's maximum context length is 2048 tokens."}}, 400)
    async with (
        engine(respond(WHOLE), respond(WHOLE), refusal, blocks=41) as up,
        run(up, text, **ledger) as gate,
    ):
        large = completion(tokens=600, max_tokens=300)
        answers = [
            await gate.post("/v1/completions", one, key())
            for one in (large, completion(), completion(tokens=3000))
        ]
        assert [a.status_code for a in answers] == [200, 200, 400]
        assert json.loads(answers[2].text)["error"]["message"].startswith("This model's maximum")
        assert "x-kvgate-reason" not in answers[2].headers
        assert sample(gate, "observed_total", tenant="chat", would="never_fits") == 2
        await gate.at_zero()


async def test_the_kept_policy_is_the_one_that_a_request_came_under():
    """What holds for a request is decided when it comes, once."""
    go = asyncio.Event()
    async with engine(held(go), blocks=5) as up, run(up) as gate, asyncio.TaskGroup() as tasks:
        tasks.create_task(gate.post("/v1/completions", completion(stream=True), key()))
        await gate.until(lambda: gate.reservations == 1)
        waiting = await queue_one(gate, tasks, key(BATCH))
        shorter = TENANTS.replace("wait: 20s", "wait: 1s").replace("weight: 4", "weight: 1")
        gate.app.policy.live.current = book(shorter)
        await asyncio.sleep(1.2)
        assert not waiting.done()
        go.set()
        assert (await waiting).status_code == 200
