"""Processes that learn together over a real Redis: one server, a Sentinel set, a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
import redis.asyncio

from kvgate.clock import SystemClock
from kvgate.forecasting import shared as module
from kvgate.forecasting.shared import Shared
from kvgate_policies.forecast import POOL, Lengths
from support.redis_server import ClusterSet, RedisServer, SentinelSet

pytestmark = pytest.mark.integration

EVERY_S = 0.02
SOON_S = 15.0


def learn(lengths: Lengths, tenant: str = "a", length: int = 300, times: int = 60) -> None:
    for _ in range(times):
        cohort = lengths.start(tenant)
        lengths.reach(tenant, cohort, 0, length)
        lengths.end(tenant, cohort, length)
    lengths.review()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not true():
            await asyncio.sleep(0.01)


def known(lengths: Lengths) -> float:
    """Sequences of the pool that count here, the others' included."""
    return lengths._pool.lengths().sequences


def own(lengths: Lengths, name: str = POOL) -> float:
    return lengths.statements().get(name, [0.0, 0.0])[1]


def member(server: RedisServer, pool: str = "p") -> Shared:
    return Shared(server.url, pool, SystemClock(), every_s=EVERY_S)


async def test_each_hears_what_the_others_learned(redis_server: RedisServer):
    one, other, elsewhere = Lengths(), Lengths(), Lengths()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(member(redis_server).serving(one))
        await stack.enter_async_context(member(redis_server).serving(other))
        await stack.enter_async_context(member(redis_server, "another").serving(elsewhere))
        learn(one, times=60)
        learn(other, times=40)
        await until(lambda: known(one) == known(other) == 100)
        assert own(one) == 60
        assert one.curve("a").alive(0, 200) == pytest.approx(other.curve("a").alive(0, 200), rel=0.01)
        learn(one, times=10)
        await until(lambda: known(other) == 110)
        assert known(elsewhere) == 0


@pytest.mark.parametrize("kind", [SentinelSet, ClusterSet])
async def test_behind_sentinels_and_in_a_cluster(kind: type[SentinelSet | ClusterSet]):
    one, other = Lengths(), Lengths()
    with kind() as servers:
        async with (
            Shared(servers.url, "p", SystemClock(), every_s=EVERY_S).serving(one),
            Shared(servers.url, "p", SystemClock(), every_s=EVERY_S).serving(other),
        ):
            learn(one, times=60)
            await until(lambda: known(other) == 60)
        async with Shared(servers.url, "p", SystemClock()).serving(third := Lengths()):
            assert own(third) == 60


async def test_it_needs_no_more_rights_than_the_ledger(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    redis_server.command("ACL", "SETUSER", "gate", "on", ">secret", "~kvgate:{p}:*", "+@hash", "+pexpire")
    url = redis_server.url.replace("redis://", "redis://gate:secret@")
    one, other = Lengths(), Lengths()
    with caplog.at_level(logging.WARNING, "kvgate"):
        async with (
            Shared(url, "p", SystemClock(), every_s=EVERY_S).serving(one),
            Shared(url, "p", SystemClock(), every_s=EVERY_S).serving(other),
        ):
            learn(one)
            await until(lambda: known(other) == 60)
    redis_server.command("ACL", "DELUSER", "gate")
    assert not caplog.records


async def test_a_tenant_that_begins_here_finds_what_others_know_of_it(redis_server: RedisServer):
    one, other = Lengths(), Lengths()
    async with member(redis_server).serving(one), member(redis_server).serving(other):
        learn(one, "late", times=80)
        await until(lambda: known(other) == 80)
        other.start("late")
        await until(lambda: other.curve("late").alive(0, 200) > 0.9)


async def test_what_one_that_leaves_had_counted_is_counted_by_another(redis_server: RedisServer):
    one, other, third = Lengths(), Lengths(), Lengths()
    async with member(redis_server).serving(one), member(redis_server).serving(other):
        async with member(redis_server).serving(third):
            learn(third, times=50)
        await until(lambda: known(one) == known(other) == 50)
        await until(lambda: sorted((own(one), own(other))) == [0, 50])
        assert sorted((own(one, "a"), own(other, "a"))) == [0, 50]


async def test_the_next_one_begins_with_what_the_last_one_left(redis_server: RedisServer):
    before, after = Lengths(), Lengths()
    async with member(redis_server).serving(before):
        learn(before, times=50)
    async with member(redis_server).serving(after):
        assert own(after) == 50
    async with redis.asyncio.from_url(redis_server.url) as client:
        assert await client.hlen("kvgate:{p}:lengths2") == 1
        assert 0 < await client.ttl("kvgate:{p}:lengths2") <= module.KEPT_S
        assert 0 < await client.ttl("kvgate:{p}:lengths2_signs") <= module.KEPT_S


async def test_one_that_fell_silent_is_taken_over_by_one_alone(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "SILENT_S", 1.0)
    monkeypatch.setattr(module, "SIGN_EVERY_S", 0.05)
    dead = member(redis_server)
    lengths = Lengths()
    learn(lengths, times=70)
    await dead._state(lengths, last=False)
    await dead._connection.aclose()
    others = [Lengths() for _ in range(4)]
    async with AsyncExitStack() as stack:
        for other in others:
            await stack.enter_async_context(member(redis_server).serving(other))
        await until(lambda: all(known(other) == 70 for other in others))
        await until(lambda: sorted(map(own, others)) == [0, 0, 0, 70])
        await until(lambda: all(known(other) == 70 for other in others))


async def test_nothing_is_written_while_nothing_is_learned(redis_server: RedisServer):
    one, other = Lengths(), Lengths()
    learn(one)
    async with member(redis_server).serving(one), member(redis_server).serving(other):
        await until(lambda: known(other) == 60)
        before = _calls(redis_server, "hset")
        await asyncio.sleep(20 * EVERY_S)
        assert _calls(redis_server, "hset") == before
        assert _calls(redis_server, "hgetall") > 20


def _calls(server: RedisServer, command: str) -> int:
    client = redis.Redis.from_url(server.url)
    try:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))
    finally:
        client.close()


