"""Reading a request body: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from enum import Enum, auto
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class NoBody(Enum):
    """Why there is no body."""

    TOO_LARGE = auto()
    TOO_SLOW = auto()
    CLIENT_GONE = auto()
    DRAINING = auto()
    """This process ends, and does not wait for the rest of it."""


class Bodies:
    """Reads request bodies, until told that no more are wanted."""

    def __init__(self) -> None:
        self._bounds: set[asyncio.Timeout] = set()
        self._given_up = False

    async def read(
        self, receive: Receive, headers: Iterable[tuple[bytes, bytes]], bytes_max: int, wait_s: float
    ) -> bytes | NoBody:
        """As `read_body`; `NoBody.DRAINING` for one that is not complete when `give_up` is called."""
        bound = asyncio.timeout(None)
        try:
            async with bound:
                self._bounds.add(bound)
                if self._given_up:
                    bound.reschedule(0.0)
                return await read_body(receive, headers, bytes_max, wait_s)
        except TimeoutError:
            return NoBody.DRAINING
        finally:
            self._bounds.discard(bound)

    def give_up(self) -> None:
        """Wait for no client any more: one that stopped in the middle would hold up the end of the process."""
        self._given_up = True
        for bound in self._bounds:
            bound.reschedule(0.0)


async def read_body(
    receive: Receive, headers: Iterable[tuple[bytes, bytes]], bytes_max: int, wait_s: float
) -> bytes | NoBody:
    """The whole body, or why not.

    A body that is too large is still read, and thrown away, up to twice the bound: most clients look for an
    answer only when they have sent everything, and would see a broken connection instead of a 413. Those that
    ask first whether they shall send it (`Expect: 100-continue`) are told not to.
    """
    try:
        async with asyncio.timeout(wait_s):
            if declared_length(headers) > bytes_max:
                return NoBody.TOO_LARGE if _asks_first(headers) else await _discard(receive, bytes_max)
            return await _read(receive, bytes_max)
    except TimeoutError:
        return NoBody.TOO_SLOW


def declared_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """`content-length`, 0 when there is none; the server has checked that it is a number."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def _asks_first(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


async def _read(receive: Receive, bytes_max: int) -> bytes | NoBody:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return NoBody.CLIENT_GONE
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            chunks.clear()
            return await _discard(receive, bytes_max) if message.get("more_body") else NoBody.TOO_LARGE
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks) if len(chunks) > 1 else chunks[0]


async def _discard(receive: Receive, bytes_max: int) -> NoBody:
    size = 0
    while size <= bytes_max:
        message = await receive()
        if message["type"] == "http.disconnect":
            return NoBody.CLIENT_GONE
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return NoBody.TOO_LARGE
