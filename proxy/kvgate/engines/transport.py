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

A `base.Pulse` in `request.extensions["pulse"]` is counted up by each chunk of a 200's body.

Timeouts, seconds or None, come in `request.extensions["timeout"]`: `connect`; `first_read`, from the call
to the first byte of the answer's body, whatever it is spent on; `read`, for every later read. Without a
`first_read` it is `read`. They measure the engine, not our client: between two reads no time runs.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import aiohttp
import httpx
from yarl import URL

from kvgate.engines.base import Pulse

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

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

FAILURES = (aiohttp.ClientError, TimeoutError, OSError)
"""Whatever aiohttp raises when the other side is the trouble."""

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
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
        body = await _whole(request)
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
        try:
            answer = await _by(waits.first_byte_at, self._send(request, body, waits.connect_s))
        except FAILURES as error:
            raise _in_httpx_words(error, request) from error
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
            headers=_texts(request.headers.raw),
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
        pulse = request.extensions.get("pulse")
        self._pulse: Pulse = Pulse() if pulse is None or answer.status != 200 else pulse

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content = self._answer.content
        idle = _Idle(content, self._waits.read_s)
        pulse = self._pulse
        try:
            chunk = await _by(self._waits.first_byte_at, content.readany())
            while chunk:
                pulse.beats += 1
                yield chunk
                idle.begin()
                chunk = await content.readany()
                idle.since_s = None
        except FAILURES as error:
            raise _in_httpx_words(error, self._request) from error
        finally:
            idle.stop()
            self._close()

    async def aclose(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._answer.close()
            self._ended()


class _Idle:
    """Ends a read that waits for too long. One timer for a whole stream, looked at when it is due: setting one
    for each read would cost as much as the read.
    """

    __slots__ = ("_bytes", "_content", "_loop", "_seconds", "_timer", "since_s")

    def __init__(self, content: aiohttp.StreamReader, seconds: float | None) -> None:
        self._content = content
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._bytes = 0
        self.since_s: float | None = None
        """When the read under way began; None between two reads, when no time runs."""

    def begin(self) -> None:
        """A read begins; whoever ends it sets `since_s` to None."""
        if self._seconds is not None:
            self.since_s = self._loop.time()
            self._bytes = self._content.total_bytes
            if self._timer is None:
                self._timer = self._loop.call_at(self.since_s + self._seconds, self._due)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        if self.since_s is None or self._seconds is None:
            return
        due_s = self.since_s + self._seconds
        if self._loop.time() < due_s:
            self._timer = self._loop.call_at(due_s, self._due)
        elif (
            self._content.total_bytes == self._bytes
        ):  # else it is there, and the reader just has not run yet
            self._content.set_exception(TimeoutError())


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


def _texts(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Without those that aiohttp writes itself: the body is at hand whole, and its length is what counts."""
    kept = [header for header in headers if header[0].lower() not in _FRAMING]
    try:
        return [(name.decode(), value.decode()) for name, value in kept]
    except UnicodeDecodeError:
        return [(_text(name), _text(value)) for name, value in kept]


def _text(raw: bytes) -> str:
    """Aiohttp writes headers as UTF-8. Other bytes keep their letters, as latin-1 has them."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


async def _whole(request: httpx.Request) -> bytes:
    """The body; httpx's own `aread` asks `typing` what kind of stream it is, which takes longer than reading it."""
    if isinstance(request.stream, httpx.ByteStream):
        return b"".join(request.stream)
    return await request.aread()


def _unconnected(error: aiohttp.ClientConnectorError) -> str:
    """In words for people: aiohttp's own speak of TLS where there is none."""
    cause = getattr(error, "os_error", None)  # a certificate's error has none
    number, reason = getattr(cause, "errno", None), getattr(cause, "reason", None)
    if reason == "WRONG_VERSION_NUMBER":
        reason = "it does not speak TLS; http:// instead of https://?"
    elif reason is None and isinstance(number, int) and number in errno.errorcode:
        reason = os.strerror(number)
    host = f"[{error.host}]" if ":" in error.host else error.host
    return f"cannot connect to {host}:{error.port}: {reason or getattr(cause, 'strerror', None) or error}"


def _in_httpx_words(error: BaseException, request: httpx.Request) -> httpx.TransportError:
    """So that nobody above knows which client is below. `error` is one of `FAILURES`."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return httpx.ConnectTimeout(str(error), request=request)
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout("the engine was silent for too long", request=request)
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx.ConnectError(_unconnected(error), request=request)
    if isinstance(error, aiohttp.InvalidURL):
        return httpx.UnsupportedProtocol(str(error), request=request)
    if isinstance(
        error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | aiohttp.ClientResponseError
    ):
        return httpx.RemoteProtocolError(str(error), request=request)
    return httpx.ReadError(str(error), request=request)