@pytest.mark.parametrize("text", ["", "{", '{"a": [1, 2]}', "[1]"])
async def test_a_statement_that_is_none_disturbs_nobody(
    redis_server: RedisServer, text: str, caplog: pytest.LogCaptureFixture
):
    one, other = Lengths(), Lengths()
    async with redis.asyncio.from_url(redis_server.url) as client:
        await client.hset("kvgate:{p}:lengths2", "broken", text)
        await client.hset("kvgate:{p}:lengths2_signs", "broken", "1:1")
    learn(one)
    with caplog.at_level(logging.WARNING, "kvgate"):
        async with member(redis_server).serving(one), member(redis_server).serving(other):
            await until(lambda: known(other) == 60)
    assert "process broken" in caplog.text


async def test_versions_that_write_another_form_leave_each_other_alone(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """As in an upgrade without a stop, where the older processes leave last."""
    older = [Lengths(), Lengths()]
    newer = [Lengths(), Lengths()]
    with caplog.at_level(logging.WARNING, "kvgate"):
        async with AsyncExitStack() as stack:
            monkeypatch.setattr(module, "FORM", "lengths")
            for lengths in older:
                await stack.enter_async_context(member(redis_server).serving(lengths))
            monkeypatch.undo()
            async with AsyncExitStack() as later:
                for lengths in newer:
                    await later.enter_async_context(member(redis_server).serving(lengths))
                learn(older[0], times=30)
                learn(newer[0], times=50)
                await until(lambda: known(newer[1]) == 50 and known(older[1]) == 30)
                await asyncio.sleep(10 * EVERY_S)
                assert [known(lengths) for lengths in (*older, *newer)] == [30, 30, 50, 50]
    assert caplog.text == ""
    async with redis.asyncio.from_url(redis_server.url) as client:
        assert sorted(await client.keys("kvgate:{p}:lengths*")) == [
            b"kvgate:{p}:lengths",
            b"kvgate:{p}:lengths2",
            b"kvgate:{p}:lengths2_signs",
            b"kvgate:{p}:lengths_signs",
        ]


async def test_while_redis_is_away_each_learns_alone_and_it_is_said_once(caplog: pytest.LogCaptureFixture):
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        one, other = Lengths(), Lengths()
        with caplog.at_level(logging.WARNING, "kvgate.forecasting"):
            async with member(server).serving(one), member(server).serving(other):
                learn(one, times=30)
                await until(lambda: known(other) == 30)
                server.kill()
                learn(one, times=30)
                await asyncio.sleep(20 * EVERY_S)
                assert known(one) == 60
                assert known(other) == 30
                server.start()  # empty
                learn(one, times=1)
                learn(other, times=1)
                await until(lambda: known(one) == known(other) == 62)
        said = [record for record in caplog.records if record.name == "kvgate.forecasting.shared"]
        assert 1 <= len(said) <= 4  # each once, or once more at the end
