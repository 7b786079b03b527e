"""Two hundred streams dropped at random bytes: nothing is left over, neither here nor in the engine."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random

import psutil
import pytest

from kvgate.sim import SimServer
from support.gateway import gateway

pytestmark = pytest.mark.e2e

STREAMS = 2000 if os.environ.get("KVGATE_SOAK") else 200
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")


def body(path: str, stream: bool) -> bytes:
    asked: dict[str, object] = {"model": "sim", "stream": stream, "ignore_eos": True}
    messages = [{"role": "user", "content": "hello the proxy " * 20}]
    if path == "/v1/completions":
        asked |= {"prompt": [5] * 150, "max_tokens": 100}
    elif path == "/v1/responses":
        asked |= {"input": "hello the proxy " * 20, "max_output_tokens": 100}
    else:
        asked |= {"messages": messages, "max_tokens": 100}
    return json.dumps(asked).encode()


async def drop(port: int, source: random.Random) -> None:
    """Send a request, read a random number of bytes of the answer, and go."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        path = source.choice(PATHS)
        payload = body(path, stream=source.random() < 0.8)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        whole = head.encode() + payload
        cut = len(whole) if source.random() < 0.9 else source.randrange(len(whole))
        writer.write(whole[:cut])
        await writer.drain()
        left = source.randrange(6000)
        async with asyncio.timeout(source.uniform(0.0, 0.5)):
            while left > 0 and (chunk := await reader.read(min(left, 512))):
                left -= len(chunk)
    except TimeoutError:
        pass
    finally:
        if source.random() < 0.5:
            writer.transport.abort()
        writer.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_streams_dropped_at_random_bytes_leave_nothing():
    source = random.Random(2026)
    async with SimServer(model="sim", profile="fast") as sim, gateway([sim.url]) as gate:
        port = int(gate.url.rsplit(":", 1)[1])
        await drop(port, source)  # warm: connections, caches
        await gate.at_zero()
        gc.collect()
        process = psutil.Process()
        tasks, files = len(asyncio.all_tasks()), process.num_fds()
        slots = asyncio.Semaphore(60)

        async def one() -> None:
            async with slots:
                await drop(port, source)

        await asyncio.gather(*(one() for _ in range(STREAMS)))
        await gate.at_zero()
        await gate.until(lambda: sim.model.kv_used == 0 and not sim.engine.jobs, "the engine at zero")
        await gate.until(lambda: len(asyncio.all_tasks()) <= tasks + 2, "no task left over")
        await gate.until(lambda: process.num_fds() <= files + 8, "no socket left over")
        totals = gate.view.totals
        assert totals["grants"] == totals["releases"]
        assert totals["arrivals"] == totals["grants"] + totals["cancels"] + sum(
            count for name, count in totals.items() if name.startswith("refused_")
        )
        # and it still works
        answer = await gate.post("/v1/completions", {"model": "sim", "prompt": [1, 2], "max_tokens": 3})
        assert answer.status_code == 200
