"""The public keys that tokens are signed with: read once, kept, and read again beside the requests.

Requests wait for a reading in two cases only, and never longer than `FETCH_S_MAX`: nothing was read yet, or a
token names a key that is not there, as after a rotation. Both start at most one reading each `RETRY_S`,
whatever clients send. A reading that fails leaves the keys as they are, for `STALE_S_MAX` at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import jwt
import msgspec

from kvgate.clock import Clock

REFRESH_S = 300.0
"""Providers announce a key long before they sign with it, and keep the old one for hours."""
RETRY_S = 10.0
"""Between two readings: enough for a provider that restarts, too few to be a load for it."""
FETCH_S_MAX = 5.0
"""For one reading; a provider that is well answers in a tenth of it."""
STALE_S_MAX = 24 * 3600.0
"""Keys that could not be read again for so long are not believed any more: one of them may have been revoked."""
SET_BYTES_MAX = 256 * 1024
"""A key takes half a kilobyte, or three with its certificates."""
KEYS_MAX = 64
"""Of a set; providers show two to six."""
KINDS = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("EdDSA",)}
"""Public keys, with the algorithms they can be for, by their beginnings. A symmetric key in a public set, or a
public one taken for a shared secret, would let everyone sign."""

log = logging.getLogger(__name__)


class KeysUnavailable(Exception):
    """No keys are known to check a token with, through no fault of the client's."""


class KeySet:
    """The key set of one file or URL."""

    def __init__(self, source: Path | str, clock: Clock) -> None:
        self.source = source
        self._clock = clock
        self._read: Callable[[], Awaitable[bytes]] = (
            anyio.Path(source).read_bytes if isinstance(source, Path) else self._fetch
        )
        self._keys: dict[str | None, dict[str, Any]] = {}
        self._made: dict[tuple[str | None, str], jwt.PyJWK] = {}
        self._read_s = -math.inf
        self._tried_s = -math.inf
        self._reading: asyncio.Task[None] | None = None
        self._trusted: ssl.SSLContext | None = None

    async def key(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key of that name for that algorithm; without a name, the only one there is. None if there is none.

        Raises KeysUnavailable.
        """
        now_s = self._clock.monotonic()
        if now_s - self._read_s > REFRESH_S:
            self._begin(now_s)
        if now_s - self._read_s > STALE_S_MAX or not self._has(key_id):
            await self._wait(now_s)
        if self._clock.monotonic() - self._read_s > STALE_S_MAX:
            raise KeysUnavailable
        return self._key(key_id, algorithm)

    def _has(self, key_id: str | None) -> bool:
        return key_id is None or key_id in self._keys

    def _key(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            (key_id,) = self._keys
        raw = self._keys.get(key_id)
        if raw is None or not _is_for(raw, algorithm):
            return None
        made = self._made.get((key_id, algorithm))
        if made is None:
            made = self._made[key_id, algorithm] = jwt.PyJWK(raw, algorithm)
        return made

    async def _wait(self, now_s: float) -> None:
        self._begin(now_s)
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def _begin(self, now_s: float) -> None:
        """Start a reading, if none runs and the last one is not too young."""
        if self._reading is None and now_s - self._tried_s >= RETRY_S:
            self._tried_s = now_s
            self._reading = asyncio.create_task(self._read_keys())

    async def _read_keys(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S_MAX):
                self._take(keys_of(await self._read()))
        except (OSError, TimeoutError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            log.warning("the key set %s can't be read: %r", self.source, error)
        finally:
            self._reading = None

    def _take(self, keys: dict[str | None, dict[str, Any]]) -> None:
        if keys != self._keys:
            self._keys, self._made = keys, {}
            log.info("the key set %s has %d keys", self.source, len(keys))
        self._read_s = self._clock.monotonic()

    async def _fetch(self) -> bytes:
        if self._trusted is None:  # in a thread: it takes as long as a token of every stream
            self._trusted = await anyio.to_thread.run_sync(httpx.create_ssl_context)
        async with (
            httpx.AsyncClient(timeout=FETCH_S_MAX, verify=self._trusted) as client,
            client.stream("GET", str(self.source)) as response,
        ):
            response.raise_for_status()
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > SET_BYTES_MAX:
                    raise ValueError(f"more than {SET_BYTES_MAX} bytes")
            return body


def keys_of(body: bytes) -> dict[str | None, dict[str, Any]]:
    """The signing keys of a set, by their names; one may be without. Raises ValueError for what is no set."""
    if len(body) > SET_BYTES_MAX:
        raise ValueError(f"more than {SET_BYTES_MAX} bytes")
    read = msgspec.json.decode(body, type=_Set).keys
    signing = [key for key in read if _is_signing(key)]
    if len(signing) > KEYS_MAX:
        raise ValueError(f"more than {KEYS_MAX} keys")
    return {key.get("kid"): key for key in signing}


def _is_signing(key: dict[str, Any]) -> bool:
    """Whether it is a key of a kind known here, for signatures, under a name that a token could have."""
    kind, name, use = key.get("kty"), key.get("kid"), key.get("use", "sig")
    return isinstance(kind, str) and kind in KINDS and isinstance(name, str | None) and use == "sig"


def _is_for(key: dict[str, Any], algorithm: str) -> bool:
    return algorithm.startswith(KINDS[key["kty"]]) and key.get("alg", algorithm) == algorithm


class _Set(msgspec.Struct):
    keys: list[dict[str, Any]]
