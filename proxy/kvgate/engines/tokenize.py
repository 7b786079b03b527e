"""Counting one prompt by an engine's own `POST /tokenize`: exact, and not held up by a full queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from kvgate.tokens.base import TokenizeFailed, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvgate.engines.base import Target

TIMEOUT_S = 2.0
"""From the call to the count, the wait for a place included: 3 to 25 ms is usual."""
CONCURRENT_MAX = 16
"""At once, over all engines: each answer carries every token id, and an engine tokenizes in few threads."""


class Tokenizer:
    def __init__(
        self, http: Callable[[], httpx.AsyncClient], any_target: Callable[[], Target | None]
    ) -> None:
        self._http = http
        self._any_target = any_target
        self._places = asyncio.Semaphore(CONCURRENT_MAX)

    async def count(self, body: Mapping[str, object]) -> int:
        """Tokens of the prompt in `body`. Raises TokenizeFailed, within `TIMEOUT_S`."""
        return _count(*await self._answer(body))

    async def ids(self, body: Mapping[str, object]) -> bytes:
        """The token ids of the prompt, four bytes each. Raises as `count`."""
        return _ids(*await self._answer(body))

    async def _answer(self, body: Mapping[str, object]) -> tuple[Target, bytes]:
        target = self._any_target()
        if target is None:
            raise TokenizeFailed("no engine is up")
        try:
            async with asyncio.timeout(TIMEOUT_S), self._places:
                response = await self._ask(target, body)
        except TimeoutError as error:
            raise TokenizeFailed(f"{target.engine_id}: no count in {TIMEOUT_S:g} s") from error
        except httpx.TransportError as error:
            raise TokenizeFailed(f"{target.engine_id}: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise TokenizeFailed(f"{target.engine_id}: HTTP {response.status_code}")
        return target, response.content

    async def _ask(self, target: Target, body: Mapping[str, object]) -> httpx.Response:
        return await self._http().post(
            f"{target.url}/tokenize",
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json", "accept-encoding": "identity", **target.headers},
            timeout=None,
        )


class _Answer(msgspec.Struct):
    count: int


def _count(target: Target, answer: bytes) -> int:
    try:
        count: Any = msgspec.json.decode(answer, type=_Answer).count
    except msgspec.DecodeError as error:
        raise TokenizeFailed(f"{target.engine_id}: the answer has no count: {error}") from error
    if count < 0:
        raise TokenizeFailed(f"{target.engine_id}: a count of {count}")
    return int(count)


class _Ids(msgspec.Struct):
    tokens: list[int]


def _ids(target: Target, answer: bytes) -> bytes:
    try:
        return packed(msgspec.json.decode(answer, type=_Ids).tokens)
    except (msgspec.DecodeError, OverflowError) as error:
        raise TokenizeFailed(f"{target.engine_id}: the answer has no tokens: {error}") from error
