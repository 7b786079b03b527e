"""A scripted HTTP/1.1 server on a real socket: every good and bad way a backend can answer.

    async with ScriptedUpstream(respond(b"{}"), sse(["a", "b"], delay_s=0.01), hang()) as up:
        ...  # client talks to up.url; the nth request gets the nth answer, the last one repeats
        up.requests[0].body, await up.requests[2].closed.wait()

An answer is a tuple of steps, built by the functions below or by hand. Requests whose path is in `endpoints`
are answered from there and use up no scripted answer; `engine_endpoints` makes a backend that a pool can
discover. Nothing is decided by time except where an answer names a delay.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Self, cast

Headers = Sequence[tuple[str, str]]


class End(Enum):
    RESET = auto()
    """A TCP reset (RST)."""
    CLOSE = auto()
    """An orderly end (FIN) where no end was due."""
    HANG = auto()
    """Say no more until the peer closes."""


@dataclass(frozen=True)
class Pause:
    seconds: float


Step = bytes | Pause | asyncio.Event | End
"""Bytes go out in a write of their own; an event is waited for, so that a test can hold an answer back."""
Answer = tuple[Step, ...]


@dataclass
class Seen:
    """A request as it arrived; `path` includes the query, `headers` keep order, case and duplicates."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    """Which connection it came on, counted from 0."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its connection is gone."""
    answered: bool = False
    """All steps of the answer were written before the connection went."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Endpoint = Answer | Callable[[Seen], Answer]


def head(status: int, headers: Headers) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def respond(
    body: bytes | str | Mapping[str, Any] = b"",
    status: int = 200,
    headers: Headers = (),
    *,
    content_type: str = "application/json",
) -> Answer:
    """A whole answer with a content-length, in one write."""
    payload = json.dumps(body).encode() if isinstance(body, Mapping) else body
    payload = payload.encode() if isinstance(payload, str) else payload
    base = [("content-type", content_type), ("content-length", str(len(payload)))]
    return (head(status, [*base, *headers]) + payload,)


def chunked(
    pieces: Iterable[bytes],
    status: int = 200,
    headers: Headers = (),
    *,
    delay_s: float = 0.0,
    whole: bool = True,
) -> Answer:
    """Chunked encoding, one write per piece; `whole=False` leaves the last chunk out."""
    steps: list[Step] = [head(status, [*headers, ("transfer-encoding", "chunked")])]
    for piece in pieces:
        if delay_s:
            steps.append(Pause(delay_s))
        steps.append(b"%x\r\n%s\r\n" % (len(piece), piece))
    return (*steps, *((b"0\r\n\r\n",) if whole else ()))


def sse(
    events: Iterable[str | Mapping[str, Any]], *, delay_s: float = 0.0, done: bool = True, whole: bool = True
) -> Answer:
    """An event stream as vLLM sends it: one chunk per `data:` event, then `[DONE]` unless told otherwise."""
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    pieces = [f"data: {text}\n\n".encode() for text in [*texts, *(["[DONE]"] if done else [])]]
    headers = [("content-type", "text/event-stream; charset=utf-8")]
    return chunked(pieces, headers=headers, delay_s=delay_s, whole=whole)


def byte_by_byte(answer: Answer) -> Answer:
    """The same bytes, each in a write of its own with a turn of the loop between."""
    steps: list[Step] = []
    for step in answer:
        if isinstance(step, bytes):
            steps += [part for byte in step for part in (bytes([byte]), Pause(0))]
        else:
            steps.append(step)
    return tuple(steps)


def cut(answer: Answer, after_bytes: int, end: End = End.RESET) -> Answer:
    """The first bytes of an answer (0: none), then its untimely end."""
    steps: list[Step] = []
    left = after_bytes
    for step in answer:
        if isinstance(step, bytes):
            steps.append(step[:left])
            left -= len(step)
            if left <= 0:
                break
        else:
            steps.append(step)
    return (*(step for step in steps if step != b""), Pause(0), end)


def reset() -> Answer:
    """The request is read, then the connection is reset without a byte."""
    return (End.RESET,)


def hang() -> Answer:
    """The request is read and never answered."""
    return (End.HANG,)


class ScriptedUpstream:
    """Serves `answers` in order, the last one again and again; 500 if there is none."""

    def __init__(self, *answers: Answer, endpoints: Mapping[str, Endpoint] | None = None) -> None:
        self.answers: list[Answer] = list(answers)
        """May be changed while running."""
        self.endpoints: dict[str, Endpoint] = dict(endpoints or {})
        self.requests: list[Seen] = []
        self.connections_total = 0
        self.port = 0
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._served = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections_open(self) -> int:
        return len(self._links)

    @property
    def scripted(self) -> list[Seen]:
        """The requests that no endpoint took."""
        return [seen for seen in self.requests if seen.path.partition("?")[0] not in self.endpoints]

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.refuse()

    async def listen(self) -> None:
        """Accept connections: at first on any port, later on the same one again."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self), "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Stop listening and reset every connection, as a process that was killed."""
        if self._server is not None:
            self._server.close()
        self._server = None
        for link in list(self._links):
            link.reset()
        await self.until(lambda: not self._links)

    async def until(self, true: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for something that sockets bring about. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not true():
                await asyncio.sleep(0.002)

    def answer_to(self, seen: Seen) -> Answer:
        endpoint = self.endpoints.get(seen.path.partition("?")[0])
        if endpoint is not None:
            return endpoint(seen) if callable(endpoint) else endpoint
        if not self.answers:
            return respond({"error": "the script is empty"}, 500)
        self._served += 1
        return self.answers[min(self._served, len(self.answers)) - 1]


class _Link(asyncio.Protocol):
    """One accepted connection: a protocol, so that the peer's leaving is seen while an answer is written."""

    def __init__(self, up: ScriptedUpstream) -> None:
        self._up = up
        self._reader = asyncio.StreamReader()
        self._gone = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by duck type
        self._number = self._up.connections_total
        self._up.connections_total += 1
        self._up._links.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._reader.feed_data(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._up._links.discard(self)
        self._gone.set()
        self._task.cancel()

    def reset(self) -> None:
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    async def _serve(self) -> None:
        while (seen := await self._read()) is not None:
            self._up.requests.append(seen)
            await self._answer(self._up.answer_to(seen))
            seen.answered = True

    async def _read(self) -> Seen | None:
        try:
            text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = text.rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        seen = Seen(method, path, headers, b"", self._number, closed=self._gone)
        if (seen.header("transfer-encoding") or "").lower() == "chunked":
            seen.body = await self._read_chunks()
        else:
            seen.body = await self._reader.readexactly(int(seen.header("content-length") or 0))
        return seen

    async def _read_chunks(self) -> bytes:
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()
        return body

    async def _answer(self, answer: Answer) -> None:
        for step in answer:
            if isinstance(step, bytes):
                await self._writable.wait()
                self._transport.write(step)
            elif isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, asyncio.Event):
                await step.wait()
            else:
                await self._end(step)

    async def _end(self, end: End) -> None:
        if end is End.RESET:
            self.reset()
        elif end is End.CLOSE:
            self._transport.close()
        await asyncio.Event().wait()  # cancelled when the connection is gone


