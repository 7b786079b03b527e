"""A deployment of kvgate as it is run: simulated engines and replicas, each a process of its own.

Everything listens on 127.0.0.1. A replica is `python -m kvgate serve` with its workers; it can be killed, stopped
and continued as a whole, and started again on the same ports. Nothing is left behind: the scope ends what it
started by process id, and the kernel ends it when the test process dies (Linux).

    async with Fleet(PoolSizes(), ledgers=[redis.url] * 3, workers=2, folder=tmp_path) as fleet:
        await offer([replica.url for replica in fleet.replicas], fleet.sizes.workload(100))
        fleet.replicas[0].kill()
        await fleet.restart(fleet.replicas[0])
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, overload

import aiohttp
import psutil

from kvgate.demo.children import Child, Children, free_ports, ready
from kvgate.load import Session, Workload, mixed
from kvgate_policies.kv_cost import price
from kvgate_policies.types import EngineShape

POOL = "rig"
MODEL = "sim"
MAX_MODEL_LEN = 256
QUEUE_DEPTH = 100_000
"""Nobody is refused for a full queue: a test that wants a bound sets the wait."""
SESSIONS_MAX = 1_000_000
"""Of an endless workload: days, at the rates of a test."""
_LOOK_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_TROUBLE = ("Traceback (most recent call last)", "was never awaited", "Task exception was never retrieved")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """The engines, and the sessions that are sent to them.

    All sessions cost the same blocks at their peak, so that over-admission can be counted: an engine that has more
    sessions than fit was given more than its KV cache holds. Their lengths differ within the last block, so that
    they do not end all at once.
    """

    engines: int = 2
    sessions_per_engine: int = 75
    block_size: int = 16
    prompt_tokens: int = 96
    output_tokens_min: int = 18
    output_tokens_max: int = 33
    step_ms: int = 100
    """A step takes this long whatever runs in it."""

    @property
    def blocks_per_session(self) -> int:
        shape = EngineShape(self.block_size, MAX_MODEL_LEN)
        least, most = (
            price(shape, [self.prompt_tokens], output, 1).blocks
            for output in (self.output_tokens_min, self.output_tokens_max)
        )
        assert least == most, "sessions of one cost"
        return most

    @property
    def blocks(self) -> int:
        """As vLLM counts: with the null block."""
        return self.sessions_per_engine * self.blocks_per_session + 1

    @property
    def sessions(self) -> int:
        """What the pool holds at once."""
        return self.engines * self.sessions_per_engine

    @property
    def session_s(self) -> float:
        """The longest one, once it is granted: a step for the prompt, one for each further token."""
        return self.output_tokens_max * self.step_ms / 1000

    def workload(self, count: int, seed: int = 1) -> Workload:
        lengths = random.Random(seed)
        outputs = [lengths.randint(self.output_tokens_min, self.output_tokens_max) for _ in range(count)]
        return mixed(MODEL, [(self.prompt_tokens, output) for output in outputs], seed=seed)

    def endless(self, seed: int) -> Workload:
        """A workload that outlasts every test, made as it is sent."""
        return Workload(MODEL, EndlessSessions(self, seed))


class EndlessSessions(Sequence[Session]):
    """A million sessions of one size with prompts of their own, none of which is kept."""

    def __init__(self, sizes: PoolSizes, seed: int) -> None:
        self._sizes = sizes
        self._seed = seed

    def __len__(self) -> int:
        return SESSIONS_MAX

    @overload
    def __getitem__(self, index: int) -> Session: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Session]: ...
    def __getitem__(self, index: int | slice) -> Session | Sequence[Session]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if not 0 <= index < SESSIONS_MAX:
            raise IndexError(index)
        return self._sizes.workload(1, seed=self._seed * SESSIONS_MAX + index).sessions[0]


class Replica:
    """One `kvgate serve` with its workers."""

    def __init__(self, name: str, arguments: Sequence[str], port: int, admin_port: int) -> None:
        self.name = name
        self.url = _url(port)
        self.admin_url = _url(admin_port)
        self.arguments = (*arguments, "--port", str(port), "--admin-port", str(admin_port))
        self.starts: list[Child] = []

    @property
    def child(self) -> Child:
        return self.starts[-1]

    def processes(self) -> list[psutil.Process]:
        """The one that was started, and all its workers; none when it is gone."""
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.child.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self) -> None:
        """kill −9 of all its processes, as when its machine is lost."""
        self._signal(signal.SIGKILL)
        self.child.process.wait()

    def stop(self) -> None:
        """SIGSTOP: everything stays open, and nothing moves."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def said(self) -> str:
        """All that it printed since its first start."""
        return "\n".join(_output(child) for child in self.starts)

    def trouble(self) -> list[str]:
        """Places in its log that show a bug: tracebacks and lost exceptions, with what follows."""
        said = self.said()
        return [said[max(at - 200, 0) : at + 2500] for word in _TROUBLE if (at := said.find(word)) >= 0]


