"""What was learned, together with all processes that share a pool's ledger in Redis.

Two hashes under the pool's hash tag, with a field for each process: what it counted itself, as absolute numbers, and a
short sign of life with the version of that. Every `EXCHANGE_S` a process states what changed and reads what others
changed; stating or reading twice, or missing one, does no harm.

What a process has counted outlives it. Its last statement stays; whoever removes it from the hash, which only one can,
counts it as its own from then on. One that ends in good order says so, and is taken over at once, by the others or by
whoever starts next; one that fell silent, after `SILENT_S`. Should it come back after all, some answers count twice
until they fade.

Trouble with Redis is said once, and disturbs nobody: meanwhile each process learns alone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from kvgate.forecasting.keeping import Statements, statements_of, text_of
from kvgate.ledger.connect import TROUBLE, Connection
from kvgate.ledger.keys import keys_of

if TYPE_CHECKING:
    from kvgate.clock import Clock
    from kvgate_policies.forecast import Lengths

EXCHANGE_S = 2.0
"""A curve needs dozens of answers to move: what others saw may be two seconds old."""
SIGN_EVERY_S = 10.0
"""Between two signs of life of a process that has nothing to say."""
SILENT_S = 60.0
"""Then it is gone: six signs were missed. Its statement counted all the while, so nothing is lost by waiting."""
KEPT_S = 7 * 86400
"""How long the statements stay where nobody is left to read them: over a week-end without traffic."""
END_S_MAX = 1.0
"""For the last statement; without it, the one before stays."""
PROCESSES_MAX = 256
"""Whose statements are read: more don't share a pool."""
GONE = b"gone"
FORM = "lengths2"
"""In the names of the keys, with the number of what a statement looks like: processes of versions that write another
form share among themselves, in the same Redis, and neither misreads nor removes what the others say.
"""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Other:
    """Another process, as far as it is known here."""

    sign: bytes = b""
    since_s: float = 0.0
    """When that sign was first seen."""
    version: bytes = b""
    """Of what is in `statements`."""
    statements: Statements = field(default_factory=dict)


class Shared:
    """Implements `Keeping` in the Redis of a shared ledger, over a connection of its own."""

    def __init__(self, url: str, pool: str, clock: Clock, every_s: float = EXCHANGE_S) -> None:
        """Raises ConfigError for a URL that can't be used."""
        self.pid = secrets.token_hex(8)
        self._connection = Connection(url)
        self._calls: Any = self._connection.calls
        tag = keys_of(pool)[0].rpartition(":")[0]
        self._stated_key, self._signs_key = f"{tag}:{FORM}", f"{tag}:{FORM}_signs"
        self._clock = clock
        self._every_s = every_s
        self._others: dict[bytes, _Other] = {}
        self._marks: dict[str, int] = {}
        """Of what was stated last."""
        self._stated: Statements = {}
        self._version = 0
        self._signs = 0
        self._signed_s = float("-inf")
        self._news = False
        self._complained = False

    @asynccontextmanager
    async def serving(self, lengths: Lengths) -> AsyncGenerator[None]:
        await self._try(lengths)
        exchanges = asyncio.create_task(self._exchange_for_ever(lengths))
        try:
            yield
        finally:
            exchanges.cancel()
            with anyio.move_on_after(END_S_MAX, shield=True):
                await asyncio.gather(exchanges, return_exceptions=True)
                await self._try(lengths, last=True)
            with anyio.move_on_after(END_S_MAX, shield=True):
                await self._connection.aclose()

    async def _exchange_for_ever(self, lengths: Lengths) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._try(lengths)

    async def _try(self, lengths: Lengths, *, last: bool = False) -> None:
        try:
            await self._state(lengths, last=last)
            if not last:
                await self._listen(lengths)
        except TROUBLE as error:
            self._complain("lengths of answers are not shared at present: %r", error)
        except Exception:
            log.exception("sharing the lengths of answers failed")
        else:
            self._complained = False

    def _complain(self, text: str, *what: object) -> None:
        if not self._complained:
            self._complained = True
            log.warning(text, *what)

    # Saying

    async def _state(self, lengths: Lengths, *, last: bool) -> None:
        """State what changed; a sign of life now and then."""
        marks, now_s = lengths.marks(), self._clock.monotonic()
        changed = [name for name, mark in marks.items() if self._marks.get(name) != mark]
        if not changed and not last and now_s - self._signed_s < SIGN_EVERY_S:
            return
        if changed:
            self._news = self._news or not self._marks.keys() >= marks.keys()
            await self._write(lengths, changed, marks)
        self._signs += 1
        sign = GONE if last else b"%d" % self._signs
        await self._calls.hset(self._signs_key, self.pid, b"%s:%d" % (sign, self._version))
        await self._calls.pexpire(self._signs_key, 1000 * KEPT_S)
        self._signed_s = now_s

    async def _write(self, lengths: Lengths, changed: list[str], marks: dict[str, int]) -> None:
        kept = {name: numbers for name, numbers in self._stated.items() if name in marks}
        stated = kept | lengths.statements(changed)
        await self._calls.hset(self._stated_key, self.pid, text_of(stated))
        await self._calls.pexpire(self._stated_key, 1000 * KEPT_S)
        self._version += 1
        self._stated, self._marks = stated, marks

    # Hearing

    async def _listen(self, lengths: Lengths) -> None:
        now_s = self._clock.monotonic()
        self._note(await self._calls.hgetall(self._signs_key), now_s)
        await self._read(
            [pid for pid, other in self._others.items() if _version(other.sign) != other.version]
        )
        for pid in [pid for pid, other in self._others.items() if _is_gone(other, now_s)]:
            await self._take_over(pid, lengths)
        if self._news:
            self._news = False
            lengths.hear(other.statements for other in self._others.values())

    def _note(self, signs: dict[bytes, bytes], now_s: float) -> None:
        mine = self.pid.encode()
        for pid, sign in list(signs.items())[:PROCESSES_MAX]:
            if pid == mine:
                continue
            other = self._others.setdefault(pid, _Other(since_s=now_s))
            if other.sign != sign:
                other.sign, other.since_s = sign, now_s
        for pid in [pid for pid in self._others if pid not in signs]:
            del self._others[pid]  # somebody took it over, and states it now
            self._news = True

    async def _read(self, pids: list[bytes]) -> None:
        if not pids:
            return
        texts = await self._calls.hmget(self._stated_key, pids)
        for pid, text in zip(pids, texts, strict=True):
            other = self._others[pid]
            other.version = _version(other.sign)
            other.statements = self._understood(pid, text)
            self._news = True

    def _understood(self, pid: bytes, text: bytes | None) -> Statements:
        try:
            return {} if text is None else statements_of(text)
        except ValueError as error:
            log.warning(
                "what process %s states of lengths can't be read: %s", pid.decode(errors="replace"), error
            )
            return {}

    async def _take_over(self, pid: bytes, lengths: Lengths) -> None:
        """Whoever removes the statement has it."""
        removed = await self._calls.hdel(self._stated_key, pid)
        await self._calls.hdel(self._signs_key, pid)
        gone = self._others.pop(pid)
        self._news = True
        if removed:
            lengths.adopt(gone.statements)


def _version(sign: bytes) -> bytes:
    return sign.rpartition(b":")[2]


def _is_gone(other: _Other, now_s: float) -> bool:
    return other.sign.startswith(GONE) or now_s - other.since_s > SILENT_S
