"""What happens in the run: first an overload in good health, then one fault after the other, then rest.

Every moment that a test asks about is written down by the wall clock, as Prometheus keeps it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest

from support.prometheus_server import PrometheusError
from support.watched_clients import Clients, Seen
from support.watched_run import CRAWLER, JOBS, LONG_JOBS, SCRAPE_S, SMALL, TRIAL, WEB, WatchedRun

BY_THE_MOMENT = pytest.mark.skipif(
    os.environ.get("KVGATE_SOAK") != "1",
    reason="compares single moments of many processes, so it needs a machine of its own: make soak",
)
SETTLE_S = 3 * SCRAPE_S
"""Two scrapes, and the second that the view of a shared ledger may be old."""
RAMP_S = 0.7
STEADY_S = 11.0
HANGS_S = 14.0
"""An engine is suspected after one second, asked for a token for five, and the alert waits one."""
CLEAR_S_MAX = 45.0
"""From the end of the last fault until no alert is left: the longest look back of a rule is 10 s here."""


@dataclass(frozen=True, slots=True)
class Story:
    """The moments of a run, and what its clients saw."""

    run: WatchedRun
    overload: Sequence[Seen]
    begin_s: float
    overload_end_s: float
    """The clients are still at it."""
    settled_s: float
    """Nobody asks for anything, and two scrapes have seen it."""
    faults_end_s: float
    end_s: float
    page: bytes
    """The metrics page of one process, at the height of the overload."""
    left: Sequence[str]
    """Alerts that were still there at the end."""


async def tell(folder: Path) -> Story:
    run = WatchedRun(folder)
    async with run:
        await asyncio.sleep(SETTLE_S)
        begin_s = time.time()
        page, overload_end_s = await _overload(run)
        settled_s = time.time()
        overload = run.clients.seen
        run.clients = Clients(run.clients.urls)
        await _first_faults(run)
        await _second_faults(run)
        faults_end_s = time.time()
        await _until_quiet(run)
        left = sorted(dict(labels)["alertname"] for labels in run.prometheus.ask("ALERTS"))
    return Story(run, overload, begin_s, overload_end_s, settled_s, faults_end_s, time.time(), page, left)


async def _overload(run: WatchedRun) -> tuple[bytes, float]:
    """Long answers fill the pool before the tenant with the guarantee comes; then more and more of everybody."""
    clients = run.clients
    clients.add(LONG_JOBS, 6)
    clients.add(TRIAL, 6)  # an engine counts the first fifty prompts; the estimates begin after them
    await asyncio.sleep(2.0)
    clients.add(WEB, 4)
    clients.add(CRAWLER, 6)
    for _ in range(10):
        await asyncio.sleep(RAMP_S)
        clients.add(WEB)
        clients.add(JOBS, 2)
        clients.add(SMALL)
    await asyncio.sleep(STEADY_S)
    async with aiohttp.ClientSession() as http, http.get(run.replicas[0].admin_url + "/metrics") as answer:
        page = await answer.read()
    end_s = time.time()
    await clients.stop()
    await asyncio.sleep(SETTLE_S)
    return page, end_s


async def _first_faults(run: WatchedRun) -> None:
    """A mistake in the policy, traffic that goes around kvgate, and a Redis that is away."""
    run.clients.add(WEB, 2)
    await asyncio.sleep(1.0)
    run.break_policy()
    around = Clients([run.engines[0].url])
    around.add(replace(WEB, output_tokens=110), 12)
    await asyncio.sleep(2.0)
    run.redis.freeze()  # calls are not answered, and then not even taken
    await asyncio.sleep(1.0)
    run.redis.kill()
    await asyncio.sleep(5.0)
    run.redis.start()
    run.mend_policy()
    await around.leave()


async def _second_faults(run: WatchedRun) -> None:
    """Engines that break off, refuse, hang and vanish, and a process that is killed."""
    await run.engines[0].add_fault("reset-before", 2)
    await run.engines[1].add_fault("busy", 2)
    await asyncio.sleep(3.0)
    run.clients.add(WEB, 6)
    await asyncio.sleep(2.0)
    await run.engines[0].add_fault("freeze")
    run.engines[1].kill()
    run.replicas[1].kill()
    await asyncio.sleep(HANGS_S)
    await run.clients.leave()
    await run.engines[0].heal()
    await asyncio.gather(run.engines[1].start(), run.start(run.replicas[1]))


async def _until_quiet(run: WatchedRun) -> None:
    end_s = time.monotonic() + CLEAR_S_MAX
    while time.monotonic() < end_s:
        await asyncio.sleep(SCRAPE_S)
        try:
            if run.quiet():
                return
        except PrometheusError:
            continue
