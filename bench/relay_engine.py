"""A stand-in for a vLLM server that costs almost nothing: raw sockets, httptools, prepared answers.

It is what the proxies under test talk to, so it has to be far faster than any of them. What a request wants is
in its headers, which every proxy passes on: `x-bench-events` (0 or absent: a JSON answer of about 1 KB) and
`x-bench-gap-ms` between events (0: as fast as the reader takes them). An event has the size of vLLM's own and
carries the time of its sending, so that the reader can tell how long it was on its way.

It also shows what kvgate wants to know of an engine (`/metrics`, `/health`, `/v1/models`, `/tokenize`), with a
capacity so large that nothing ever queues: this bench is about the relay, not about the queue.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import cast

import httptools
import uvloop
from relay_children import end_with_parent, say_ready

EVENT_BYTES = 223
"""A chat chunk of vLLM with a usual id and one short token."""
BURST_EVENTS = 16
"""Written at once when there is no gap: a reader finds many events in one read, as behind a busy engine."""
MODEL = "bench"

_ID = "chatcmpl-0123456789abcdef01234567"
_SENT = "0" * 16


def _chunk(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    event = {
        "id": _ID,
        "object": "chat.completion.chunk",
        "created": 1790000000,
        "model": MODEL,
        "choices": [choice],
    }
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def _token() -> bytes:
    """One event of `EVENT_BYTES`, its content sixteen digits and then the padding."""
    short = len(_chunk({"content": _SENT}, None))
    return _chunk({"content": _SENT + " " * (EVENT_BYTES - short)}, None)


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(event), event)


def _respond(body: bytes, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


_BEFORE, _AFTER = _framed(_token()).split(_SENT.encode())
_OPENING = _framed(_chunk({"role": "assistant", "content": ""}, None))
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Oct 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_STREAM_END = _framed(_chunk({}, "stop")) + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_USAGE = {"prompt_tokens": 120, "completion_tokens": 64, "total_tokens": 184}
_JSON = _respond(
    json.dumps(
        {
            "id": _ID,
            "object": "chat.completion",
            "created": 1790000000,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "word " * 145},
                    "finish_reason": "stop",
                }
            ],
            "usage": _USAGE,
        }
    ).encode()
)
_METRICS = _respond(
    "\n".join(
        [
            "process_start_time_seconds 1790000000.5",
            f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0.0',
            f'vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0.0',
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.0',
            'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",'  # noqa: ISC004
            'kv_cache_max_concurrency="488.28125",num_gpu_blocks="1000000"} 1.0',
            "",
        ]
    ).encode(),
    "text/plain; version=0.0.4",
)
_MODELS = _respond(
    json.dumps(
        {
            "object": "list",
            "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 32768}],
        }
    ).encode()
)
_TOKENIZE = _respond(b'{"count":120,"max_model_len":32768,"tokens":[],"token_strs":null}')
_FIXED = {
    b"/metrics": _METRICS,
    b"/health": _respond(b""),
    b"/v1/models": _MODELS,
    b"/tokenize": _TOKENIZE,
}


class Engine(asyncio.Protocol):
    """One connection: one answer at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._events = 0
        self._gap_s = 0.0
        self._due_s = 0.0
        self._next: asyncio.Handle | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self._next is not None:
            self._next.cancel()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._events and not self._gap_s:
            self._burst()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self._events, self._gap_s = 0, 0.0

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"x-bench-events":
            self._events = int(value)
        elif name == b"x-bench-gap-ms":
            self._gap_s = int(value) / 1000

    def on_message_complete(self) -> None:
        if not self._events:
            self._transport.write(_FIXED.get(self._path, _JSON))
            return
        self._transport.write(_STREAM_HEAD + _OPENING)
        self._due_s = self._loop.time()
        if self._gap_s:
            self._paced()
        else:
            self._burst()

    # Streams

    def _paced(self) -> None:
        """One event, and the next by the clock: what is late does not move those behind it."""
        self._transport.write(_event())
        self._events -= 1
        if not self._events:
            self._transport.write(_STREAM_END)
            return
        self._due_s += self._gap_s
        self._next = self._loop.call_at(self._due_s, self._paced)

    def _burst(self) -> None:
        if self._paused:
            return
        count = min(BURST_EVENTS, self._events)
        self._transport.write(_event() * count)
        self._events -= count
        if self._events:
            self._next = self._loop.call_soon(self._burst)
        else:
            self._transport.write(_STREAM_END)


def _event() -> bytes:
    return b"%s%016d%s" % (_BEFORE, time.monotonic_ns(), _AFTER)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    say_ready(f"http://127.0.0.1:{port}")
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    end_with_parent()
    uvloop.run(_serve())
