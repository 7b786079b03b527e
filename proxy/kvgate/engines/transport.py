"""The streaming client: httpx's transport interface over aiohttp's connections.

`httpx.Request` in, `httpx.Response` out, called without an `AsyncClient` on the hot path. httpx's own
transport costs ten times the processor time of this one and grows with the square of its pool; aiohttp's
wire does not.

What it promises:
* Bytes pass as they are, both ways: no decompression, redirect, cookie, retry, re-quoted URL or added header.
  The response keeps the order, case and duplicates of its headers, hop-by-hop ones included.
* Chunks come as they arrive. A reader that lags stops the engine's sending at `BUFFER_BYTES` twice over.
* `aclose` before the end of the body drops the connection at once, which is what makes vLLM free the KV
  blocks; after the end the connection is kept for the next request. So does a cancelled request or read.
* Every failure is an `httpx.TransportError`; a body that was cut short raises, it never just ends. (One
  that has neither a length nor chunks ends with its connection, as HTTP has it.)

Timeouts, seconds or None, come in `request.extensions["timeout"]`: `connect`; `first_read`, from the call
to the first byte of the answer's body, whatever it is spent on; `read`, for every later read. Without a
`first_read` it is `read`. They measure the engine, not our client: between two reads no time runs.
"""

from __future__ import annotations

import asyncio
import io
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import aiohttp
import httpx
from yarl import URL

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping

    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ConnectionKey

T = TypeVar("T")

KEEPALIVE_S = 4.0
"""uvicorn closes an idle connection after 5 s; reusing one at that moment would look like a crash."""
BUFFER_BYTES = 32 * 1024
"""Read ahead per stream, in kernel-sized bites; aiohttp pauses reading at twice this."""
DNS_TTL_S = 10
HEADER_LINE_BYTES_MAX = 16 * 1024
HEADERS_MAX = 256
BODY_BYTES_WHOLE = 1024 * 1024
"""A larger request body is written piece by piece, so that it doesn't hold the loop."""

