"""Operators at a running kvgate: over the admin port and with the commands, alone and with several replicas."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import pytest

from kvgate.assembly.file import PolicySource
from kvgate.config import load
from kvgate.sim import SimServer
from support.gateway import Gate, serving
from support.redis_server import RedisServer

pytestmark = pytest.mark.e2e

TOKEN = "hush-hush"
ENV = {
    "KVGATE_PORT": "0",
    "KVGATE_ADMIN_PORT": "0",
    "KVGATE_PROBE_INTERVAL": "100ms",
    "KVGATE_ADMIN_TOKEN": TOKEN,
    "KEY_CHAT": "key-of-chat",
    "KEY_BATCH": "key-of-batch",
}
TENANTS = {
    "chat": {"keys": [{"env": "KEY_CHAT"}], "weight": 4, "class": "interactive", "guarantee": "30%"},
    "batch": {"keys": [{"env": "KEY_BATCH"}], "class": "batch", "limit": "60%"},
}


def file_of(folder: Path, backend: str) -> Path:
    path = folder / "policy.yaml"
    text = json.dumps({"version": 1, "pools": {"p": {"backends": [backend]}}, "tenants": TENANTS})
    path.write_text(text)
    return path


@asynccontextmanager
async def operated(path: Path, **env: str) -> AsyncGenerator[tuple[Gate, httpx.AsyncClient]]:
    source = PolicySource(lambda: load(path, ENV | env, {}), path)
    async with serving(source.read(), source=source, ready=False) as gate:
        await gate.until(lambda: all(s.limits for s in gate.app.pool.snapshot()), "the engine known")
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=gate.app.admin_url, headers=headers, timeout=30.0) as admin:
            yield gate, admin


async def kvgate(gate: Gate, *words: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "KVGATE_ADMIN": gate.app.admin_url}
    env |= {} if token is None else {"KVGATE_ADMIN_TOKEN": token}
    command = [sys.executable, "-m", "kvgate", *words]
    return await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, env=env, capture_output=True, text=True, timeout=50, check=False)
    )


async def weight_of(admin: httpx.AsyncClient, tenant: str) -> Any:
    told = (await admin.get(f"/admin/tenants/{tenant}")).json()
    return told["pools"][0]["policy"]["weight"]["value"]


async def test_a_change_holds_survives_a_reload_is_audited_and_ends(tmp_path: Path, caplog) -> None:
    async with SimServer() as sim, operated(file_of(tmp_path, sim.url)) as (gate, admin):
        with caplog.at_level(logging.INFO, "kvgate.audit"):
            answer = await admin.patch("/admin/tenants/chat", json={"weight": 6, "limit": "90%", "for": "2h"})
        assert answer.status_code == 200
        assert gate.app.policy.live.current.policy("chat", "p").rules.weight == 6
        assert {use.name: use.rules.weight for use in gate.view.tenants}["chat"] == 6
        [line] = [r.getMessage() for r in caplog.records if r.name == "kvgate.audit"]
        assert line.startswith("tenant chat changed by 127.0.0.1 until 20")
        assert "weight in p: 4.0 → 6.0" in line
        assert "limit in p: 1.0 → 0.9" in line
        await gate.app.reload()
        assert await weight_of(admin, "chat") == 6
        # What was changed before stays, and one field is taken back.
        told = (await admin.patch("/admin/tenants/chat", json={"weight": None, "mode": "observe"})).json()
        assert told["changes"][0]["fields"] == {"limit": 0.9, "mode": "observe"}
        assert 3500 < told["changes"][0]["left_s"] <= 3600
        assert (await admin.delete("/admin/tenants/chat")).json()["changes"] == []
        assert await weight_of(admin, "chat") == 4


async def test_a_change_ends_by_itself(tmp_path: Path) -> None:
    async with SimServer() as sim, operated(file_of(tmp_path, sim.url)) as (gate, admin):
        await admin.patch("/admin/tenants/chat", json={"weight": 6, "for": "1200ms"})
        assert await weight_of(admin, "chat") == 6
        rules = gate.app.policy.live
        await gate.until(lambda: rules.current.policy("chat", "p").rules.weight == 4, "the change is over")
        assert {use.name: use.rules.weight for use in gate.view.tenants}["chat"] == 4


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"guarantee": "80%", "limit": "50%"}, "at most the limit of 50%"),
        ({"weight": 6, "for": "200h"}, "allowed: above 0 and at most 168h"),
        ({"weigth": 6}, "cannot be changed; allowed: weight"),
        ({"weight": -1}, "allowed: a number from 0.01 to 1000"),
    ],
)
async def test_a_change_is_refused_as_the_file_would_be(
    tmp_path: Path, body: dict[str, Any], said: str
) -> None:
    async with SimServer() as sim, operated(file_of(tmp_path, sim.url)) as (_, admin):
        answer = await admin.patch("/admin/tenants/chat", json=body)
        assert answer.status_code == 422
        assert said in answer.json()["detail"]
        assert (await admin.get("/admin/tenants/chat")).json()["changes"] == []


async def test_no_key_and_no_digest_anywhere(tmp_path: Path) -> None:
    from kvgate.config.identity import key_digest  # noqa: PLC0415

    async with SimServer() as sim, operated(file_of(tmp_path, sim.url)) as (_, admin):
        secrets = [TOKEN, ENV["KEY_CHAT"], ENV["KEY_BATCH"]]
        secrets += [key_digest(key.encode()).hex() for key in secrets]
        schema = (await admin.get("/admin/openapi.json")).json()
        plain = [path for path in schema["paths"] if "{" not in path and "get" in schema["paths"][path]]
        assert len(plain) >= 10
        for path in (*plain, "/admin/tenants/chat", "/readyz", "/metrics"):
            answer = await admin.get(path)
            assert answer.status_code == 200, path
            assert not [secret for secret in secrets if secret in answer.text], path


async def test_the_commands(tmp_path: Path) -> None:
    async with SimServer() as sim, operated(file_of(tmp_path, sim.url)) as (gate, admin):
        listed = await kvgate(gate, "tenants")
        assert listed.returncode == 0, listed.stderr
        rows = [line.split() for line in listed.stdout.splitlines()]
        assert rows[1][:4] == ["batch", "p", "batch", "1"]
        assert rows[2][:4] == ["chat", "p", "interactive", "4"]

        done = await kvgate(
            gate, "tenants", "set", "chat", "weight=6", "queue_wait_s_max=10s", "--for", "30m"
        )
        assert done.returncode == 0, done.stderr
        assert "changed in all pools for 30 min more" in done.stdout
        assert await weight_of(admin, "chat") == 6
        shown = await kvgate(gate, "tenants", "show", "chat", "--json")
        assert json.loads(shown.stdout)["pools"][0]["policy"]["queue_wait_s_max"]["value"] == 10.0
        assert (await kvgate(gate, "tenants", "unset", "chat")).returncode == 0
        assert await weight_of(admin, "chat") == 4

        drained = await kvgate(gate, "engines", "drain", sim.url)
        assert (drained.returncode, "draining" in drained.stdout) == (0, True)
        assert gate.app.pool.available() == frozenset()
        assert (await kvgate(gate, "engines", "undrain", sim.url)).returncode == 0
        told = json.loads((await kvgate(gate, "engines", "list", "--json")).stdout)
        assert [engine["state"] for engine in told["engines"]] == ["up"]
        assert "Nobody waits." in (await kvgate(gate, "queue")).stdout


@pytest.mark.parametrize(
    ("words", "token", "said"),
    [
        (("tenants",), None, "the admin token is missing"),
        (("tenants",), "wrong", "the admin token is wrong"),
        (("tenants", "show", "nobody"), TOKEN, "No tenant 'nobody'; there are: chat, batch."),
        (("tenants", "set", "chat", "weight=0"), TOKEN, "weight: '0' is not allowed"),
        (("tenants", "set", "chat", "weight"), TOKEN, "FIELD=VALUE"),
        (("engines", "drain", "http://x:1"), TOKEN, "No engine 'http://x:1'; there are"),
        (("queue", "--pool", "x"), TOKEN, "No pool 'x'; there are: p."),
    ],
)
async def test_commands_that_are_refused_say_why(
    tmp_path: Path, words: tuple[str, ...], token: str | None, said: str
) -> None:
    async with SimServer() as sim, operated(file_of(tmp_path, sim.url)) as (gate, _):
        done = await kvgate(gate, *words, token=token)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def redis_url():
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server.url


async def test_replicas_share_changes_and_drains_and_a_later_one_finds_them(
    tmp_path: Path, redis_url: str
) -> None:
    shared = {"KVGATE_LEDGER": redis_url}
    async with SimServer() as sim:
        path = file_of(tmp_path, sim.url)
        async with operated(path, **shared) as (first, admin):
            async with operated(path, **shared) as (second, _):
                await admin.patch("/admin/tenants/chat", json={"weight": 6, "for": "1h"})
                told = await admin.post("/admin/engines/drain", json={"engine_id": sim.url})
                assert told.json()["everywhere"] is True
                live = second.app.policy.live
                await second.until(lambda: live.current.policy("chat", "p").rules.weight == 6, "the change")
                await second.until(lambda: not second.app.pool.available(), "the drain")
            async with operated(path, **shared) as (third, _):
                assert third.app.policy.live.current.policy("chat", "p").rules.weight == 6
                assert not third.app.pool.available()
                assert (await other_delete(third)).status_code == 200
                await first.until(
                    lambda: first.app.policy.live.current.policy("chat", "p").rules.weight == 4, "its end"
                )
                await admin.post("/admin/engines/undrain", json={"engine_id": sim.url})
                await third.until(lambda: bool(third.app.pool.available()), "work again")


async def other_delete(gate: Gate) -> httpx.Response:
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=gate.app.admin_url, headers=headers) as admin:
        return await admin.delete("/admin/tenants/chat")


async def test_one_of_two_ranks_goes_back_to_work(tmp_path: Path) -> None:
    from support.upstream import EngineFace, ScriptedUpstream, engine_endpoints  # noqa: PLC0415

    face = EngineFace(engines=2, num_gpu_blocks=242)
    async with (
        ScriptedUpstream(endpoints=engine_endpoints(face)) as up,
        operated(file_of(tmp_path, up.url)) as (gate, admin),
    ):
        await gate.until(lambda: len(gate.app.pool.available()) == 2, "two ranks")
        await admin.post("/admin/engines/drain", json={"engine_id": up.url})
        await admin.post("/admin/engines/undrain", json={"engine_id": f"{up.url}#1"})
        for _ in range(3):
            await gate.app.policy.follow()
            assert gate.app.pool.available() == {f"{up.url}#1"}
