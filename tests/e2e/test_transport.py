"""The streaming client against real sockets that behave and misbehave."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import psutil
import pytest

from kvgate.clock import SystemClock
from kvgate.config.settings import Settings
from kvgate.engines.base import Pulse
from kvgate.engines.pool import EnginePool
from kvgate.engines.transport import BUFFER_BYTES, AiohttpTransport
from kvgate.ledger.memory import MemoryLedger
from support.upstream import (
    End,
    EngineFace,
    Pause,
    ScriptedUpstream,
    byte_by_byte,
    chunked,
    cut,
    engine_endpoints,
    hang,
    head,
    reset,
    respond,
    sse,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

EVENTS = [f'{{"token": {i}}}' for i in range(5)]
WHOLE = b"".join(f"data: {event}\n\n".encode() for event in [*EVENTS, "[DONE]"])
LONG_S = 30.0


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The product runs on uvloop; asyncio's own loop is what the rest of the tests use."""
    return request.param


@pytest.fixture
async def transport() -> AsyncIterator[AiohttpTransport]:
    transport = AiohttpTransport()
    yield transport
    await transport.aclose()
    assert transport.in_flight == 0


def post(url: str, body: bytes = b"{}", headers: Any = (), **waits: float | None) -> httpx.Request:
    timeout = {"connect": LONG_S, "read": LONG_S, **waits}
    return httpx.Request("POST", url, content=body, headers=list(headers), extensions={"timeout": timeout})


def stream(response: httpx.Response) -> httpx.AsyncByteStream:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return response.stream


async def fetch(transport: AiohttpTransport, request: httpx.Request) -> tuple[httpx.Response, bytes]:
    response = await transport.handle_async_request(request)
    try:
        return response, b"".join([chunk async for chunk in stream(response)])
    finally:
        await response.aclose()


@asynccontextmanager
async def opened(transport: AiohttpTransport, request: httpx.Request) -> AsyncIterator[httpx.Response]:
    response = await transport.handle_async_request(request)
    try:
        yield response
    finally:
        await response.aclose()


# --- bytes pass as they are ---------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [sse(EVENTS), byte_by_byte(sse(EVENTS))], ids=["whole", "byte by byte"])
async def test_a_stream_arrives_byte_for_byte(transport, answer) -> None:
    async with ScriptedUpstream(answer) as up:
        response, body = await fetch(transport, post(up.url))
    assert (response.status_code, body) == (200, WHOLE)


async def test_a_chunk_is_handed_on_before_the_next_one_exists(transport) -> None:
    gate = asyncio.Event()
    answer = (*chunked([b"first"], whole=False), gate, b"6\r\nsecond\r\n0\r\n\r\n")
    async with ScriptedUpstream(answer) as up, opened(transport, post(up.url)) as response:
        chunks = aiter(stream(response))
        assert await anext(chunks) == b"first"
        gate.set()
        assert [chunk async for chunk in chunks] == [b"second"]


@pytest.mark.parametrize(("status", "beats"), [(200, 3), (400, 0), (503, 0)])
async def test_each_chunk_of_an_answer_that_was_computed_is_a_beat(
    transport, status: int, beats: int
) -> None:
    go_on = [asyncio.Event(), asyncio.Event()]
    first, *rest = chunked([b"a", b"b", b"c"], status)
    pulse = Pulse()
    async with ScriptedUpstream((first, rest[0], go_on[0], rest[1], go_on[1], *rest[2:])) as up:
        request = post(up.url)
        request.extensions["pulse"] = pulse
        async with opened(transport, request) as response:
            chunks = aiter(stream(response))
            assert await anext(chunks) == b"a"
            for event, expected in zip(go_on, (b"b", b"c"), strict=True):
                event.set()
                assert await anext(chunks) == expected
            assert [chunk async for chunk in chunks] == []
    assert pulse.beats == beats


