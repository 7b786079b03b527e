"""The yardstick: a proxy that passes everything on and decides nothing, of the same parts as kvgate.

The same server with the same options, the same transport with the same timeouts, a task that watches for the
client's leaving, and the headers of the connection left out. So whatever kvgate costs above this is what
admission costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, cast

import httpx
import uvicorn
import uvloop
from relay_children import end_with_parent, say_ready

from kvgate.engines.transport import AiohttpTransport

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OF_THE_CONNECTION = {b"host", b"content-length", b"connection", b"transfer-encoding", b"date", b"server"}


class Bare:
    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._transport = AiohttpTransport()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        serving = asyncio.current_task()
        watching = asyncio.create_task(_watch(receive, cast("asyncio.Task[None]", serving)))
        with contextlib.suppress(asyncio.CancelledError):
            await self._pass_on(scope, body, send)
        watching.cancel()

    async def _pass_on(self, scope: dict[str, Any], body: bytes, send: Send) -> None:
        request = httpx.Request(
            scope["method"],
            self._upstream + scope["raw_path"].decode(),
            headers=_passed(scope["headers"]),
            content=body,
            extensions={"timeout": {"connect": 2.0, "read": 120.0, "write": None, "pool": None}},
        )
        response = await self._transport.handle_async_request(request)
        try:
            headers = _passed(response.headers.raw, b"content-length")
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            async for chunk in cast("AsyncIterator[bytes]", response.stream):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await response.aclose()


def _passed(headers: list[tuple[bytes, bytes]], *keep: bytes) -> list[tuple[bytes, bytes]]:
    named = [(name.lower(), value) for name, value in headers]
    return [(name, value) for name, value in named if name in keep or name not in OF_THE_CONNECTION]


async def _watch(receive: Receive, serving: asyncio.Task[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    serving.cancel()


async def _serve(upstream: str) -> None:
    config = uvicorn.Config(
        Bare(upstream),  # type: ignore[arg-type]
        port=0,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        backlog=2048,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    say_ready(f"http://127.0.0.1:{port}")
    await serving


if __name__ == "__main__":
    end_with_parent()
    uvloop.run(_serve(sys.argv[1]))
