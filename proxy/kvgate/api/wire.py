"""The server side of HTTP/1.1: uvicorn's protocol, with a bound on everything that a client can make grow.

What it promises beyond uvicorn's:
* A head has to be complete in `HEAD_S_MAX`, and head and trailers stay within `HEAD_BYTES_MAX`.
* A client's leaving is seen whatever it sent before. uvicorn stops reading while a pipelined request waits,
  and then nobody would notice that the client of the running one has gone.
* An `Upgrade` is ignored and its request served, body included (RFC 9110, section 7.8). uvicorn drops the body,
  and reads it as the next request where it comes in a packet of its own. Java's client asks for h2c each time.
* A client that takes none of its answer for `STALL_S_MAX` is gone. Its reservation would be held for as long.
* Trailers are dropped: merged into the headers they would pass by whoever checks those (RFC 9110, 6.5.1).
* After `Expect: 100-continue` the connection closes: what follows a refusal might be the body or not.
* What can't be read is answered in the words of all other refusals, and never into the middle of an answer.
* Above `connections_max` a new connection is closed at once, so that the engines' ones find a file.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from kvgate.admission import Answer, Reason
from kvgate.api.answers import render
from kvgate.api.headers import clean_request_id
from kvgate.api.routes import Dialect

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

HEAD_S_MAX = 30.0
"""From the first byte of a request to the end of its headers. They fit into one packet or two; thirty seconds
is a client on the worst of networks, or one that holds the connection on purpose."""
HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers. Servers take from 8 KiB (Apache) to 1 MiB (Go); no SDK sends more than a few."""
HEADERS_MAX = 256
"""Each costs time here and in the engine."""
AHEAD_BYTES_MAX = 1024 * 1024
"""Read while an answer is being written, for the request after it."""
AHEAD_S_MAX = 5.0
"""How long more than that may wait. A client with all of its answer may send before we know that it has it, for
milliseconds; longer is one that pipelines, whose leaving can't be seen while we don't read."""
STALL_S_MAX = 60.0
"""How long a client may leave an answer unread. The kernels on both sides and this process hold some hundred
kilobytes for it by then, more than most answers have."""
WARNING_EACH_S = 10.0
"""The log says this often that connections are too many."""
UPGRADING = frozenset({b"upgrade", b"http2-settings"})

log = logging.getLogger(__name__)


class _TooLargeError(Exception):
    """Headers above the bounds."""