async def test_the_request_is_sent_as_given_and_nothing_is_added(transport) -> None:
    headers: list[Any] = [
        ("X-Tag", "a"),
        ("X-Tag", "b"),
        ("Cookie", "k=v"),
        ("Authorization", "Bearer x"),
        ("X-N", "ü".encode()),
    ]
    async with ScriptedUpstream(respond(b"")) as up:
        await fetch(transport, post(f"{up.url}/v1/a%2Fb%20c?q=%7Bx%7D&e=", b'{"a":1}', headers))
    seen = up.requests[0]
    assert seen.path == "/v1/a%2Fb%20c?q=%7Bx%7D&e="
    assert seen.body == b'{"a":1}'
    names = sorted(name.lower() for name, _ in seen.headers)
    assert names == ["authorization", "content-length", "cookie", "host", "x-n", "x-tag", "x-tag"]
    assert [pair for pair in seen.headers if pair[0].lower() == "x-tag"] == headers[:2]
    assert (seen.header("x-n") or "").encode("latin-1") == "ü".encode()


async def test_response_headers_keep_order_case_and_duplicates(transport) -> None:
    headers = [("X-B", "2"), ("x-a", "1"), ("Set-Cookie", "a=1"), ("set-cookie", "b=2"), ("X-B", "3")]
    async with ScriptedUpstream(respond(b"x", headers=headers), respond(b"y")) as up:
        response, _ = await fetch(transport, post(up.url))
        await fetch(transport, post(up.url))
    raw = [(name.decode(), value.decode()) for name, value in response.headers.raw]
    assert raw[2:] == headers
    assert up.requests[1].header("cookie") is None


async def test_a_compressed_body_is_not_touched(transport) -> None:
    packed = gzip.compress(b"hello" * 100)
    async with ScriptedUpstream(respond(packed, headers=[("content-encoding", "gzip")])) as up:
        response, body = await fetch(transport, post(up.url))
    assert body == packed
    assert response.headers["content-encoding"] == "gzip"


async def test_a_redirect_is_an_answer_like_any_other(transport) -> None:
    async with ScriptedUpstream(respond(b"", 307, [("location", "/elsewhere")])) as up:
        response, _ = await fetch(transport, post(up.url))
    assert (response.status_code, response.headers["location"]) == (307, "/elsewhere")
    assert len(up.requests) == 1


@pytest.mark.parametrize("size", [0, 1, 1024 * 1024, 1024 * 1024 + 1, 9_000_000])
async def test_a_body_of_any_size_is_sent_whole(transport, size) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with ScriptedUpstream(respond(b"ok")) as up:
        await fetch(transport, post(up.url, body))
    assert up.requests[0].body == body
    assert up.requests[0].header("content-length") == str(size)


async def test_an_interim_answer_is_skipped(transport) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    async with ScriptedUpstream((interim, *respond(b"real"))) as up:
        response, body = await fetch(transport, post(up.url))
    assert (response.status_code, body) == (200, b"real")


async def test_a_body_that_ends_with_its_connection(transport) -> None:
    async with ScriptedUpstream((head(200, []), b"all", Pause(0), End.CLOSE)) as up:
        assert (await fetch(transport, post(up.url)))[1] == b"all"


async def test_it_serves_an_async_client_too() -> None:
    async with (
        ScriptedUpstream(respond({"ok": True})) as up,
        httpx.AsyncClient(transport=AiohttpTransport()) as client,
    ):
        assert (await client.post(up.url, json={})).json() == {"ok": True}


# --- connections ------------------------------------------------------------------------------------------


async def test_a_finished_connection_is_used_again(transport) -> None:
    async with ScriptedUpstream(sse(EVENTS)) as up:
        for _ in range(5):
            await fetch(transport, post(up.url))
        assert up.connections_total == 1


async def test_a_connection_is_not_kept_past_its_time() -> None:
    transport = AiohttpTransport(keepalive_s=0.05)
    async with ScriptedUpstream(respond(b"x")) as up:
        await fetch(transport, post(up.url))
        await up.until(lambda: up.connections_open == 0)
        await fetch(transport, post(up.url))
        assert up.connections_total == 2
        await transport.aclose()


async def test_an_early_close_ends_the_connection_at_once(transport) -> None:
    async with ScriptedUpstream((*chunked([b"first"], whole=False), End.HANG)) as up:
        async with opened(transport, post(up.url)) as response:
            assert await anext(aiter(stream(response))) == b"first"
            assert not up.requests[0].closed.is_set()
        await asyncio.wait_for(up.requests[0].closed.wait(), 5)
        assert transport.in_flight == 0


