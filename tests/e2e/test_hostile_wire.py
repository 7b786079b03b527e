"""Clients that break HTTP, on purpose or not: what they get, what reaches an engine, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvgate.api import wire
from support.gateway import SOON_S, Gate, completion, gateway
from support.upstream import Answer, EngineFace, ScriptedUpstream, engine_endpoints, hang, respond, sse

pytestmark = pytest.mark.e2e

WHOLE = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "tiny",
    "choices": [{"index": 0, "text": " ab", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
BODY = json.dumps(completion(3, 2)).encode()
UPGRADE_H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
UPGRADE_WS = b"connection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"


def engine(*answers: Answer) -> ScriptedUpstream:
    return ScriptedUpstream(*answers, endpoints=engine_endpoints(EngineFace()))


def asked(body: bytes = BODY, headers: bytes = b"", start: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return start + b"\r\nhost: x\r\ncontent-type: application/json\r\n" + length + headers + b"\r\n" + body


MODELS = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


class Line:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer, by its length or its chunks."""
        async with asyncio.timeout(SOON_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            if headers.get("transfer-encoding") == "chunked":
                body = await self._reader.readuntil(b"0\r\n\r\n")
            else:
                body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(SOON_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    def reset(self) -> None:
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def line(gate: Gate) -> AsyncGenerator[Line]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", int(gate.url.rpartition(":")[2]), limit=1 << 22
    )
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


async def served(gate: Gate) -> None:
    """It still serves, and holds nothing."""
    answer = await gate.post("/v1/completions", completion(3, 2))
    assert answer.status_code == 200
    await gate.at_zero()


class TestUpgrade:
    @pytest.mark.parametrize("headers", [UPGRADE_H2C, UPGRADE_WS])
    @pytest.mark.parametrize("split", [False, True])
    async def test_it_is_ignored_and_the_request_is_served_with_its_body(
        self, headers: bytes, *, split: bool
    ):
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate, line(gate) as client:
            request = asked(headers=headers)
            cut = request.index(b"\r\n\r\n") + 4 if split else len(request)
            client.send(request[:cut])
            await asyncio.sleep(0.05 * split)
            client.send(request[cut:])
            status, _, body = await client.answer()
            assert (status, json.loads(body)) == (200, WHOLE)
            assert up.scripted[0].body == BODY
            assert up.scripted[0].header("upgrade") is None
            client.send(MODELS)
            assert (await client.answer())[0] == 200

    async def test_its_body_is_never_read_as_a_request(self):
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate, line(gate) as client:
            hidden = asked(start=b"POST /v1/completions?hidden HTTP/1.1")
            request = asked(hidden, UPGRADE_H2C, b"POST /detokenize HTTP/1.1")
            head_end = request.index(b"\r\n\r\n") + 4
            client.send(request[:head_end])
            await asyncio.sleep(0.05)
            client.send(request[head_end:])
            await client.answer()
            client.send(MODELS)
            assert b"list" in (await client.answer())[2]
            assert not [seen for seen in up.requests if "hidden" in seen.path]

    async def test_connect_is_refused_and_the_connection_closed(self):
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
            for target in (b"/v1/completions", b"127.0.0.1:1"):
                async with line(gate) as client:
                    client.send(b"CONNECT " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n" + asked())
                    assert (await client.answer())[0] == 400
                    assert await client.rest() == b""
            assert up.scripted == []


SMUGGLED = asked(start=b"POST /v1/completions?smuggled HTTP/1.1")
START = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        START + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        START + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
        START + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        START + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
        START + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        START + b"content-length: 0\r\ncontent-length: 9\r\n\r\n" + SMUGGLED,
        START + b"content-length: 0, 0\r\n\r\n" + SMUGGLED,
        START + b"content-length: +0\r\n\r\n" + SMUGGLED,
        START + b"content-length: \r\n\r\n" + SMUGGLED,
        START + b"transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n" + SMUGGLED,
        START + b"x: a\r\n b\r\n\r\n" + SMUGGLED,
        START + b"x: a\x00\r\n\r\n" + SMUGGLED,
        START + b"x: a\rcontent-length: 9\r\n\r\n" + SMUGGLED,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
        b"POST /v1/\xe9 HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
        b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03",
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused_in_our_words_and_closed(request_bytes: bytes):
    async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
        async with line(gate) as client:
            client.send(request_bytes)
            status, headers, body = await client.answer()
            assert (status, headers["x-kvgate-reason"], headers["connection"]) == (
                400,
                "bad_request",
                "close",
            )
            assert headers["x-request-id"]
            assert json.loads(body)["error"]["code"] == "bad_request"
            await client.rest()
        assert up.scripted == []
        await served(gate)


async def test_only_paths_of_the_table_reach_an_engine():
    targets = (
        "/v1/%63ompletions /v1/../v1/completions /v1//completions /v1/completions/ /V1/completions /v1/completions;x "
        "/v1/completions%00 /sleep /metrics /v1/responses/resp_../cancel /v1/responses/resp_%2e%2e/cancel "
        "//evil/v1/completions http://evil/sleep"
    )
    async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate, line(gate) as client:
        for target in targets.split():
            client.send(asked(start=b"POST %s HTTP/1.1" % target.encode()))
            assert (await client.answer())[0] == 404, target
        assert up.scripted == []
        await served(gate)


async def test_trailers_never_become_headers():
    async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate, line(gate) as client:
        chunks = b"%x;a=b\r\n%s\r\n0\r\nx-forged: yes\r\nauthorization: Bearer x\r\n\r\n" % (len(BODY), BODY)
        client.send(START + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)
        assert (await client.answer())[0] == 200
        assert up.scripted[0].body == BODY
        assert (up.scripted[0].header("x-forged"), up.scripted[0].header("authorization")) == (None, None)


class TestTooMuch:
    @pytest.mark.parametrize(
        "head",
        [
            b"x: " + b"a" * wire.HEAD_BYTES_MAX + b"\r\n",
            b"x: a\r\n" * (wire.HEADERS_MAX + 1) + b"\r\n",
            b"x: " + b"a" * (4 * wire.HEAD_BYTES_MAX),
            b"transfer-encoding: chunked\r\n\r\n1;" + b"a" * (4 * wire.HEAD_BYTES_MAX),
            b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: a\r\n" * wire.HEAD_BYTES_MAX,
        ],
        ids=["one", "many", "endless", "chunk extension", "trailers"],
    )
    async def test_headers_above_the_bounds_are_431(self, head: bytes):
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
            async with line(gate) as client:
                client.send(START + head)
                assert (await client.answer())[0] == 431
            assert up.scripted == []
            await served(gate)

    async def test_headers_below_them_pass(self):
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate, line(gate) as client:
            client.send(asked(headers=b"x: " + b"a" * (wire.HEAD_BYTES_MAX // 4) + b"\r\n"))
            assert (await client.answer())[0] == 200
            client.send(asked(b'{"a":"' + b"b" * (5 * wire.HEAD_BYTES_MAX) + b'",' + BODY[1:]))
            assert (await client.answer())[0] == 200
            assert len(up.scripted) == 2

    async def test_a_body_too_large_is_not_asked_for(self):
        async with (
            engine(respond(WHOLE)) as up,
            gateway([up.url], body_bytes_max=1000) as gate,
            line(gate) as client,
        ):
            client.send(START + b"expect: 100-continue\r\ncontent-length: 1001\r\n\r\n")
            status, headers, _ = await client.answer()
            assert (status, headers["connection"]) == (413, "close")
            assert await client.rest() == b""
            assert up.scripted == []

    async def test_after_a_refusal_with_an_expectation_nothing_more_is_read(self):
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate, line(gate) as client:
            client.send(
                b"POST /nope HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 400\r\n\r\n"
            )
            status, headers, _ = await client.answer()
            assert (status, headers["connection"]) == (404, "close")
            assert await client.rest() == b""
            assert up.scripted == []


class TestTooSlow:
    @pytest.mark.parametrize("begun", [b"POST /v1/comp", START + b"x-a: ", b"\r\n\r\nG"])
    async def test_a_head_has_its_time(self, begun: bytes, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(wire, "HEAD_S_MAX", 0.3)
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
            async with line(gate) as client:
                for byte in begun:
                    client.send(bytes([byte]))
                assert (await client.answer())[0] == 408
                assert await client.rest() == b""
            await served(gate)

    async def test_a_connection_that_says_nothing_is_closed_as_an_idle_one(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("kvgate.ports.KEEP_ALIVE_S", 0.3)
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate, line(gate) as client:
            assert await client.rest() == b""

    async def test_a_request_in_time_keeps_its_connection(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(wire, "HEAD_S_MAX", 0.3)
        go = asyncio.Event()
        async with engine((go, *respond(WHOLE))) as up, gateway([up.url]) as gate, line(gate) as client:
            request = asked()
            client.send(request[:20])
            await asyncio.sleep(0.1)
            client.send(request[20:] + b"GET /v1/models HT")  # part of a head waits behind the answer
            await asyncio.sleep(0.6)
            go.set()
            assert (await client.answer())[0] == 200
            client.send(b"TP/1.1\r\nhost: x\r\n\r\n")
            assert (await client.answer())[0] == 200

    async def test_an_answer_that_nobody_reads_gives_its_room_back(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(wire, "STALL_S_MAX", 0.5)
        piece = {"id": "c", "choices": [{"index": 0, "text": "x" * 65536, "finish_reason": None}]}
        async with engine(sse([piece] * 400)) as up, gateway([up.url]) as gate:
            loop = asyncio.get_running_loop()
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", int(gate.url.rpartition(":")[2])))
                await loop.sock_sendall(sock, asked(json.dumps(completion(3, 400, stream=True)).encode()))
                await gate.until(lambda: gate.view.totals["grants"] == 1)
                await gate.at_zero()
            assert not up.scripted[0].answered

    async def test_one_that_reads_slowly_gets_it_all(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(wire, "STALL_S_MAX", 2.0)
        piece = {"id": "c", "choices": [{"index": 0, "text": "x" * 65536, "finish_reason": None}]}
        async with engine(sse([piece] * 100)) as up, gateway([up.url]) as gate, line(gate) as client:
            client.send(asked(json.dumps(completion(3, 400, stream=True)).encode(), b"connection: close\r\n"))
            await asyncio.sleep(0.5)
            assert (await client.rest()).count(b'"id"') == 100


def requests_ahead() -> Sequence[tuple[str, bytes]]:
    return (
        ("nothing", b""),
        ("a request", MODELS),
        ("three requests", asked() * 3),
        ("part of one", b"GET /v1/mod"),
        ("a large one", asked(b"x" * 300_000)),
        ("garbage", b"\x00\x01\x02\r\n\r\n"),
    )


class TestAhead:
    """What a client sends while its answer is not complete."""

    @pytest.mark.parametrize(("name", "more"), requests_ahead())
    @pytest.mark.parametrize("how", ["close", "reset"])
    async def test_its_leaving_is_seen_all_the_same(self, name: str, more: bytes, how: str):
        async with engine(hang()) as up, gateway([up.url]) as gate, line(gate) as client:
            client.send(asked() + more[: len(more) // 2])
            await up.until(lambda: len(up.scripted) == 1)
            client.send(more[len(more) // 2 :])
            await asyncio.sleep(0.05)
            getattr(client, how)()
            async with asyncio.timeout(SOON_S):
                await up.scripted[0].closed.wait()
            await gate.at_zero()
            assert len(up.scripted) == 1, name

    async def test_pipelined_requests_are_answered_in_their_order(self):
        go = asyncio.Event()
        async with (
            engine((go, *respond(WHOLE)), respond({**WHOLE, "id": "2"})) as up,
            gateway([up.url]) as gate,
        ):
            async with line(gate) as client:
                large = asked(b'{"a":"' + b"b" * 400_000 + b'",' + BODY[1:])
                client.send(asked() + MODELS)
                await up.until(lambda: len(up.scripted) == 1)
                client.send(large + MODELS)
                await asyncio.sleep(0.05)
                assert len(up.scripted) == 1
                go.set()
                bodies = [json.loads((await client.answer())[2]) for _ in range(4)]
                assert [body.get("id", body["object"]) for body in bodies] == ["cmpl-1", "list", "2", "list"]
            await gate.at_zero()

    async def test_more_than_is_kept_ends_the_connection_after_a_while(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(wire, "AHEAD_S_MAX", 0.2)
        async with engine(hang()) as up, gateway([up.url]) as gate, line(gate) as client:
            client.send(asked())
            await up.until(lambda: len(up.scripted) == 1)
            client.send(b"x" * (4 * wire.AHEAD_BYTES_MAX))
            async with asyncio.timeout(SOON_S):
                await up.scripted[0].closed.wait()
            await gate.at_zero()

    async def test_garbage_never_gets_into_the_answer_that_is_being_written(self):
        go = asyncio.Event()
        first, *others = sse([{"id": "c", "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}])
        async with (
            engine((first, others[0], go, *others[1:])) as up,
            gateway([up.url]) as gate,
            line(gate) as client,
        ):
            client.send(asked(json.dumps(completion(3, 5, stream=True)).encode()))
            await up.until(lambda: len(up.scripted) == 1)
            client.send(b"\x00garbage\r\n\r\n")
            await asyncio.sleep(0.05)
            go.set()
            status, _, body = await client.answer()
            assert (status, body.count(b"HTTP/"), body.count(b"[DONE]")) == (200, 0, 1)
            assert (await client.answer())[0] == 400


async def test_connections_above_the_bound_are_closed_and_the_others_served(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvgate.ports.client_connections_max", lambda: 5)
    async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
        port = int(gate.url.rpartition(":")[2])
        idle: list[Any] = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]
        closed = [asyncio.create_task(reader.read()) for reader, _ in idle]
        async with asyncio.timeout(SOON_S):
            while sum(task.done() for task in closed) < 4:
                await asyncio.sleep(0.01)
        assert sum(task.done() for task in closed) == 4
        for task, (_, writer) in zip(closed, idle, strict=True):
            task.cancel()
            writer.transport.abort()
        await gate.until(lambda: True)
        await asyncio.sleep(0.05)
        await served(gate)
