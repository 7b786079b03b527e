"""The clients: as many connections as asked for, each a protocol without a task, and what they saw.

Closed loops (`Closed`): each connection sends its next request when the last answer is whole. Paced streams
(`Paced`): all are opened and read for a while. A connection counts only what ends between `begin` and `end`, so
that warm-up is left out.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

BODY = json.dumps(
    {
        "model": "bench",
        "messages": [
            {"role": "system", "content": "You answer in short sentences and name your sources."},
            {"role": "user", "content": "What does a proxy cost for each request that it passes on? " * 6},
        ],
        "temperature": 0.7,
        "max_tokens": 256,
    }
).encode()
"""About 600 bytes, with a limit that needs no rewriting."""
STREAM_BODY = BODY[:-1] + b', "stream": true}'
FOR_EVER = 1_000_000_000
CONTENT = b'"content":"'


@dataclass(slots=True)
class Seen:
    """What the clients saw while they counted."""

    counting: bool = False
    requests: int = 0
    events: int = 0
    reads: int = 0
    errors: int = 0
    latencies_us: list[float] = field(default_factory=list[float])
    """Of whole answers, or of single events on their way (paced streams)."""
    ttfts_us: list[float] = field(default_factory=list[float])


def request_bytes(events: int = 0, gap_ms: int = 0) -> bytes:
    body = STREAM_BODY if events else BODY
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: bench/1.0\r\naccept: */*\r\n"
        f"authorization: Bearer sk-none\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-bench-events: {events}\r\nx-bench-gap-ms: {gap_ms}\r\n\r\n"
    )
    return head.encode() + body


class Client(asyncio.Protocol):
    """One connection that sends the same request again and again, as long as `more` says so."""

    def __init__(self, request: bytes, seen: Seen, more: Callable[[], bool], *, paced: bool) -> None:
        self._request = request
        self._seen = seen
        self._more = more
        self._paced = paced
        self._sent_ns = 0
        self._first = True
        self.over = asyncio.get_running_loop().create_future()
        self.waiting: asyncio.Future[None] | None = None
        """Set when the first body byte of a request is wanted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.send()

    def send(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._first = True
        self._sent_ns = time.monotonic_ns()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._seen.counting:
            self._seen.reads += 1
        self._parser.feed_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.over.done():
            self._seen.errors += 1
            self.over.set_result(None)

    # The parser's callbacks

    def on_body(self, data: bytes) -> None:
        seen = self._seen
        if self._first:
            self._first = False
            if seen.counting:
                seen.ttfts_us.append((time.monotonic_ns() - self._sent_ns) / 1000)
            if self.waiting is not None and not self.waiting.done():
                self.waiting.set_result(None)
        if not seen.counting:
            return
        seen.events += data.count(b"\n\n")
        if self._paced:
            at = data.find(CONTENT) + len(CONTENT)
            sent = data[at : at + 16]
            if sent.isdigit():
                seen.latencies_us.append((time.monotonic_ns() - int(sent)) / 1000)

    def on_message_complete(self) -> None:
        seen = self._seen
        if self._parser.get_status_code() != 200:
            seen.errors += 1
        if seen.counting:
            seen.requests += 1
            if not self._paced:
                seen.latencies_us.append((time.monotonic_ns() - self._sent_ns) / 1000)
        if self._more():
            self.send()
        else:
            self.close()

    def close(self) -> None:
        """Without a word: to the server this is a client that left."""
        if not self.over.done():
            self.over.set_result(None)
        self.transport.abort()


async def connect(
    url: str,
    count: int,
    request: bytes,
    seen: Seen,
    more: Callable[[], bool] = lambda: True,
    *,
    paced: bool = False,
) -> list[Client]:
    """Open connections that begin to send at once."""
    loop = asyncio.get_running_loop()
    where = urlsplit(url)
    clients = []
    for _ in range(count):
        _, client = await loop.create_connection(
            lambda: Client(request, seen, more, paced=paced), where.hostname, where.port
        )
        clients.append(client)
    return clients


async def run_for(
    url: str,
    seconds: float,
    warm_s: float,
    *,
    connections: int,
    events: int = 0,
    gap_ms: int = 0,
    cpu_s: Callable[[], float],
) -> tuple[Seen, float, float]:
    """Load a URL for a while; what was seen, the processor time it took, and the time that passed."""
    seen = Seen()
    endless = events == FOR_EVER
    clients = await connect(
        url, connections, request_bytes(events, gap_ms), seen, paced=endless and bool(gap_ms)
    )
    await asyncio.sleep(warm_s)
    seen.counting = True
    cpu_before, began = cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    seen.counting = False
    cpu, passed = cpu_s() - cpu_before, time.monotonic() - began
    for client in clients:
        client.close()
    return seen, cpu, passed
