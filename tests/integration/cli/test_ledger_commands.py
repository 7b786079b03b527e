"""`kvgate ledger` on a real Redis: what it shows, what it finds broken, and what it removes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from kvgate.cli import app
from kvgate.ledger.base import Ask
from kvgate.ledger.scripts import LedgerScripts
from kvgate_policies.types import EngineLimits, EngineShape, KVCost

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration

SHAPE = EngineShape(16, 4096)
ENGINE = EngineLimits("http://gpu-a:8000", SHAPE, blocks=100, seqs=8, prefill_tokens=8192)
LEASE_MS = 60_000
SHORT_LEASE_MS = 200


@pytest.fixture
def run(redis_server: RedisServer) -> Callable[..., Any]:
    def invoke(*words: str, pool: str = "p") -> Any:
        env = {"NO_COLOR": "1", "TERM": "dumb"}
        return CliRunner(env=env).invoke(
            app, ["ledger", *words, "--ledger", redis_server.url, "--pool", pool]
        )

    return invoke


def fill(server: RedisServer, *pids: str, lease_ms: int = LEASE_MS) -> None:
    """Each process holds 40 blocks, as far as they fit, and waits for the rest."""

    async def reserve() -> None:
        client = Redis.from_url(server.url)
        scripts = LedgerScripts(client, "p", lease_ms=lease_ms, grace_ms=0)
        for pid in pids:
            await scripts.beat(pid, ack=0, rel=0, sums={}, closed=())
            await scripts.observe(pid, ENGINE)
            await scripts.reserve(pid, Ask(f"r-{pid}", "t", {SHAPE: KVCost(40, 1, 100)}, 10))
        await client.aclose()

    anyio.run(reserve)


def test_what_is_there_is_shown(run: Callable[..., Any], redis_server: RedisServer) -> None:
    fill(redis_server, "one", "two", "three")
    told = json.loads(run("show", "--json").stdout)
    [engine] = told["engines"]
    assert (engine["reserved_blocks"], engine["reservations"], told["queued"]) == (80, 2, 1)
    assert {p["process"]: sum(h["reserved_blocks"] for h in p["holds"]) for p in told["processes"]} == {
        "one": 40, "two": 40, "three": 0,
    }  # fmt: skip
    assert [one["request"] for one in told["head"]] == ["r-three"]
    result = run("show")
    assert (result.exit_code, ENGINE.engine_id in result.stdout) == (0, True)


def test_a_sound_ledger_is_verified(run: Callable[..., Any], redis_server: RedisServer) -> None:
    fill(redis_server, "one")
    result = run("verify")
    assert (result.exit_code, result.stdout) == (0, "OK: all invariants hold\n")


def test_what_is_broken_is_named(run: Callable[..., Any], redis_server: RedisServer) -> None:
    fill(redis_server, "one", "two", "three")
    redis_server.command("HDEL", "kvgate:{p}:waiters", "r-three")
    result = run("verify")
    assert result.exit_code == 1
    assert result.stdout.startswith("broken: ")
    told = json.loads(run("verify", "--json").stdout)
    assert not told["ok"]
    assert told["broken"]


def test_who_is_gone_is_removed(run: Callable[..., Any], redis_server: RedisServer) -> None:
    fill(redis_server, "one", "two", "three", lease_ms=SHORT_LEASE_MS)
    anyio.run(anyio.sleep, 2 * SHORT_LEASE_MS / 1000)
    result = run("reap", "--yes")
    assert result.exit_code == 0
    assert "gone" in result.stdout
    told = json.loads(run("show", "--json").stdout)
    assert told["processes"] == []
    assert sum(orphan["reserved_blocks"] for orphan in told["orphans"]) == 80
    assert (told["queued"], run("reap").exit_code) == (0, 0)


def everything(server: RedisServer) -> dict[str, object]:
    """All keys of the pool, as they are stored."""
    with server.client() as client:
        return {
            key: client.execute_command("DUMP", key, NEVER_DECODE=True) for key in client.scan_iter("*{p}*")
        }


def test_without_yes_nothing_is_changed(run: Callable[..., Any], redis_server: RedisServer) -> None:
    """Not even what any call of a process would do: take one for gone, grant."""
    fill(redis_server, "one", "two", "three", lease_ms=SHORT_LEASE_MS)
    anyio.run(anyio.sleep, 2 * SHORT_LEASE_MS / 1000)
    before = everything(redis_server)
    result = run("reap")
    assert result.exit_code == 1
    assert f"one: the lease ran out; it holds room on {ENGINE.engine_id}\n" in result.stdout
    assert "three: the lease ran out; it holds nothing\n" in result.stdout
    assert "Nothing was done" in result.stderr
    told = json.loads(run("reap", "--json").stdout)
    assert told == {"expired": {"one": [ENGINE.engine_id], "two": [ENGINE.engine_id], "three": []}}
    assert everything(redis_server) == before
    assert run("reap", "--yes").exit_code == 0
    assert everything(redis_server) != before


def test_asking_for_a_pool_that_is_not_there_makes_none(
    run: Callable[..., Any], redis_server: RedisServer
) -> None:
    fill(redis_server, "one")
    result = run("show", pool="q")
    assert result.exit_code == 2
    assert "no process has used a ledger for the pool 'q'" in result.stderr
    assert "there are: p" in result.stderr
    assert redis_server.command("EXISTS", "kvgate:{q}:meta") == 0
