"""kvgate as it is deployed and watched: three simulated engines, two processes on one Redis, and a Prometheus.

Two pools: `chat` with two engines that run out of KV blocks, and `small` with one that runs out of sequence slots. The
rules of `grafana/rules` are loaded with their minutes made seconds (`in_seconds`), so that an alert that needs five
minutes of a fault needs five seconds of it here.

    async with WatchedRun(folder) as run:
        run.clients.add(WEB, 10)
        run.break_policy(); run.engines[0].kill(); run.redis.kill()
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Self

import aiohttp

from kvgate.demo.children import Child, Children, free_ports, ready
from support.prometheus_server import PrometheusServer
from support.redis_server import RedisServer
from support.replicas import Replica
from support.watched_clients import Clients, Habit

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "grafana/rules").glob("*.yaml"))
SCRAPE_S = 1.0
BLOCK_SIZE, WINDOW = 16, 512
BLOCKS = 61
"""60 usable: six sessions of 10 blocks each."""
STEP_MS = 100
SLOTS_SMALL = 2
IMPATIENT = {"KVGATE_STALL_AFTER": "1s"}
"""A step of the simulated engines takes a tenth of that."""
KEYS = {name: f"sk-{name}-0123456789" for name in ("web", "jobs", "crawler", "trial")}

WEB = Habit("web", KEYS["web"], "chat", prompt_tokens=48, max_tokens=112)
JOBS = Habit("jobs", KEYS["jobs"], "chat")
LONG_JOBS = Habit("jobs", KEYS["jobs"], "chat", max_tokens=160, output_tokens=80)
CRAWLER = Habit("crawler", KEYS["crawler"], "chat", max_tokens=None, output_tokens=16, chat=True)
TRIAL = Habit("trial", KEYS["trial"], "small", prompt_tokens=24, max_tokens=16, output_tokens=3, chat=True)
SMALL = Habit("web", KEYS["web"], "small", prompt_tokens=16, max_tokens=16, output_tokens=16)

_LOOK_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


def in_seconds(rules: str) -> str:
    """The same rules with every minute made a second, evaluated as often as scrapes come."""
    faster = re.sub(
        r"(?<=\[)(\d+)m(?=\])|(?<=offset )(\d+)m|(?<=for: )(\d+)m",
        lambda m: f"{m[1] or m[2] or m[3]}s",
        rules,
    )
    return re.sub(r"interval: \d+s", "interval: 1s", faster)


class SimulatedEngine:
    """One `kvgate sim-engine`; started again on the same port after `kill`."""

    def __init__(self, children: Children, name: str, pool: str) -> None:
        [self.port] = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = name
        self._children = children
        self._pool = pool
        self._child: Child | None = None

    async def start(self) -> None:
        sizes = {"blocks": BLOCKS, "block-size": BLOCK_SIZE, "max-model-len": WINDOW, "max-num-seqs": 32}
        options = sizes | {"port": self.port, "profile": f"fast:{STEP_MS}", "model": self._pool}
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        self._child = self._children.start(self.name, "sim-engine", *words)
        async with aiohttp.ClientSession(timeout=_LOOK_TIMEOUT) as http:
            await ready(http, self._child, f"{self.url}/health")

    def kill(self) -> None:
        assert self._child is not None
        self._child.process.kill()
        self._child.process.wait()

    async def add_fault(self, fault: str, count: int = 1) -> None:
        """A fault of the simulator: `freeze`, `busy` and so on, the latter for the next `count` requests."""
        async with aiohttp.ClientSession(timeout=_LOOK_TIMEOUT) as http:
            async with http.post(f"{self.url}/sim/faults", json={"fault": fault, "count": count}) as answer:
                answer.raise_for_status()

    async def heal(self) -> None:
        """No more faults."""
        async with aiohttp.ClientSession(timeout=_LOOK_TIMEOUT) as http:
            async with http.delete(f"{self.url}/sim/faults") as answer:
                answer.raise_for_status()


class WatchedRun:
    """Ready on entry, gone on exit, Prometheus last of all: `close` ends it."""

    def __init__(self, folder: Path, *, small_pool: bool = True, crawler_per_minute: int = 6) -> None:
        self._folder = folder
        self._children = Children()
        self._pools = ("chat", "chat", "small") if small_pool else ("chat", "chat")
        self._policy = folder / "policy.json"
        self._crawler_per_minute = crawler_per_minute
        self.redis = RedisServer("--maxmemory-policy", "noeviction")
        self.engines = [
            SimulatedEngine(self._children, f"engine {n}", pool) for n, pool in enumerate(self._pools)
        ]
        self.replicas = [self._replica(n) for n in range(2)]
        self.prometheus = PrometheusServer(
            {
                "kvgate": [_address(replica.admin_url) for replica in self.replicas],
                "vllm": [_address(engine.url) for engine in self.engines],
            },
            rules=self._write_rules(),
            scrape_s=SCRAPE_S,
        )
        self.clients = Clients([replica.url for replica in self.replicas])

    def _write_rules(self) -> list[Path]:
        made = []
        for file in RULES:
            copy = self._folder / file.name
            copy.write_text(in_seconds(file.read_text()))
            made.append(copy)
        return made

    def _replica(self, number: int) -> Replica:
        port, admin_port = free_ports(2)
        words = ["serve", "--policy", str(self._policy), "--ledger", self.redis.url, "--log-level", "warning"]
        return Replica(f"replica {number}", words, port, admin_port)

    async def __aenter__(self) -> Self:
        try:
            self.redis.start()
            self.mend_policy()
            await asyncio.gather(*(engine.start() for engine in self.engines))
            await asyncio.gather(*(self.start(replica) for replica in self.replicas))
            self.prometheus.start()
        except BaseException:
            self.end()
            self.prometheus.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End everything but Prometheus, which can still be asked."""
        self._children.end()
        self.redis.close()

    async def start(self, replica: Replica) -> None:
        """Start it, and wait until it sends to every engine."""
        replica.starts.append(self._children.start(replica.name, *replica.arguments, environment=IMPATIENT))
        async with aiohttp.ClientSession(timeout=_LOOK_TIMEOUT) as http:
            await ready(http, replica.child, replica.admin_url + "/readyz")
            await ready(http, replica.child, replica.admin_url + "/admin/engines", self._all_up)

    def _all_up(self, view: Any) -> bool:
        return [engine["state"] for engine in view["engines"]] == ["up"] * len(self.engines)

    def policy(self) -> dict[str, Any]:
        keys = {name: [{"sha256": hashlib.sha256(key.encode()).hexdigest()}] for name, key in KEYS.items()}
        pools: dict[str, Any] = {"chat": {"backends": [engine.url for engine in self.engines[:2]]}}
        rate = {"requests_per_minute": self._crawler_per_minute}
        tenants: dict[str, Any] = {
            "web": {"keys": keys["web"], "weight": 3, "pools": {"chat": {"guarantee": "40%"}}},
            "jobs": {"keys": keys["jobs"], "queue": {"depth": 10, "wait": "4s"}},
            # Two of its requests and no third: whatever each is expected to hold, they are most of its limit.
            "crawler": {"keys": keys["crawler"], "limit": "20%", "rate": rate},
        }
        if len(self.engines) > 2:
            pools["small"] = {"backends": [self.engines[2].url], "max_num_seqs": SLOTS_SMALL}
            tenants["trial"] = {"keys": keys["trial"], "mode": "observe"}
        return {
            "version": 1,
            "pools": pools,
            "defaults": {"max_tokens": {"default": 64, "cap": 256}, "queue": {"depth": 100, "wait": "20s"}},
            "tenants": tenants,
        }

    def mend_policy(self) -> None:
        """JSON is YAML."""
        self._policy.write_text(json.dumps(self.policy()))

    def break_policy(self) -> None:
        self._policy.write_text(json.dumps(self.policy() | {"tenants": {"web": {"wieght": 3}}}))

    def quiet(self) -> bool:
        """No alert fires or is about to."""
        return not self.prometheus.ask("ALERTS")


def _address(url: str) -> str:
    return url.removeprefix("http://")