async def test_a_response_closed_unread_ends_the_connection(transport) -> None:
    async with ScriptedUpstream((*chunked([b"first"], whole=False), End.HANG)) as up:
        async with opened(transport, post(up.url)):
            pass
        await asyncio.wait_for(up.requests[0].closed.wait(), 5)


async def test_closing_twice_counts_once(transport) -> None:
    async with ScriptedUpstream(respond(b"x")) as up:
        response, _ = await fetch(transport, post(up.url))
        await response.aclose()
        await stream(response).aclose()
        assert transport.in_flight == 0


CANCEL_POINTS = {
    "waiting for headers": hang(),
    "inside the headers": cut(respond(b"body"), 12, End.HANG),
    "waiting for the first byte": (head(200, [("transfer-encoding", "chunked")]), End.HANG),
    "between chunks": (*chunked([b"a"], whole=False), End.HANG),
}


@pytest.mark.parametrize("point", CANCEL_POINTS)
async def test_cancelling_leaks_no_connection(transport, point) -> None:
    async with ScriptedUpstream(CANCEL_POINTS[point]) as up:
        tasks = [asyncio.create_task(fetch(transport, post(up.url))) for _ in range(20)]
        await up.until(lambda: len(up.requests) == 20)
        await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError)
            for end in await asyncio.gather(*tasks, return_exceptions=True)
        )
        await up.until(lambda: up.connections_open == 0)
        assert transport.in_flight == 0


