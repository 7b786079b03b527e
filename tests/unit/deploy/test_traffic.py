"""The tenants who ask: with which keys, how many at once, and what they count."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bringup.traffic import Flow, Traffic, main
from support.upstream import ScriptedUpstream, hang, reset, respond, sse

KEYS = {"a": "key-of-a", "b": "key-of-b"}


def flow(tenant: str, burst: int, every_s: float = 100.0, in_flight_max: int = 100) -> Flow:
    return Flow(tenant, every_s, burst, words=3, output_tokens_max=5, in_flight_max=in_flight_max)


async def until(traffic: Traffic, count: int) -> None:
    """Run until so many requests have ended."""
    running = asyncio.create_task(traffic.run())
    async with asyncio.timeout(15):
        while traffic.seen.total() < count:
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


async def test_every_end_is_counted_by_its_name():
    refused = respond({"error": {}}, 429, [("x-kvgate-reason", "queue_full")])
    broken = sse(["x"], done=False)
    async with ScriptedUpstream(refused, broken, respond(b"", 500), reset(), sse(["x"])) as up:
        traffic = Traffic([up.url], KEYS, flows=[flow("a", burst=6), flow("b", burst=1)])
        await until(traffic, 7)
    ends = {end: sum(n for (_, e), n in traffic.seen.items() if e == end) for _, end in traffic.seen}
    assert ends.pop("answered") == 3
    assert {ends.pop(name) for name in ("queue_full", "broken off", "500")} == {1}
    assert list(ends.values()) == [1]  # the reset, by the name of its exception
    assert [line.partition(":")[0] for line in traffic.lines()] == ["a", "b"]


async def test_each_tenant_asks_with_its_key_by_turns_at_each_address():
    async with ScriptedUpstream(sse(["x"])) as one, ScriptedUpstream(sse(["x"])) as other:
        await until(Traffic([one.url, other.url], KEYS, "m", [flow("a", burst=2), flow("b", burst=2)]), 4)
        for up in (one, other):
            assert sorted(seen.header("authorization") or "" for seen in up.requests) == [
                "Bearer key-of-a",
                "Bearer key-of-b",
            ]
            body = json.loads(up.requests[0].body)
            assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 5, True)
            assert len(body["messages"][0]["content"].split()) == 3


async def test_no_more_than_its_bound_are_under_way():
    async with ScriptedUpstream(hang()) as up:
        flows = [
            flow("a", burst=2, every_s=0.01, in_flight_max=3),
            flow("b", 1, every_s=0.01, in_flight_max=12),
        ]
        running = asyncio.create_task(Traffic([up.url], KEYS, flows=flows).run())

        def asked(tenant: str) -> int:
            return sum(seen.header("authorization") == f"Bearer key-of-{tenant}" for seen in up.requests)

        async with asyncio.timeout(15):
            while asked("b") < 12:  # then the other has had about as many turns
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.wait([running])
    assert asked("a") == 3


def test_it_says_what_it_needs(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "--policy" in capsys.readouterr().err
