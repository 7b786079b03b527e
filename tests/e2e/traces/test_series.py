"""Nobody can make the metrics page grow: ten thousand tenants, and headers, paths and models made up by strangers."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.config import load
from kvgate.sim import SimServer
from kvgate.telemetry.cardinality import series_max
from kvgate.telemetry.metrics import TENANTS_MAX
from kvgate_policies.types import CLASSES
from support.collector import Collector
from support.gateway import Gate, serving

pytestmark = pytest.mark.e2e

TENANTS = 10_000
BATCH = 2_000
TOGETHER = 100
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/models",
    "/tokenize",
    "/v1/responses/resp_a",
)
VISIBLE = [*range(0x21, 0x7F), *range(0x80, 0x100)]
METHODS = ("POST", "POST", "POST", "GET", "PURGE", "get", "OPTIONS")


class Stranger:
    """Writes anything anywhere, but half of it right, so that every part of the way is reached."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.answers: Counter[int] = Counter()

    def noise(self, size_max: int = 60) -> bytes:
        """What a header may have, by what the server lets through."""
        return bytes(self._dice.choices(VISIBLE, k=self._dice.randint(1, size_max)))

    def either(self, right: bytes) -> bytes:
        return right if self._dice.random() < 0.5 else self.noise()

    def headers(self, tenant: int) -> list[tuple[bytes, bytes]]:
        trace = f"00-{self._dice.getrandbits(128):032x}-{self._dice.getrandbits(64):016x}-01".encode()
        return [
            (
                b"x-tenant",
                self.either(f"tenant-{tenant}".encode()) if tenant % 4 == 0 else b"tenant-%d" % tenant,
            ),
            (b"content-type", self.either(b"application/json")),
            (b"x-kvgate-class", self.either(self._dice.choice(CLASSES).encode())),
            (b"x-kvgate-deadline-ms", self.either(b"%d" % self._dice.randint(0, 10**6))),
            (b"traceparent", self.either(trace)),
            (b"tracestate", self.noise()),
            (b"user-agent", self.noise()),
            (b"x-request-id", self.noise()),
            (b"x-%d" % self._dice.getrandbits(40), self.noise()),
        ]

    def body(self) -> bytes:
        if self._dice.random() < 0.2:
            return self.noise(300)
        model = "tiny" if self._dice.random() < 0.6 else self.noise().decode("latin-1")
        return json.dumps(
            {"model": model, "prompt": [7], "max_tokens": 1, "messages": [], "input": "x"}
        ).encode()

    async def ask(self, gate: Gate, tenant: int) -> None:
        path = self._dice.choice(PATHS) if self._dice.random() < 0.8 else "/" + self.noise().decode("latin-1")
        scope: dict[str, Any] = {
            "type": "http",
            "method": self._dice.choice(METHODS),
            "path": path,
            "raw_path": path.encode("latin-1"),
            "query_string": self.noise(),
            "headers": self.headers(tenant),
            "client": ("127.0.0.1", 50_000),
        }
        messages = [{"type": "http.request", "body": self.body(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await gate.app.gateway.idle()  # a client that waits for its answer
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.answers[message["status"]] += 1

        await gate.app.gateway(scope, receive, send)


async def series(gate: Gate) -> set[tuple[Any, ...]]:
    async with httpx.AsyncClient(trust_env=False) as http:
        page = (await http.get(f"{gate.app.admin_url}/metrics")).text
    families = text_string_to_metric_families(page)
    return {(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples}


def policy(folder: Path, backend: str) -> Path:
    """JSON is YAML."""
    file = folder / "policy.json"
    said = {
        "version": 1,
        "pools": {"tiny": {"backends": [backend]}},
        "tenants": {f"tenant-{number}": {} for number in range(TENANTS)},
        "identity": {"from": "header", "name": "x-tenant", "trusted_proxies": ["127.0.0.1/32"]},
    }
    file.write_text(json.dumps(said))
    return file


async def test_ten_thousand_tenants_and_any_garbage_do_not_grow_the_page(tmp_path: Path):
    with Collector() as collector:
        async with SimServer(model="tiny") as engine:
            settings = load(
                policy(tmp_path, engine.url),
                {
                    "KVGATE_OTLP_ENDPOINT": collector.url,
                    "KVGATE_PROBE_INTERVAL": "100ms",
                    "KVGATE_LOG_LEVEL": "error",
                },
                {"port": "0", "admin_port": "0"},
            )
            async with serving(settings) as gate:
                stranger, counts = Stranger(7), []
                for first in range(0, TENANTS, TOGETHER):
                    async with asyncio.TaskGroup() as tasks:
                        for tenant in range(first, first + TOGETHER):
                            tasks.create_task(stranger.ask(gate, tenant))
                    if (first + TOGETHER) % BATCH == 0:
                        counts.append(await series(gate))
    assert stranger.answers[200] > 100, "some were served"
    assert {400, 401, 404, 405} <= set(stranger.answers), "some were refused, in every way there is"
    assert sum(stranger.answers.values()) == TENANTS
    tenants = {dict(labels)["tenant"] for _, *labels in counts[-1] if "tenant" in dict(labels)}
    assert len(tenants) == TENANTS_MAX + 2
    assert {"other", "all"} <= tenants
    assert len(counts[-1]) <= series_max(engines=1)
    # The first tenants still meet new outcomes; what a stranger writes adds nothing at all.
    known = {value for _, *labels in counts[0] for _, value in labels}
    new = {value for _, *labels in counts[-1] for _, value in labels} - known
    assert all(value.islower() and value.isascii() for value in new), new
    assert len(counts[-1]) - len(counts[-2]) < len(counts[-1]) * 0.02, [len(count) for count in counts]