async def test_cancelling_after_any_number_of_steps_leaks_nothing(transport) -> None:
    """Connect, write, headers, body: the task is cancelled after each turn of the loop in its life."""
    async with ScriptedUpstream(byte_by_byte(sse(["x"]))) as up:
        for turns in range(120):
            task = asyncio.create_task(fetch(transport, post(up.url, b"y" * 5000)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert transport.in_flight == 0
        await fetch(transport, post(up.url))
        await up.until(lambda: up.connections_open == 1)


async def test_cancelling_while_the_peer_does_not_read_leaks_nothing(transport) -> None:
    """What can't be sent is thrown away: an orderly close would wait for the peer, for ever."""
    async with deaf_server() as (url, links):
        port = int(url.rpartition(":")[2])
        task = asyncio.create_task(fetch(transport, post(url, b"z" * 20_000_000)))
        await until(lambda: len(links) == 1)
        await asyncio.sleep(0.05)
        assert sockets_to(port) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert transport.in_flight == 0
        await until(lambda: sockets_to(port) == 0)


async def test_more_than_the_allowed_connections_are_refused_at_once() -> None:
    transport = AiohttpTransport(connections_max=2)
    async with ScriptedUpstream((*chunked([b"a"], whole=False), End.HANG)) as up:
        async with opened(transport, post(up.url)), opened(transport, post(up.url)):
            with pytest.raises(httpx.PoolTimeout):
                await transport.handle_async_request(post(up.url))
        async with opened(transport, post(up.url)):
            assert transport.in_flight == 1
        await transport.aclose()
    assert len(up.requests) == 3


async def test_a_reader_that_lags_stops_the_engine(transport) -> None:
    """Memory for one stream is bounded: the rest waits in the kernel and in the engine."""
    piece = b"p" * 65536
    async with ScriptedUpstream(chunked([piece] * 400)) as up, opened(transport, post(up.url)) as response:
        chunks = aiter(stream(response))
        sizes = [len(await anext(chunks))]
        await asyncio.sleep(0.2)
        assert not up.requests[0].answered
        sizes += [len(chunk) async for chunk in chunks]
        assert sum(sizes) == 400 * len(piece)
        assert max(sizes) < 16 * BUFFER_BYTES


# --- failures ---------------------------------------------------------------------------------------------


async def test_a_refused_connection(transport) -> None:
    async with ScriptedUpstream() as up:
        url = up.url
    with pytest.raises(httpx.ConnectError):
        await transport.handle_async_request(post(url))


async def test_a_name_that_does_not_resolve(transport) -> None:
    with pytest.raises(httpx.ConnectError):
        await transport.handle_async_request(post("http://nowhere.invalid"))


async def test_a_connection_that_is_never_accepted(transport) -> None:
    async with full_backlog() as url:
        with pytest.raises(httpx.ConnectTimeout):
            await transport.handle_async_request(post(url, connect=0.1))


BEFORE_A_BYTE = {
    "reset": reset(),
    "closed": (End.CLOSE,),
    "cut in the headers": cut(respond(b"body"), 20),
    "closed in the headers": cut(respond(b"body"), 20, End.CLOSE),
    "not http": (b"SSH-2.0-x\r\n\r\n", End.CLOSE),
    "headers too long": (head(200, [("x-long", "y" * 20_000)]), End.CLOSE),
}


@pytest.mark.parametrize("kind", BEFORE_A_BYTE)
async def test_failing_before_the_headers(transport, kind) -> None:
    async with ScriptedUpstream(BEFORE_A_BYTE[kind]) as up:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await transport.handle_async_request(post(up.url))
        assert len(up.requests) == 1, "a request that may have been seen is never sent twice"
        await up.until(lambda: up.connections_open == 0)


MID_BODY = {
    "reset in a chunk": cut(sse(EVENTS), 180),
    "closed in a chunk": cut(sse(EVENTS), 180, End.CLOSE),
    "no last chunk": (*chunked([b"abc"], whole=False), Pause(0), End.CLOSE),
    "reset between chunks": (*chunked([b"abc"], whole=False), Pause(0), End.RESET),
    "short of its length": (head(200, [("content-length", "10")]) + b"abc", Pause(0), End.CLOSE),
    "reset short of its length": (head(200, [("content-length", "10")]) + b"abc", Pause(0), End.RESET),
}


@pytest.mark.parametrize("kind", MID_BODY)
async def test_a_body_cut_short_raises_after_what_came(transport, kind) -> None:
    got = b""
    async with ScriptedUpstream(MID_BODY[kind]) as up:
        async with opened(transport, post(up.url)) as response:
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                async for chunk in stream(response):
                    got += chunk
        await up.until(lambda: up.connections_open == 0)
    assert b"abc".startswith(got) or WHOLE.startswith(got)


async def test_no_headers_in_time(transport) -> None:
    async with ScriptedUpstream(hang()) as up:
        with pytest.raises(httpx.ReadTimeout):
            await transport.handle_async_request(post(up.url, first_read=0.1))
        await up.until(lambda: up.connections_open == 0)


async def test_headers_but_no_first_byte_in_time(transport) -> None:
    async with ScriptedUpstream((head(200, [("transfer-encoding", "chunked")]), End.HANG)) as up:
        with pytest.raises(httpx.ReadTimeout):
            await fetch(transport, post(up.url, first_read=0.1, connect=0.1))
        await up.until(lambda: up.connections_open == 0)


async def test_silence_between_two_reads(transport) -> None:
    async with ScriptedUpstream((*chunked([b"abc"], whole=False), End.HANG)) as up:
        with pytest.raises(httpx.ReadTimeout):
            await fetch(transport, post(up.url, read=0.1, first_read=LONG_S))
        await up.until(lambda: up.connections_open == 0)


async def test_the_first_byte_may_take_longer_than_later_ones(transport) -> None:
    async with ScriptedUpstream((Pause(0.3), *sse(EVENTS))) as up:
        assert (await fetch(transport, post(up.url, read=0.1, first_read=LONG_S)))[1] == WHOLE


async def test_a_reader_that_lags_is_not_the_engines_silence(transport) -> None:
    async with ScriptedUpstream(chunked([b"p" * 65536] * 100)) as up:
        async with opened(transport, post(up.url, read=0.1, first_read=LONG_S)) as response:
            total = 0
            async for chunk in stream(response):
                total += len(chunk)
                if total < 300_000:
                    await asyncio.sleep(0.15)
        assert total == 100 * 65536


async def test_an_engine_that_stops_reading_the_request(transport) -> None:
    async with deaf_server() as (url, _):
        with pytest.raises(httpx.ReadTimeout):
            await transport.handle_async_request(post(url, b"z" * 20_000_000, first_read=0.1))
    assert transport.in_flight == 0


async def test_a_stale_connection_is_an_error_not_a_second_request(transport) -> None:
    """The backend closes the idle connection in the moment it is used again."""
    async with ScriptedUpstream(respond(b"a"), reset(), respond(b"b")) as up:
        await fetch(transport, post(up.url))
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await fetch(transport, post(up.url))
        assert len(up.requests) == 2
        assert (await fetch(transport, post(up.url)))[1] == b"b"


# --- TLS --------------------------------------------------------------------------------------------------


async def test_tls_with_and_without_the_right_authority(tmp_path: Path) -> None:
    server = self_signed(tmp_path)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with tls_server(server) as url:
        for tls, fine in ((trusting, True), (False, True), (True, False)):
            transport = AiohttpTransport(tls=tls)
            if fine:
                assert (await fetch(transport, post(url)))[1] == b"ok"
            else:
                with pytest.raises(httpx.ConnectError):
                    await fetch(transport, post(url))
            await transport.aclose()


# --- the pool, with the clients it makes for itself --------------------------------------------------------


@asynccontextmanager
async def pool_of(*ups: ScriptedUpstream, **settings: Any) -> AsyncIterator[EnginePool]:
    clock = SystemClock()
    urls = tuple(up.url for up in ups)
    pool = EnginePool(Settings(backends=urls, probe_interval_s=0.05, **settings), MemoryLedger(clock), clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pool.run)
        yield pool
        tasks.cancel_scope.cancel()
    for up in ups:
        await up.until(lambda up=up: up.connections_open == 0)  # type: ignore[misc]


async def test_the_pool_discovers_loses_and_finds_a_backend_again() -> None:
    async with (
        ScriptedUpstream(endpoints=engine_endpoints(EngineFace())) as a,
        ScriptedUpstream(endpoints=engine_endpoints(EngineFace())) as b,
        pool_of(a, b, probe_timeout_s=5.0) as pool,
    ):
        await until(lambda: pool.available() == {a.url, b.url})
        assert await pool.tokenize({"prompt": "one two"}) == 3
        await a.refuse()
        await until(lambda: pool.available() == {b.url})
        await a.listen()
        await until(lambda: pool.available() == {a.url, b.url})


async def test_the_pool_discovers_once_and_leaves_no_connection() -> None:
    async with ScriptedUpstream(endpoints=engine_endpoints(EngineFace())) as up:
        clock = SystemClock()
        pool = EnginePool(Settings(backends=(up.url,)), MemoryLedger(clock), clock)
        for _ in range(2):
            (report,) = await pool.discover_once()
            assert report.errors == ()
            await up.until(lambda: up.connections_open == 0)
        assert up.connections_total == 2, "one connection serves all questions of a discovery"


async def test_a_backend_that_hangs_in_the_middle_of_its_metrics() -> None:
    face = EngineFace()
    endpoints = engine_endpoints(face)
    async with ScriptedUpstream(endpoints=endpoints) as up, pool_of(up, probe_timeout_s=0.1) as pool:
        await until(lambda: pool.available() == {up.url})
        up.endpoints["/metrics"] = (*chunked([b"vllm:"], whole=False), End.HANG)
        await until(lambda: (pool.snapshot()[0].last_error or "").startswith("GET /metrics"))
        assert pool.available() == {up.url}, "its /health is good"
        up.endpoints["/health"] = hang()
        await until(lambda: not pool.available())


# --- servers that ScriptedUpstream is too well-behaved for ------------------------------------------------


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.002)


def sockets_to(port: int) -> int:
    """Open sockets of this process whose other end is that port."""
    links = psutil.Process().net_connections("tcp")
    return sum(bool(link.raddr) and link.raddr.port == port for link in links)


@asynccontextmanager
async def deaf_server() -> AsyncIterator[tuple[str, list[asyncio.Transport]]]:
    """Accepts and reads nothing."""
    links: list[asyncio.Transport] = []

    class Deaf(asyncio.Protocol):
        def connection_made(self, transport) -> None:
            transport.pause_reading()
            links.append(transport)
            if not server.is_serving():  # accepted in the moment in which it ended
                transport.abort()

    server = await asyncio.get_running_loop().create_server(Deaf, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", links
    finally:
        server.close()
        for link in links:
            link.abort()


@asynccontextmanager
async def full_backlog() -> AsyncIterator[str]:
    """A listener that accepts nothing and whose queue is full: a SYN to it is lost."""
    import socket  # noqa: PLC0415 - only here

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for filler in fillers:
                filler.close()


def self_signed(folder: Path) -> ssl.SSLContext:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            key,
            "-out",
            cert,
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@asynccontextmanager
async def tls_server(context: ssl.SSLContext) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head(200, [("content-length", "2")]) + b"ok")
        await writer.drain()
        await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
