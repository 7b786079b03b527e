"""The load client against the simulated engine, in one process on 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest

from kvgate.load import EngineWatch, PromptKind, StreamEnd, offer, report, uniform
from kvgate.load.watch import from_metrics
from kvgate.sim import SimServer


def _sim(profile: str) -> SimServer:
    return SimServer(
        blocks=121, block_size=32, max_model_len=2048, max_num_seqs=256, profile=profile, model="sim"
    )


@pytest.mark.parametrize("kind", list(PromptKind))
async def test_every_kind_of_prompt_is_served_and_counted(kind):
    async with _sim("instant") as sim:
        workload = uniform("sim", count=3, prompt_tokens=40, output_tokens=7, seed=1, kind=kind)
        records = await offer(sim.url, workload)
        assert [record.end for record in records] == [StreamEnd.COMPLETED] * 3
        assert [len(record.token_times_s) for record in records] == [7] * 3
        if kind is PromptKind.TOKEN_IDS:
            assert [record.prompt_tokens for record in records] == [40] * 3


async def test_lengths_that_are_not_told_are_those_of_the_workload_all_the_same():
    async with _sim("instant") as sim:
        told = uniform("sim", count=3, prompt_tokens=40, output_tokens=70, seed=1, kind=PromptKind.CHAT)
        workload = replace(told, tells_lengths=False)
        assert not {"max_tokens", "ignore_eos"} & json.loads(workload.body(0)).keys()
        records = await offer(sim.url, workload)
    assert [record.end for record in records] == [StreamEnd.COMPLETED] * 3
    assert [record.finish_reason for record in records] == ["stop"] * 3
    assert [record.completion_tokens for record in records] == [70] * 3
    assert [record.tokens_wanted for record in records] == [None] * 3


async def test_the_report_agrees_with_the_engines_own_log():
    async with _sim("fast") as sim:
        watch = EngineWatch([sim.url], interval_s=0.01)
        await watch.look()
        watching = asyncio.create_task(watch.watch())
        records = await offer(sim.url, uniform("sim", count=24, prompt_tokens=192, output_tokens=129, seed=1))
        watching.cancel()
        await watch.look()
        numbers = report(records, watch.samples)
        [engine] = numbers.engines.values()
        log = list(sim.log)
        async with aiohttp.ClientSession() as http, http.get(sim.url + "/metrics") as response:
            scraped = from_metrics(sim.url, 0.0, await response.text())

    assert numbers.completed == 24
    assert numbers.tokens == sum(len(step.tokens) for step in log) == 24 * 129
    assert engine.preemptions == sum(len(step.preempted) for step in log) > 0
    assert engine.recomputed_tokens == sum(step.recomputed_tokens for step in log) > 0
    assert engine.running_max == max(step.running for step in log) > 12
    assert engine.kv_use_mean is not None
    assert 0 < engine.kv_use_mean <= 1
    assert (scraped.preemptions, scraped.running, scraped.kv_use) == (engine.preemptions, 0, 0.0)


async def test_an_engine_that_is_gone_is_missed_and_does_not_end_the_watch():
    async with _sim("instant") as sim:
        watch = EngineWatch([sim.url])
        await watch.look()
    await watch.look()
    assert (len(watch.samples), watch.missed) == (1, 1)