class Fleet:
    """Engines and replicas; ready on entry, gone on exit."""

    def __init__(
        self,
        sizes: PoolSizes,
        *,
        ledgers: Sequence[str],
        folder: Path,
        workers: int = 1,
        on_failure: str = "local",
        queue_wait: str = "600s",
    ) -> None:
        """One replica for each of `ledgers`: they may reach one Redis by lines of their own."""
        self.sizes = sizes
        self.engines: list[str] = []
        self.replicas: list[Replica] = []
        self._ledgers = ledgers
        self._workers = workers
        self._queue_wait = queue_wait
        self._policy = folder / "policy.json"
        self._on_failure = on_failure
        self._children = Children()

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]

    async def __aenter__(self) -> Self:
        try:
            self.engines = await asyncio.gather(*(self._start_engine(n) for n in range(self.sizes.engines)))
            self._write_policy()
            self.replicas = [self._replica(n, ledger) for n, ledger in enumerate(self._ledgers)]
            await asyncio.gather(*(self.start(replica) for replica in self.replicas))
        except BaseException:
            self._children.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for replica in self.replicas:
            replica.resume()
        self._children.end()

    def _write_policy(self) -> None:
        """JSON is YAML."""
        shared = any(not url.startswith("memory:") for url in self._ledgers)
        policy: dict[str, Any] = {
            "version": 1,
            "pools": {POOL: {"backends": self.engines}},
            "defaults": {"queue": {"depth": QUEUE_DEPTH, "wait": self._queue_wait}},
            "ledger": {"on_failure": self._on_failure} if shared else {},
        }
        self._policy.write_text(json.dumps(policy))

    def _replica(self, number: int, ledger: str) -> Replica:
        port, admin_port = free_ports(2)
        arguments = ["serve", "--policy", str(self._policy), "--ledger", ledger]
        arguments += ["--workers", str(self._workers), "--log-level", "info"]
        return Replica(f"replica {number}", arguments, port, admin_port)

    async def _start_engine(self, number: int) -> str:
        [port] = free_ports(1)
        sizes = {
            "blocks": self.sizes.blocks,
            "block-size": self.sizes.block_size,
            "max-model-len": MAX_MODEL_LEN,
        }
        options = {"port": port, "max-num-seqs": 256, "profile": f"fast:{self.sizes.step_ms}", "model": MODEL}
        words = [word for key, value in (sizes | options).items() for word in (f"--{key}", str(value))]
        child = self._children.start(f"engine {number}", "sim-engine", *words)
        async with aiohttp.ClientSession(timeout=_LOOK_TIMEOUT) as http:
            await ready(http, child, f"{_url(port)}/health")
        return _url(port)

    async def start(self, replica: Replica) -> None:
        """Start it, and wait until it sends to every engine. Raises ChildFailedError."""
        replica.starts.append(self._children.start(replica.name, *replica.arguments))
        async with aiohttp.ClientSession(timeout=_LOOK_TIMEOUT) as http:
            await ready(http, replica.child, replica.admin_url + "/readyz")
            await ready(http, replica.child, replica.admin_url + "/admin/ledger", self._all_accepting)

    async def restart(self, replica: Replica) -> None:
        """Once it is gone: the same command again, on the same ports."""
        await self.start(replica)

    def _all_accepting(self, view: Any) -> bool:
        return {e["engine_id"] for e in view["engines"] if e["accepting"]} == set(self.engines)

    def trouble(self) -> list[str]:
        return [f"{replica.name}: {found}" for replica in self.replicas for found in replica.trouble()]

    def at_work(self) -> Iterable[Replica]:
        return (replica for replica in self.replicas if replica.child.process.poll() is None)

    async def views(self) -> list[dict[str, Any]]:
        """`GET /admin/ledger` of every replica that runs."""
        async with aiohttp.ClientSession(timeout=_LOOK_TIMEOUT) as http:
            return [await _json(http, f"{replica.admin_url}/admin/ledger") for replica in self.at_work()]


async def _json(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url) as response:
        response.raise_for_status()
        return await response.json()


def _output(child: Child) -> str:
    if child.output.closed:
        return ""
    size = os.fstat(child.output.fileno()).st_size
    return os.pread(child.output.fileno(), size, 0).decode(errors="replace")


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"