_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class AiohttpTransport(httpx.AsyncBaseTransport):
    """One pool of connections to any number of backends. Belongs to the event loop of its first request."""

    def __init__(
        self,
        connections_max: int = 4096,
        *,
        tls: ssl.SSLContext | bool = True,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        """`tls`: a context, True for the system's authorities, False to trust any certificate."""
        self._connections_max = connections_max
        self._tls = tls
        self._keepalive_s = keepalive_s
        self._session: aiohttp.ClientSession | None = None
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Requests whose response is not closed or read to its end."""
        return self._in_flight

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send, and return when the response's headers are here.

        Raises `httpx.PoolTimeout` at once when `connections_max` requests are in flight: a request that
        waited here would hold its reservation and do nothing. Else ConnectError, ConnectTimeout (nothing
        was sent); ReadTimeout, ReadError, RemoteProtocolError (it may have been).
        """
        if self._in_flight >= self._connections_max:
            raise httpx.PoolTimeout(f"{self._connections_max} upstream requests in flight", request=request)
        body = await request.aread()
        self._in_flight += 1
        try:
            return await self._answer(request, body, _waits(request))
        except BaseException:
            self._in_flight -= 1
            raise

    async def aclose(self) -> None:
        """Close every connection, those in use too."""
        if self._session is not None:
            await self._session.close()

    async def _answer(self, request: httpx.Request, body: bytes, waits: _Waits) -> httpx.Response:
        with _mapped(request):
            answer = await _by(waits.first_byte_at, self._send(request, body, waits.connect_s))
        return httpx.Response(
            answer.status,
            headers=list(answer.raw_headers),
            stream=_Body(answer, request, waits, self._ended),
            extensions={
                "http_version": b"HTTP/1.1",
                "reason_phrase": (answer.reason or "").encode("latin-1"),
            },
            request=request,
        )

    async def _send(
        self, request: httpx.Request, body: bytes, connect_s: float | None
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = self._new_session()
        return await self._session.request(
            request.method,
            URL(str(request.url), encoded=True),
            headers=[
                (_text(name), _text(value)) for name, value in request.headers.raw if not _framing(name)
            ],
            data=_payload(body),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=connect_s),
        )

    def _new_session(self) -> aiohttp.ClientSession:
        connector = _Connector(
            limit=0,  # bounded above, without a queue
            ssl=self._tls,
            keepalive_timeout=self._keepalive_s,
            ttl_dns_cache=DNS_TTL_S,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_ADDED,
            auto_decompress=False,
            requote_redirect_url=False,
            read_bufsize=BUFFER_BYTES,
            max_line_size=HEADER_LINE_BYTES_MAX,
            max_field_size=HEADER_LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )

    def _ended(self) -> None:
        self._in_flight -= 1


class _Connector(aiohttp.TCPConnector):
    """Drops a connection that is not reused at once, unsent bytes included.

    aiohttp would close it in an orderly way and so wait for a peer that may never read again.
    """

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        if should_close or protocol.should_close:
            protocol.abort()
            should_close = True
        super()._release(key, protocol, should_close=should_close)


class _Body(httpx.AsyncByteStream):
    """The body of one response, to be read once."""

    def __init__(
        self,
        answer: aiohttp.ClientResponse,
        request: httpx.Request,
        waits: _Waits,
        ended: Callable[[], None],
    ) -> None:
        self._answer = answer
        self._request = request
        self._waits = waits
        self._ended = ended
        self._open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content = self._answer.content
        try:
            with _mapped(self._request):
                chunk = await _by(self._waits.first_byte_at, content.readany())
                while chunk:
                    yield chunk
                    async with asyncio.timeout(self._waits.read_s):
                        chunk = await content.readany()
        finally:
            self._close()

    async def aclose(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._answer.close()
            self._ended()


@dataclass(frozen=True, slots=True)
class _Waits:
    """The timeouts of one request, None for none."""

    connect_s: float | None
    first_byte_at: float | None
    """Loop time."""
    read_s: float | None


def _waits(request: httpx.Request) -> _Waits:
    given: Mapping[str, float | None] = request.extensions.get("timeout", {})
    read_s = given.get("read")
    first_s = given.get("first_read", read_s)
    now = asyncio.get_running_loop().time()
    return _Waits(given.get("connect"), None if first_s is None else now + first_s, read_s)


async def _by(when: float | None, awaited: Awaitable[T]) -> T:
    """Await until a loop time, None for ever. What is there already is had even after it."""
    if when is None:
        return await awaited
    async with asyncio.timeout_at(when):
        return await awaited


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    if not body:
        return None
    return body if len(body) <= BODY_BYTES_WHOLE else io.BytesIO(body)


def _framing(name: bytes) -> bool:
    """Headers that aiohttp writes itself: the body is at hand whole, and its length is what counts."""
    return name.lower() in {b"content-length", b"transfer-encoding"}


def _text(raw: bytes) -> str:
    """Aiohttp writes headers as UTF-8. Other bytes keep their letters, as latin-1 has them."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


@contextmanager
def _mapped(request: httpx.Request) -> Generator[None]:
    """The exceptions of aiohttp in httpx's words, so that nobody above knows which client is below."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx.ConnectTimeout(str(error), request=request) from error
    except TimeoutError as error:
        raise httpx.ReadTimeout("the engine was silent for too long", request=request) from error
    except aiohttp.ClientConnectorError as error:
        raise httpx.ConnectError(str(error), request=request) from error
    except (
        aiohttp.ServerDisconnectedError,
        aiohttp.ClientPayloadError,
        aiohttp.ClientResponseError,
    ) as error:
        raise httpx.RemoteProtocolError(str(error), request=request) from error
    except aiohttp.InvalidURL as error:
        raise httpx.UnsupportedProtocol(str(error), request=request) from error
    except (aiohttp.ClientError, OSError) as error:
        raise httpx.ReadError(str(error), request=request) from error
