"""Engines whose core hangs, whose metrics lie or are gone, and that others use too: kvgate in front of simulators."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest

from kvgate.config import Timeouts
from kvgate.sim import SimServer
from support.gateway import Gate, gateway

if TYPE_CHECKING:
    from kvgate.engines.status import EngineStatus

pytestmark = pytest.mark.e2e

BLOCKS = 129
SESSION_BLOCKS = 8
"""96 + 33 − 1 tokens in blocks of 16: sixteen sessions fill an engine."""


def an_engine() -> SimServer:
    return SimServer(
        blocks=BLOCKS, block_size=16, max_model_len=256, max_num_seqs=256, profile="fast:20", model="tiny"
    )


def session(*, stream: bool = True) -> dict[str, object]:
    return {"model": "tiny", "prompt": [7] * 96, "max_tokens": 33, "ignore_eos": True, "stream": stream}


def status(gate: Gate, url: str) -> EngineStatus:
    return next(one for one in gate.app.pool.snapshot() if one.url == url)


async def served(gate: Gate, count: int) -> list[int]:
    """Send so many at once, and wait for all."""
    statuses: list[int] = []

    async def one() -> None:
        statuses.append((await gate.post("/v1/completions", session())).status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one)
    return statuses


@pytest.mark.parametrize("fault", ["metrics-stale", "metrics-missing", "metrics-slow=30"])
async def test_with_metrics_that_stand_still_or_are_gone_the_ledger_admits_as_before(fault: str) -> None:
    """Three times what fits, begun with the engine at work: nothing is preempted, everything is served."""
    async with an_engine() as sim, gateway([sim.url], probe_timeout_s=0.2) as gate:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served, gate, 8)
            await gate.until(lambda: sim.model.running == 8, "the engine works")
            sim.app.add_fault(fault)
            await gate.until(lambda: status(gate, sim.url).gauges_age_s is not None, "its metrics were read")
            assert await served(gate, 48) == [200] * 48
        assert sim.model.counters.preemptions == 0
        assert sim.engine.stats.running_max <= 16
        assert status(gate, sim.url).state == "up"
        await gate.at_zero()


async def test_an_engine_that_hangs_is_set_aside_and_comes_back() -> None:
    patient = Timeouts(first_byte_s=60.0, idle_s=60.0, draining_hold_s=0.05)
    async with AsyncExitStack() as stack:
        hangs = await stack.enter_async_context(an_engine())
        works = await stack.enter_async_context(an_engine())
        gate = await stack.enter_async_context(
            gateway([hangs.url, works.url], stall_after_s=0.5, timeouts=patient)
        )
        async with anyio.create_task_group() as tasks:
            early: list[int] = []

            async def begin() -> None:
                early.extend(await served(gate, 8))

            tasks.start_soon(begin)
            await gate.until(lambda: hangs.model.running > 0 and works.model.running > 0, "both work")
            hangs.app.add_fault("freeze")
            await gate.until(lambda: status(gate, hangs.url).stalled, "it is found out")
            assert gate.app.pool.available() == {works.url}
            taken = hangs.engine.jobs
            assert await served(gate, 30) == [200] * 30
            assert hangs.engine.jobs <= taken + 1, "a canary at most"
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{hangs.url}/health")).status_code == 200
                page = (await http.get(f"{gate.app.admin_url}/metrics")).text
                [row] = [
                    row
                    for row in (await http.get(f"{gate.app.admin_url}/admin/engines")).json()["engines"]
                    if row["url"] == hangs.url
                ]
            assert f'kvgate_engine_state{{engine="{hangs.url}",pool="default",state="stalled"}} 1.0' in page
            assert f'kvgate_engine_stalls_total{{engine="{hangs.url}",pool="default"}} 1.0' in page
            assert (row["state"], row["stalled"], row["stalls"]) == ("stalled", True, 1)
            hangs.app.clear_faults()
            await gate.until(lambda: hangs.url in gate.app.pool.available(), "it is back")
        assert early == [200] * 8, "what waited there was left in peace, and went on"
        await gate.at_zero()


async def test_foreign_traffic_takes_room_and_gives_it_back() -> None:
    """Twelve sessions beside kvgate fill three quarters; kvgate then starts four of its own at once, not sixteen."""
    async with an_engine() as sim, gateway([sim.url]) as gate:
        async with httpx.AsyncClient(timeout=60) as others, anyio.create_task_group() as tasks:
            stop = asyncio.Event()

            async def foreign() -> None:
                while not stop.is_set():
                    answer = await others.post(
                        f"{sim.url}/v1/completions", json={**session(stream=False), "max_tokens": 120}
                    )
                    assert answer.status_code == 200

            for _ in range(7):
                tasks.start_soon(foreign)
            await gate.until(lambda: gate.view.engines[0].limits.blocks_open < 0.7 * (BLOCKS - 1), "seen")
            row = status(gate, sim.url)
            assert row.foreign_blocks is not None
            assert row.foreign_blocks > 0
            stop.set()
        await gate.until(lambda: gate.view.engines[0].limits.blocks_usable is None, "all of it again")
        assert await served(gate, 16) == [200] * 16


async def test_preemptions_take_trust() -> None:
    async with an_engine() as sim, gateway([sim.url]) as gate:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served, gate, 4)
            await gate.until(lambda: sim.model.running == 4, "they run")
            sim.model.preempt()
            await gate.until(lambda: (status(gate, sim.url).trust or 1.0) < 1.0, "it was noticed")
            assert gate.view.engines[0].limits.blocks_open < BLOCKS - 1
        await gate.at_zero()
