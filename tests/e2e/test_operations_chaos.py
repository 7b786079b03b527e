"""Random faults on three simulated engines under steady overload, from a seed.

Afterwards everything is at zero, and of every answer one thing is true: it is whole, as long as was asked for,
or it says itself that it is not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.config import Timeouts
from kvgate.sim import SimServer
from kvgate_policies.types import TenantPolicy
from support.gateway import Gate, gateway

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

CHAOS_S = 180.0 if os.environ.get("KVGATE_SOAK") else 8.0
SEEDS = (1, 2, 3) if os.environ.get("KVGATE_SOAK") else (20,)
CLIENTS = 40
BLOCKS = (41, 81, 121, 161)
WINDOW = 512
TIMEOUTS = Timeouts(connect_s=1.0, first_byte_s=1.0, idle_s=1.0, overall_s=5.0, draining_hold_s=0.05)
OF_A_REQUEST = [
    "refuse=0.3",
    "reset-before",
    "reset-after",
    "reset-after=0",
    "reset-after=7",
    "hang",
    "hang-after=3",
    "busy",
    "busy-in-stream",
    "error-in-stream",
    "error-in-stream=0",
    "abort",
    "abort=0",
    "abort=9",
    "empty",
    "500",
]
OF_THE_SERVER = ["freeze", "metrics-slow=1", "metrics-stale", "metrics-missing", "health-503"]


def ask(source: random.Random) -> tuple[str, dict[str, Any], int]:
    path = source.choice(("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"))
    tokens = source.randint(1, 80)
    body: dict[str, Any] = {"model": "m", "ignore_eos": True, "stream": source.random() < 0.7}
    words = "hello the proxy " * source.randint(1, 40)
    if path == "/v1/completions":
        body |= {"prompt": [7] * source.randint(1, 300), "max_tokens": tokens}
    elif path == "/v1/responses":
        body |= {"input": words, "max_output_tokens": tokens}
    else:
        body |= {"messages": [{"role": "user", "content": words}], "max_tokens": tokens}
    if body["stream"] and "completions" in path:
        body["stream_options"] = {"include_usage": True}
    return path, body, tokens


def output_tokens(usage: dict[str, int]) -> int | None:
    return usage.get("completion_tokens", usage.get("output_tokens"))


def claim(status: int, stream: bool, body: bytes) -> int | None:
    """The output tokens of an answer that passes for whole; None for one that says what went wrong.

    Raises AssertionError for one that just ends.
    """
    if status != 200:
        told = json.loads(body)
        assert told["error"]["message"], told
        return None
    if not stream:
        return output_tokens(json.loads(body)["usage"])
    data = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(one) for one in data if one != "[DONE]"]
    if any(event.get("error") or event.get("type") in {"error", "response.failed"} for event in events):
        return None
    assert data, "an empty stream"
    assert data[-1] == "[DONE]" or events[-1]["type"] in {"message_stop", "response.completed"}, data[-1]
    usages = [
        one["usage"] for event in events for one in (event, event.get("response") or {}) if one.get("usage")
    ]
    return output_tokens(usages[-1])


@dataclass
class Clients:
    """Ask again and again until told to stop."""

    gate: Gate
    source: random.Random
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stopping: bool = False

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(self._client(http))

    async def _client(self, http: aiohttp.ClientSession) -> None:
        while not self.stopping:
            path, body, tokens = ask(self.source)
            async with http.post(self.gate.url + path, json=body) as answer:
                read = await answer.read()
            claimed: int | None = None
            try:
                claimed = claim(answer.status, body["stream"], read)
                assert claimed in {None, tokens}, f"{claimed} tokens of {tokens}"
            except (AssertionError, ValueError, KeyError, IndexError) as trouble:
                self.wrong.append(f"{path} {answer.status}: {trouble!r}: …{read[-300:]!r}")
            self.ends["whole" if answer.status == 200 and claimed else f"{answer.status}, not whole"] += 1
            if answer.status != 200:
                await asyncio.sleep(self.source.uniform(0.01, 0.1))


class Fate:
    """Does things to engines, one after the other."""

    def __init__(self, gate: Gate, sims: list[SimServer], source: random.Random) -> None:
        self.gate = gate
        self.sims = sims
        self.source = source
        self.preemptions = 0
        self.done: list[str] = []

    async def run(self, until_s: float) -> None:
        deeds = (self.strike, self.strike, self.ail, self.crash, self.replace, self.drain, self.leave)
        while time.monotonic() < until_s:
            which = self.source.randrange(len(self.sims))
            deed = self.source.choice(deeds)
            self.done.append(f"{deed.__name__} {which}")
            await deed(which)
            await asyncio.sleep(self.source.uniform(0.05, 0.4))

    async def strike(self, which: int) -> None:
        self.sims[which].add_fault(self.source.choice(OF_A_REQUEST), self.source.randint(1, 6))

    async def ail(self, which: int) -> None:
        self.sims[which].add_fault(self.source.choice(OF_THE_SERVER))
        await asyncio.sleep(self.source.uniform(0.1, 1.5))
        self.sims[which].clear_faults()

    async def crash(self, which: int) -> None:
        self.preemptions += self.sims[which].model.counters.preemptions
        self.sims[which].restart(down_s=self.source.uniform(0.0, 0.5))

    async def replace(self, which: int) -> None:
        """As on SIGTERM, and another one on the same port, at least as large.

        That one is smaller is known at the next probe only; what is granted until then may be too much for it.
        """
        old = self.sims[which]
        await old.stop()
        self.preemptions += old.model.counters.preemptions
        await asyncio.sleep(self.source.uniform(0.0, 0.3))
        self.sims[which] = a_sim(old.port, self.source, blocks_min=old.settings.blocks)
        await self.sims[which].start()

    async def drain(self, which: int) -> None:
        await self.gate.app.pool.drain(self.sims[which].url)
        await asyncio.sleep(self.source.uniform(0.0, 0.5))
        await self.gate.app.pool.undrain(self.sims[which].url)

    async def leave(self, which: int) -> None:
        await self.gate.app.pool.remove(self.sims[which].url)
        await asyncio.sleep(self.source.uniform(0.0, 0.5))
        await self.gate.app.pool.add(self.sims[which].url)


def free_port(source: random.Random) -> int:
    """Below those that outgoing connections get: one of them would keep an engine from coming back."""
    while True:
        port = source.randrange(20_000, 32_000)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def a_sim(port: int, source: random.Random, blocks_min: int = 0) -> SimServer:
    blocks = max(source.choice(BLOCKS), blocks_min)
    return SimServer(port=port, blocks=blocks, block_size=16, max_model_len=WINDOW, model="m", profile="fast")


async def samples(gate: Gate) -> dict[str, float]:
    async with aiohttp.ClientSession() as http, http.get(f"{gate.app.admin_url}/metrics") as page:
        families = text_string_to_metric_families(await page.text())
        return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.mark.timeout(CHAOS_S + 60)
@pytest.mark.parametrize("seed", SEEDS)
async def test_after_random_faults_all_is_at_zero_and_no_answer_lies(seed: int, caplog):
    source = random.Random(seed)
    sims = [a_sim(free_port(source), source) for _ in range(3)]
    for sim in sims:
        await sim.start()
    tenant = TenantPolicy(queue_wait_s_max=2.0, queue_depth_max=30)
    try:
        with caplog.at_level(logging.ERROR):
            async with gateway([sim.url for sim in sims], tenant=tenant, timeouts=TIMEOUTS) as gate:
                clients, fate = Clients(gate, source), Fate(gate, sims, source)
                asking = asyncio.create_task(clients.run())
                await fate.run(time.monotonic() + CHAOS_S)
                for sim in sims:
                    sim.clear_faults()
                clients.stopping = True
                await asking
                await gate.at_zero()
                await gate.until(
                    lambda: not any(s.model.kv_used or s.engine.jobs for s in sims), "idle engines"
                )
                totals = gate.view.totals
                assert not clients.wrong, (seed, fate.done, clients.wrong[:5])
                assert clients.ends["whole"] > 20 * CHAOS_S, clients.ends
                assert totals["grants"] == totals["releases"] + totals["voided"]
                refused = sum(count for name, count in totals.items() if name.startswith("refused_"))
                assert totals["arrivals"] == totals["grants"] + totals["cancels"] + refused
                assert (await samples(gate))["kvgate_queue_depth"] == 0
                now = sum(sim.model.counters.preemptions for sim in sims)
                assert fate.preemptions + now == 0, (seed, fate.done)
                await gate.until(lambda: bool(gate.app.pool.available()), "an engine again")
        assert not caplog.records, caplog.text
    finally:
        for sim in sims:
            await sim.stop()
