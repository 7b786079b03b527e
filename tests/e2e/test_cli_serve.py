"""`kvgate serve` as a process: what it exports, what it logs, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.sim import SimServer
from kvgate.telemetry.catalogue import METRICS
from support.redis_server import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.e2e

WAIT_S = 20.0


def environment(**extra: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")} | extra


class Proxy:
    """A kvgate process, and what it wrote once it has ended."""

    def __init__(self, backend: str) -> None:
        self.url, self.admin = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        ports = ("--port", self.url.rsplit(":", 1)[1], "--admin-port", self.admin.rsplit(":", 1)[1])
        self.command = [sys.executable, "-m", "kvgate", "serve", "--backend", backend, *ports]
        self.log = ""
        self.code: int | None = None


@asynccontextmanager
async def served(backend: str, **env: str) -> AsyncIterator[Proxy]:
    """Ready on entry, ended by SIGTERM on exit."""
    proxy = Proxy(backend)
    process = subprocess.Popen(proxy.command, env=environment(**env), stderr=subprocess.PIPE)
    try:
        with anyio.fail_after(WAIT_S):
            await until_ready(proxy)
        yield proxy
        process.send_signal(signal.SIGTERM)
        _, err = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=WAIT_S))
        proxy.log, proxy.code = err.decode(), process.returncode
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


async def until_ready(proxy: Proxy) -> None:
    async with httpx.AsyncClient() as client:
        while True:
            try:
                if (await client.get(f"{proxy.admin}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await anyio.sleep(0.05)


async def page_with(client: httpx.AsyncClient, url: str, wanted: str) -> str:
    """The page once it has a word; a request is counted just after its last byte was sent."""
    with anyio.fail_after(WAIT_S):
        while wanted not in (page := (await client.get(url)).text):
            await anyio.sleep(0.05)
    return page


def a_sim() -> SimServer:
    return SimServer(
        blocks=121, block_size=32, max_model_len=2048, max_num_seqs=256, profile="fast", model="m"
    )


async def test_a_request_leaves_its_line_and_its_numbers() -> None:
    async with a_sim() as sim, httpx.AsyncClient() as client, served(sim.url) as proxy:
        body = {
            "model": "m",
            "prompt": "a secret prompt",
            "max_tokens": 5,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"authorization": "Bearer sk-key-of-a-client", "x-request-id": "req-77"}
        answer = await client.post(f"{proxy.url}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200
        page = await page_with(client, f"{proxy.admin}/metrics", "kvgate_requests_total{")
        ledger = (await client.get(f"{proxy.admin}/admin/ledger")).json()
    assert proxy.code == 0
    lines = [json.loads(line) for line in proxy.log.splitlines() if line.startswith("{")]
    (line,) = (line for line in lines if line["logger"] == "kvgate.request")
    assert (line["message"], line["request_id"], line["stream"]) == ("served", "req-77", True)
    assert line["completion_tokens"] == 5
    assert "secret prompt" not in proxy.log
    assert "sk-key" not in proxy.log
    assert ledger["engines"][0]["reserved_blocks"] == 0
    samples = {s.name: s.value for f in text_string_to_metric_families(page) for s in f.samples}
    assert samples["kvgate_grants_total"] == 1
    assert samples["kvgate_completion_tokens_total"] == 5


async def test_all_that_is_exported_is_in_the_table() -> None:
    async with a_sim() as sim, served(sim.url) as proxy, httpx.AsyncClient() as client:
        page = (await client.get(f"{proxy.admin}/metrics")).text
    known = {metric.name.removesuffix("_total") for metric in METRICS}
    exported = {f.name for f in text_string_to_metric_families(page) if f.name.startswith("kvgate_")}
    assert exported
    assert exported <= known


async def test_an_admin_token_from_the_environment_guards() -> None:
    token = {"KVGATE_ADMIN_TOKEN": "hush"}
    async with a_sim() as sim, httpx.AsyncClient() as client, served(sim.url, **token) as proxy:
        assert (await client.get(f"{proxy.admin}/admin/ledger")).status_code == 401
        with_token = {"authorization": "Bearer hush"}
        answer = await client.get(f"{proxy.admin}/admin/settings", headers=with_token)
        assert answer.status_code == 200
    assert "hush" not in answer.text + proxy.log


async def test_a_port_in_use_is_one_line_and_exit_2() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        proxy = Proxy("http://127.0.0.1:9")
        command = [*proxy.command, "--port", str(sock.getsockname()[1])]
        done = await anyio.run_process(command, check=False, env=environment())
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("kvgate: cannot listen on 127.0.0.1 port")
    assert "--port" in line


async def test_a_simulated_engine_on_a_port_in_use_is_one_line_and_exit_2() -> None:
    size = ("--blocks", "10", "--block-size", "16", "--max-model-len", "100", "--max-num-seqs", "4")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = str(sock.getsockname()[1])
        command = [sys.executable, "-m", "kvgate", "sim-engine", *size, "--port", port]
        done = await anyio.run_process(command, check=False, env=environment())
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"kvgate: cannot listen on 127.0.0.1 port {port}")