class Wire(HttpToolsProtocol):
    """One connection of a client."""

    connections_max = 1 << 20
    warned_s = -math.inf
    """When it was last said that they are too many, by the loop's clock. Both are set by `bounded`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._running: RequestResponseCycle | None = None
        """The request that the application is at; uvicorn's `cycle` is the last one that was read."""
        self._ahead = bytearray()
        """Came while an answer was being written; not parsed yet."""
        self._in_head = False
        self._moved = False
        """Whether the bytes being fed brought the parser a part of a request, not only more of a head."""
        self._unmoving_bytes = 0
        self._feeding_bytes = 0
        self._upgrading = False
        self._deaf = False
        """Nothing more is read: after what is running, the connection closes."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._ahead_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._one_too_many()
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _one_too_many(self) -> None:
        own, now = type(self), self.loop.time()
        if now - own.warned_s >= WARNING_EACH_S:
            own.warned_s = now
            log.warning("more than %d connections of clients: new ones are closed", self.connections_max)
        self._deaf = True
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = True
        self._disarm()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._unset_keepalive_if_required()
        self._ahead.clear()
        self.pipeline.clear()
        running = self._running
        super().connection_lost(exc)
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._answering():
            self._keep(data)
            return
        self._feed(data)
        if self._answering():
            self.flow.resume_reading()  # paused for what was pipelined, and so blind to the client's leaving
        elif self._in_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S_MAX, self._head_too_slow)

    def _answering(self) -> bool:
        """A request was read whole, and its answer is not complete."""
        running = self._running
        return running is not None and not running.response_complete and not running.more_body

    def _keep(self, data: bytes) -> None:
        self._ahead += data
        if len(self._ahead) > AHEAD_BYTES_MAX:
            self.flow.pause_reading()
            if self._ahead_timer is None:
                self._ahead_timer = self.loop.call_later(AHEAD_S_MAX, self.transport.abort)

    def _feed_kept(self) -> None:
        if self._ahead and not (self._deaf or self.transport.is_closing() or self._answering()):
            data = bytes(self._ahead)
            self._ahead.clear()
            self.data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None and not self.transport.is_closing():
            self._stall_timer.cancel()
            self._stall_timer = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_reading()

    def _expect_reading(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_S_MAX, self.transport.abort)

    # Parsing

    def _feed(self, data: bytes) -> None:
        self._moved = False
        self._feeding_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._serve_without_upgrade(data[int(upgrade.args[0]) :])
            return
        except httptools.HttpParserError as error:
            self._unreadable(isinstance(error.__context__, _TooLargeError))
            return
        self._unmoving_bytes = 0 if self._moved else self._unmoving_bytes + len(data)
        if self._unmoving_bytes > HEAD_BYTES_MAX:
            self._unreadable(too_large=True)

    def _serve_without_upgrade(self, rest: bytes) -> None:
        """Read the request once more as if the client had not asked for another protocol."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._unreadable()
            return
        head = [b"%s %s HTTP/%s\r\n" % (method, self.url, version)]
        head += [b"%s: %s\r\n" % header for header in _without_upgrade(self.headers)]
        self._upgrading = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"".join([*head, b"\r\n", rest]))

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.headers) > HEADERS_MAX:
            raise _TooLargeError
        if (
            self._unmoving_bytes + self._feeding_bytes > HEAD_BYTES_MAX
            and self._head_bytes() > HEAD_BYTES_MAX
        ):
            raise _TooLargeError
        self._in_head, self._moved = False, True
        self._unset_keepalive_if_required()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self.parser.should_upgrade():
            self._upgrading = True
            return
        super().on_headers_complete()
        self.headers = []  # for trailers, which nobody reads
        if self.expect_100_continue:  # whether a body follows a refusal, only the client knows
            self.cycle.keep_alive = False

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._moved = True
        if not self._upgrading:
            super().on_message_complete()

    # Serving

    def _should_upgrade(self) -> bool:
        return False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._ahead_timer is not None:
            self._ahead_timer.cancel()
            self._ahead_timer = None
        if self.transport.is_closing():
            self._expect_reading()
        elif self._ahead:
            self.loop.call_soon(self._feed_kept)

    # Refusing

    def _head_too_slow(self) -> None:
        answer = Answer(
            Reason.BAD_REQUEST,
            f"The headers were not complete {HEAD_S_MAX:g} s after the first byte.",
            status=408,
        )
        self._refuse(answer)

    def _unreadable(self, too_large: bool = False) -> None:
        if too_large:
            message = f"The headers are larger than {HEAD_BYTES_MAX} bytes, or more than {HEADERS_MAX}."
            self._refuse(Answer(Reason.BAD_REQUEST, message, status=431))
        else:
            self._refuse(Answer(Reason.BAD_REQUEST, "This is not an HTTP/1.1 request that can be read."))

    def _refuse(self, answer: Answer) -> None:
        """Answer and close; but where a request before it is not answered yet, only that one is, and then closed."""
        self._deaf = True
        self._disarm()
        self.pipeline.clear()
        if self._answering():
            cast("RequestResponseCycle", self._running).keep_alive = False
            return
        running = self._running
        if running is None or running.response_complete or not running.response_started:
            status, headers, body = render(answer, Dialect.OPENAI, clean_request_id(None))
            headers += [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
            head = b"".join(
                b"%s: %s\r\n" % header for header in [*self.server_state.default_headers, *headers]
            )
            self.transport.write(b"".join((STATUS_LINE[status], head, b"\r\n", body)))
        self.transport.close()
        self._expect_reading()

    def _disarm(self) -> None:
        for timer in (self._head_timer, self._ahead_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._ahead_timer = None


def bounded(connections: int) -> type[Wire]:
    """The protocol for a server that keeps at most so many connections."""
    return type("Wire", (Wire,), {"connections_max": connections, "warned_s": -math.inf})


def _without_upgrade(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers less those of the upgrade, in `Connection` too."""
    kept: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            kept.append((name, b", ".join(o for o in options if o.lower() not in UPGRADING)))
        elif name not in UPGRADING:
            kept.append((name, value))
    return kept


__all__ = ["AHEAD_BYTES_MAX", "AHEAD_S_MAX", "HEADERS_MAX", "HEAD_BYTES_MAX", "HEAD_S_MAX", "Wire", "bounded"]