@dataclass
class EngineFace:
    """What a vLLM server shows of itself; change it while it is served. Gauges are those of each engine."""

    model: str = "tiny"
    adapters: tuple[str, ...] = ()
    max_model_len: int | None = 2048
    num_gpu_blocks: int | None = 121
    """Of all engines together, as vLLM prints it."""
    block_size: int = 32
    engines: int = 1
    concurrency: float | None = None
    """kv_cache_max_concurrency; None: that of one full-attention group."""
    prefix_caching: bool = True
    usage: float = 0.0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    generation_tokens: int = 0
    start_time_s: float = 1_796_022_666.83
    metrics: bool = True
    """False: /metrics is 404."""
    healthy: bool = True

    def metrics_text(self) -> str:
        return "\n".join([f"process_start_time_seconds {self.start_time_s}", *self._engine_lines(), ""])

    def _engine_lines(self) -> Iterator[str]:
        for engine in range(self.engines):
            labels = f'engine="{engine}",model_name="{self.model}"'
            yield f"vllm:num_requests_running{{{labels}}} {float(self.running)}"
            yield f"vllm:num_requests_waiting{{{labels}}} {float(self.waiting)}"
            yield f"vllm:kv_cache_usage_perc{{{labels}}} {self.usage}"
            yield f"vllm:num_preemptions_total{{{labels}}} {float(self.preemptions)}"
            yield f"vllm:generation_tokens_total{{{labels}}} {float(self.generation_tokens)}"
            yield (
                f'vllm:cache_config_info{{block_size="{self.block_size}",cache_dtype="auto",'
                f'enable_prefix_caching="{self.prefix_caching}",engine="{engine}",hash_block_size="None",'
                f'kv_cache_max_concurrency="{self._concurrency()}",'
                f'num_gpu_blocks="{self.num_gpu_blocks}"}} 1.0'
            )

    def _concurrency(self) -> float | None:
        if self.concurrency is not None or not self.num_gpu_blocks or not self.max_model_len:
            return self.concurrency
        return self.num_gpu_blocks / self.engines / -(-self.max_model_len // self.block_size)

    def models(self) -> dict[str, Any]:
        def card(name: str, parent: str | None) -> dict[str, Any]:
            length = {} if self.max_model_len is None else {"max_model_len": self.max_model_len}
            return {"id": name, "object": "model", "owned_by": "vllm", "parent": parent, **length}

        return {
            "object": "list",
            "data": [card(self.model, None), *(card(n, self.model) for n in self.adapters)],
        }

    def tokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One token per word, one for the beginning, and three per chat message."""
        messages = [str(message.get("content", "")) for message in body.get("messages", ())]
        words = [str(body.get("prompt", "")), *messages]
        count = 1 + sum(len(text.split()) for text in words) + 3 * len(messages)
        return {
            "count": count,
            "max_model_len": self.max_model_len,
            "tokens": [1] * count,
            "token_strs": None,
        }


def engine_endpoints(face: EngineFace) -> dict[str, Endpoint]:
    """`/metrics`, `/health`, `/v1/models` and `/tokenize` of a vLLM server that looks like `face`."""

    def metrics(_: Seen) -> Answer:
        if not face.metrics:
            return respond({"detail": "Not Found"}, 404)
        return respond(face.metrics_text(), content_type="text/plain; version=0.0.4")

    return {
        "/metrics": metrics,
        "/health": lambda _: respond(b"", 200 if face.healthy else 503),
        "/v1/models": lambda _: respond(face.models()),
        "/tokenize": lambda seen: respond(face.tokenize(seen.json)),
    }
