"""The ASGI response that is the request's scope: who leaves through any door leaves nothing behind.

A task waits for `http.disconnect` from the first byte on, queued or streaming, JSON or SSE: the server's `send`
after a disconnect is a silent no-op, so without it a dead client would hold its place, its blocks and the
engine's time. The client's leaving cancels the line; the line gives back what it holds, shielded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import anyio

from kvgate.admission import Answer, Ended, Header, said
from kvgate.api.answers import render
from kvgate.api.dialects import terminal_event
from kvgate.api.headers import response_headers
from kvgate.api.routes import Dialect
from kvgate.clock import Clock
from kvgate.sse import SSEMeter
from kvgate.telemetry.record import RequestRecord
from kvgate_policies.types import Outcome

LAST_WORD_S_MAX = 1.0
"""For the last word to a client when this process ends; one that does not read does not get it."""

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Serve = Callable[["ASGIReply"], Awaitable[Ended]]


class ASGIReply:
    """A `Reply` on ASGI's `send`."""

    def __init__(self, send: Send, request_id: str, record: RequestRecord) -> None:
        self._send = send
        self._request_id = request_id
        self._record = record
        self._started = False
        self._finished = False

    @property
    def started(self) -> bool:
        return self._started

    async def start(self, status: int, headers: Sequence[Header], facts: Sequence[Header]) -> None:
        own = [(b"x-request-id", self._request_id.encode()), *facts]
        await self.start_own(status, [*response_headers(headers), *own])

    async def start_own(self, status: int, headers: Sequence[Header]) -> None:
        """Send a status line with exactly these headers."""
        self._started = True
        self._record.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def send(self, chunk: bytes) -> None:
        self._record.bytes_out += len(chunk)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, last: bytes = b"") -> None:
        if not self._finished:
            self._finished = True
            self._record.bytes_out += len(last)
            await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def whole(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """A complete answer of our own in one go."""
        await self.start_own(status, [*headers, (b"content-length", str(len(body)).encode())])
        self._finished = True
        self._record.bytes_out += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


class Relay:
    """One request on its way: runs `serve` until it ends or the client leaves, and says what is left to say."""

    def __init__(self, serve: Serve, dialect: Dialect, record: RequestRecord, clock: Clock) -> None:
        self._serve = serve
        self._dialect = dialect
        self._record = record
        self._clock = clock
        self._line = anyio.CancelScope()
        self._broken_off = False

    def break_off(self) -> None:
        """End it now, for this process ends: the client is told, in place of what it would have got."""
        self._broken_off = True
        self._line.cancel()

    async def __call__(self, receive: Receive, send: Send, arrived_s: float) -> None:
        """Raises nothing but foreign cancellation; the record has its outcome in every case."""
        reply = ASGIReply(send, self._record.request_id, self._record)
        self._record.outcome = Outcome.CLIENT_GONE
        try:
            with self._line as line:
                # A plain task: a task group costs five times as much here, for every request.
                watching = asyncio.create_task(_watch(receive, line))
                try:
                    ended = await self._served(reply)
                    self._record.outcome = ended.outcome
                    if ended.answer is not None:
                        await self._say(ended.answer, ended.meter, reply)
                finally:
                    watching.cancel()
            if line.cancelled_caught and self._broken_off:
                await self._say_last(reply)
        finally:
            self._record.total_s = self._clock.monotonic() - arrived_s

    async def _say_last(self, reply: ASGIReply) -> None:
        self._record.outcome = Outcome.EVICTED_DRAINING
        with anyio.move_on_after(LAST_WORD_S_MAX):
            await self._say(said.broken_off(), None, reply)

    async def _served(self, reply: ASGIReply) -> Ended:
        """A bug of ours is an answer like any other, and never another client's trouble."""
        try:
            return await self._serve(reply)
        except Exception:
            log.exception("request %s failed", self._record.request_id)
            return Ended(Outcome.INTERNAL_ERROR, said.internal_error())

    async def _say(self, answer: Answer, meter: SSEMeter | None, reply: ASGIReply) -> None:
        self._record.reason, self._record.told = answer.reason.value, answer.message
        if reply.started:
            await self._say_in_stream(answer, meter, reply)
            return
        status, headers, body = render(answer, self._dialect, self._record.request_id)
        await reply.whole(status, headers, body)

    async def _say_in_stream(self, answer: Answer, meter: SSEMeter | None, reply: ASGIReply) -> None:
        """After the status line: one terminal event if it is a stream; a cut JSON body is left without its end.

        The server closes the connection of an unfinished body, so that nobody takes the half for the whole.
        """
        if self._record.stream:
            await reply.send(self._last_event(answer, meter))
            await reply.finish()

    def _last_event(self, answer: Answer, meter: SSEMeter | None) -> bytes:
        request_id, now_s = self._record.request_id, int(time.time())
        if meter is None:
            return terminal_event(self._dialect, answer, request_id, created_s=now_s)
        return terminal_event(
            self._dialect,
            answer,
            request_id,
            at_boundary=meter.at_boundary,
            created_s=now_s,
            response_id=meter.response_id,
            model=meter.response_model,
            sequence_number=meter.sequence_number,
        )


async def _watch(receive: Receive, line: anyio.CancelScope) -> None:
    """Cancel the line when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    line.cancel()


__all__ = ["ASGIReply", "Relay", "Serve"]
