"""One snapshot a second for all who look, and the stream on which each gets it.

A snapshot is made when somebody wants one that is newer than a second, so nothing runs while nobody looks, and a
hundred pages cost what one does. Nothing is queued for a viewer: one that reads slowly misses snapshots, and gets
the newest when it is ready. A bounded number of viewers; a stream ends with its session, and with the process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
from starlette.responses import Response

from kvgate.console.problems import NO_STORE
from kvgate.console.snapshot import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from kvgate.clock import Clock
    from kvgate.console.look import View

EACH_S = 1.0
"""Between two snapshots: what people read, and what the engines are asked at."""
FRESH_S = 0.9
"""How old a snapshot may be that is sent once more; below `EACH_S`, so that each of one viewer's is a new one."""
VIEWERS_MAX = 32
"""Streams at once, in one process: each is a connection, and a snapshot of many tenants has some 100 kB."""
SILENT = b"event: silent\ndata: {}\n\n"
"""Sent when there is nothing new to tell, so that the connection is seen to live."""
RETRY = b"retry: 2000\n\n"
"""How long a browser waits before it connects again, in milliseconds."""

log = logging.getLogger(__name__)


class Snapshots:
    """The snapshot of this second, as JSON."""

    def __init__(self, view: View, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._made_s = float("-inf")
        self._last: bytes | None = None
        self._lock = anyio.Lock()

    async def now(self) -> bytes | None:
        """None when nobody can tell."""
        async with self._lock:
            if self._clock.monotonic() - self._made_s >= FRESH_S:
                self._last = await self._look()
                self._made_s = self._clock.monotonic()
            return self._last

    async def _look(self) -> bytes | None:
        try:
            snapshot = await self._view.look()
        except Exception:  # a page that shows nothing new is better than one that goes away
            log.exception("the console has no snapshot")
            return None
        return None if snapshot is None else encode(snapshot)


class Viewers:
    """All streams; `close` ends them."""

    def __init__(self, snapshots: Snapshots, viewers_max: int = VIEWERS_MAX) -> None:
        self._snapshots = snapshots
        self._viewers_max = viewers_max
        self._closed = anyio.Event()
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self._viewers_max

    def close(self) -> None:
        self._closed.set()

    async def feed(self, send: Send, is_over: Callable[[], bool]) -> None:
        """Send a snapshot each second until it is over."""
        await send({"type": "http.response.body", "body": RETRY, "more_body": True})
        while not (self._closed.is_set() or is_over()):
            snapshot = await self._snapshots.now()
            event = SILENT if snapshot is None else b"event: snapshot\ndata: " + snapshot + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
            with anyio.move_on_after(EACH_S):
                await self._closed.wait()


class EventStream(Response):
    """`text/event-stream` for one viewer; it ends when the client leaves, whether or not anything is sent."""

    media_type = "text/event-stream"

    def __init__(self, viewers: Viewers, is_over: Callable[[], bool]) -> None:
        super().__init__(headers={**NO_STORE, "x-accel-buffering": "no"})  # nginx in front would collect them
        del self.headers["content-length"]
        self._viewers = viewers
        self._is_over = is_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._viewers.count += 1
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                await self._viewers.feed(send, self._is_over)
                tasks.cancel_scope.cancel()
        finally:
            self._viewers.count -= 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
