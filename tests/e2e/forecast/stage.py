"""`kvgate serve` and `sim-engine` as processes, and clients whose answers have the lengths that a test says.

async with Stage() as stage:
    await stage.engine(blocks=600)
    gate = await stage.gate("--reservation", "forecast")
    async with gate.clients(lengths, 32): ...
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from kvgate.demo.children import Child, Children, free_ports, ready

WAIT_S = 60.0


def lognormal(median: float, sigma: float, seed: int, longest: int = 100_000) -> Iterator[int]:
    """Output lengths without end."""
    rng = random.Random(seed)
    while True:
        yield min(max(1, round(median * rng.lognormvariate(0.0, sigma))), longest)


class Gate:
    """One `kvgate serve`."""

    def __init__(self, child: Child, url: str, admin: str, http: aiohttp.ClientSession) -> None:
        self.child, self.url, self.admin = child, url, admin
        self._http = http
        self.failed: list[str] = []

    async def ask(self, length: int, *, stream: bool = False, words: int = 20) -> int:
        """One chat without a limit; its HTTP status."""
        body = {"model": "sim", "messages": [{"role": "user", "content": "word " * words}], "stream": stream}
        headers = {"x-sim-output-tokens": str(length)}
        async with self._http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
            text = await answer.text()
            if answer.status != 200 or (stream and "[DONE]" not in text):
                self.failed.append(f"{answer.status}: {text[:200]}")
            return answer.status

    async def serve(self, lengths: Iterable[int], together: int, *, stream: bool = False) -> None:
        """Ask for all of them, so many at a time."""
        rest = iter(lengths)

        async def client() -> None:
            for length in rest:
                await self.ask(length, stream=stream)

        await asyncio.gather(*(client() for _ in range(together)))

    @asynccontextmanager
    async def clients(
        self, lengths: Iterator[int], count: int, *, stream: bool = True
    ) -> AsyncIterator[None]:
        """So many that ask again as soon as they are answered, until the block ends."""
        serving = asyncio.create_task(self.serve(lengths, count, stream=stream))
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name and these labels."""
        return (await self.metrics(name, labels))[0]

    async def metrics(self, *asked: str | dict[str, str]) -> list[float]:
        """Names, each followed by labels if there are some."""
        return await read(self._http, f"{self.admin}/metrics", *asked)

    def end(self) -> None:
        """SIGTERM, and wait."""
        self.child.process.send_signal(signal.SIGTERM)
        assert self.child.process.wait(WAIT_S) == 0, self.child.said()


async def read(http: aiohttp.ClientSession, url: str, *asked: str | dict[str, str]) -> list[float]:
    async with http.get(url) as answer:
        families = list(text_string_to_metric_families(await answer.text()))
    samples = [sample for family in families for sample in family.samples]
    found: list[float] = []
    for name, labels in _pairs(asked):
        named = (sample for sample in samples if sample.name == name)
        found.append(sum(one.value for one in named if labels.items() <= one.labels.items()))
    return found


def _pairs(asked: tuple[str | dict[str, str], ...]) -> Iterator[tuple[str, dict[str, str]]]:
    for index, one in enumerate(asked):
        if isinstance(one, str):
            after = asked[index + 1] if index + 1 < len(asked) else {}
            yield one, after if isinstance(after, dict) else {}


class Stage:
    """A scope for the processes and the connections of one test."""

    def __init__(self) -> None:
        self._children = Children()
        self.engine_url = ""

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        self.http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=WAIT_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        self._children.end()

    async def engine(
        self, *, blocks: int, block_size: int = 16, max_model_len: int = 4096, profile: str = "fast:5"
    ) -> None:
        (port,) = free_ports(1)
        self.engine_url = f"http://127.0.0.1:{port}"
        child = self._children.start(
            "engine", "sim-engine", "--port", str(port), "--blocks", str(blocks), "--block-size",
            str(block_size), "--max-model-len", str(max_model_len), "--max-num-seqs", "256", "--profile", profile,
        )  # fmt: skip
        await ready(self.http, child, f"{self.engine_url}/health")

    async def gate(self, *words: str) -> Gate:
        port, admin_port = free_ports(2)
        url, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        child = self._children.start(
            "kvgate", "serve", "--backend", self.engine_url, "--prompt-tokens", "backend", "--port", str(port),
            "--admin-port", str(admin_port), *words,
        )  # fmt: skip
        await ready(self.http, child, f"{admin}/readyz")
        return Gate(child, url, admin, self.http)

    async def preemptions(self) -> float:
        return (await read(self.http, f"{self.engine_url}/metrics", "vllm:num_preemptions_total"))[0]
