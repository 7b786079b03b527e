"""Sending at times, stopping early, and who is left out; against scripted answers on 127.0.0.1."""

from __future__ import annotations

import asyncio
from typing import Any

from kvgate.load import Bounds, LoadRun, Patience, Stop, StreamEnd, Trial, uniform
from kvgate.load.lengths import Fixed, Independent
from kvgate.load.mix import Tenant, drawn
from support.upstream import ScriptedUpstream, hang, respond, sse

EVENTS: list[dict[str, Any]] = [
    {
        "choices": [{"text": "a", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1},
    },
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}},
]
QUICK = Patience(stream_s_max=10.0, retries_max=0)


def workload(count: int):
    return uniform("m", count=count, prompt_tokens=5, output_tokens=1, seed=1)


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    release = asyncio.Event()
    async with ScriptedUpstream((release, *sse(EVENTS))) as up:
        run = LoadRun(
            up.url, workload(5), concurrency=3, arrivals_s=[0.0, 0.01, 0.02, 0.03, 0.04], patience=QUICK
        )
        running = asyncio.create_task(run.run())
        await up.until(lambda: run.left_out == 2)
        assert run.in_flight == 3
        release.set()
        records = await running
    assert [record.end for record in records] == [StreamEnd.COMPLETED] * 3


async def test_breaking_off_ends_what_runs() -> None:
    async with ScriptedUpstream(hang()) as up:
        run = LoadRun(up.url, workload(9), concurrency=2, patience=QUICK)
        running = asyncio.create_task(run.run())
        await up.until(lambda: len(up.requests) == 2)
        run.break_off()
        records = await running
    assert [record.end for record in records] == [StreamEnd.INTERRUPTED] * 2
    assert all(record.ended_s is not None for record in records)


async def test_when_the_time_is_over_nothing_more_is_sent() -> None:
    async with ScriptedUpstream(sse(EVENTS, delay_s=0.01)) as up:
        bounds = Bounds(duration_s=0.3, drain_s=10.0)
        trial = Trial("t", up.url, workload(100_000), concurrency=2, patience=QUICK, bounds=bounds)
        outcome = await trial.run(Stop())
    assert 2 <= len(outcome.records) < 100_000
    assert outcome.score.completed == outcome.score.offered
    assert (outcome.cut_off, outcome.interrupted, outcome.preemptions) == (0, False, None)


async def test_what_still_runs_after_that_is_broken_off() -> None:
    async with ScriptedUpstream(hang()) as up:
        bounds = Bounds(duration_s=0.1, drain_s=0.2)
        outcome = await Trial("t", up.url, workload(4), concurrency=2, patience=QUICK, bounds=bounds).run(
            Stop()
        )
    assert (outcome.cut_off, len(outcome.records), outcome.interrupted) == (2, 2, False)


async def test_stop_keeps_what_was_seen() -> None:
    release = asyncio.Event()
    async with ScriptedUpstream(sse(EVENTS), (release, *hang())) as up:
        stop, seen = Stop(), []

        def progress(trial: Trial) -> None:
            seen.append((trial.sent, trial.ended))
            if trial.ended >= 1:
                stop.say()

        trial = Trial("t", up.url, workload(9), concurrency=1, patience=QUICK)
        outcome = await trial.run(stop, progress)
    assert outcome.interrupted
    assert outcome.score.completed == 1
    assert len(outcome.records) <= 2
    assert seen[-1][1] >= 1


async def test_a_stop_that_was_said_before() -> None:
    stop = Stop()
    stop.say()
    async with ScriptedUpstream(hang()) as up:
        outcome = await Trial("t", up.url, workload(2), concurrency=1, patience=QUICK).run(stop)
    assert outcome.score.completed == 0
    assert outcome.interrupted


async def test_keys_and_reasons() -> None:
    answer = respond({"error": "full"}, 429, [("x-kvgate-reason", "queue_full")])
    async with ScriptedUpstream(answer) as up:
        load = drawn("m", 3, Independent(Fixed(3), Fixed(1)), seed=1, tenants=(Tenant("chat", "sk-1"),))
        outcome = await Trial("t", up.url, load, concurrency=1, patience=QUICK).run(Stop())
        assert {seen.header("authorization") for seen in up.requests} == {"Bearer sk-1"}
    assert outcome.score.errors == {"queue_full": 3}
    assert outcome.tenants["chat"].errors == {"queue_full": 3}
