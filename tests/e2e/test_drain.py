"""The end of a process is not held up by a client that stopped in the middle of its request."""

from __future__ import annotations

import asyncio

import pytest

from kvgate.config import Timeouts
from kvgate.sim import SimServer
from support.gateway import gateway

pytestmark = pytest.mark.e2e

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"


async def test_a_half_sent_body_is_answered_when_the_drain_begins() -> None:
    bounds = Timeouts(body_s=600.0, drain_s=600.0)
    async with SimServer() as sim, gateway([sim.url], timeouts=bounds) as gate:
        host, port = gate.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(HEAD + b'{"model": ')
        await gate.until(lambda: gate.app.gateway.active == 1, "the request in the house")
        async with asyncio.timeout(30):
            await gate.app.drain()
            told = await reader.read()
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"x-kvgate-reason: draining" in told
        assert b"connection: close" in told
        assert gate.app.gateway.active == 0
        writer.close()
