"""One HTTP request and its answer, in raw ASGI: bounded body, JSON, event stream, and the client's leaving.

A break is a real one: the socket is closed with a reset (`SO_LINGER` 0), as when a server process dies.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

TRANSPORT = "kvgate.sim.transport"
"""The scope extension under which the server's protocol gives its transport."""
BODY_BYTES_MAX = 64 * 1024 * 1024
"""Twice what the proxy lets through: the simulator must not be the one that refuses."""


class ClientLeftError(Exception):
    """The client hung up while it was still sending."""


class BodyTooLargeError(Exception):
    """The body exceeds `BODY_BYTES_MAX`."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._transport: asyncio.Transport | None = scope.get("extensions", {}).get(TRANSPORT)
        self._receive = receive
        self._send = send

    async def body(self) -> bytes:
        """Raises `ClientLeftError` and `BodyTooLargeError`."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > BODY_BYTES_MAX:
                raise BodyTooLargeError
            if not message.get("more_body"):
                return b"".join(parts)

    async def answer(
        self, status: int, body: bytes, content_type: str = "application/json", **headers: str
    ) -> None:
        pairs = [(b"content-length", b"%d" % len(body))]
        if body:
            pairs.append((b"content-type", content_type.encode()))
        pairs += [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": body})

    async def answer_json(self, status: int, payload: Any, **headers: str) -> None:
        await self.answer(status, compact(payload).encode("utf-8", "replace"), **headers)

    async def start_stream(self) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data})

    async def break_off(self) -> None:
        """Reset the connection, whatever was sent before."""
        transport = self._transport
        if transport is None:
            raise RuntimeError("this server gives no access to its transport: nothing to break")
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
        await self._until_gone()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    @asynccontextmanager
    async def on_leaving(self, then: Callable[[], None]) -> AsyncGenerator[None]:
        """Call `then` when the client hangs up inside. Only after the body was read."""

        async def watch() -> None:
            await self._until_gone()
            then()

        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()


def compact(payload: Any) -> str:
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
