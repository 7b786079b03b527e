"""How a decision made in Redis reaches the request that waits for it here.

Grants and late refusals of a pool are pushed to one stream. A process reads it over one connection that blocks
in the server, from the last entry it has seen: what was pushed while the connection was broken is read after it.
The keeper also reads the stream at every fourth heartbeat over the other connection (`catch_up`), so that a
connection that is dead without saying so delays a grant by a second at most. Both feed the same place in the same
order, and an entry is delivered once.

Entries can be missed in two ways, and both are noticed: the stream was trimmed before this process came to read
(it keeps some 8,000), or a failover went back to an older copy whose entries begin again below the last one
seen. The first calls `on_gap`, the second is looked for after a reconnect; after both the owner asks again for
all that waits.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from kvgate.ledger.connect import BLOCK_S, TROUBLE
from kvgate.ledger.scripts import Granted, Refused, read_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvgate.ledger.connect import Client

COUNT_MAX = 256
"""Entries in one read: about 10 ms of this process's time."""
CATCH_UP_READS_MAX = 64
"""Reads in one `catch_up`: twice what the stream keeps."""
RETRY_S = 0.1
"""Before the connection is opened again: a grant that waits for it is found by a heartbeat anyway."""

EntryId = tuple[int, int]
BEGINNING: EntryId = (0, 0)

log = logging.getLogger(__name__)


class Wakeups:
    """Reads the stream of a pool for one process. `deliver` gets what is for it, in order, and must not wait."""

    def __init__(
        self,
        stream: str,
        pid: str,
        *,
        reading: Client,
        calls: Client,
        deliver: Callable[[Granted | Refused], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._pid = pid
        self._pid_bytes = pid.encode()
        self._reading = reading
        self._calls = calls
        self._deliver = deliver
        self._on_gap = on_gap
        self.last: EntryId = BEGINNING
        """Of the last entry seen."""
        self._started = asyncio.Event()

    def start_at(self, now_ms: int) -> None:
        """From this time of the server on: in this epoch nothing older can be for this process."""
        self.last = (max(now_ms - 1, 0), 0)
        self._started.set()

    async def run(self) -> None:
        """Read until cancelled, once there is a place to start at."""
        await self._started.wait()
        while True:
            try:
                await self._read(self._reading, block_ms=int(BLOCK_S * 1000))
            except TROUBLE as error:
                log.debug("reading the stream failed: %s", error)
                await asyncio.sleep(RETRY_S)

    async def catch_up(self) -> None:
        """Deliver what is in the stream by now. Raises what is in `TROUBLE`."""
        if not self._started.is_set():
            return
        for _ in range(CATCH_UP_READS_MAX):
            if not await self._read(self._calls, block_ms=None):
                return

    async def check_order(self) -> None:
        """After a reconnect: is this the stream that was read before? Raises what is in `TROUBLE`."""
        newest, oldest_kept = await self._ends()
        if newest < self.last:
            log.info("the stream of grants went back from %s to %s: read anew", self.last, newest)
            self.last = BEGINNING
        elif oldest_kept > self.last:
            log.warning("entries of the stream of grants were dropped before they were read")

    async def _ends(self) -> tuple[EntryId, EntryId]:
        """The newest entry there ever was, and the oldest that is left; `BEGINNING` where none was dropped."""
        try:
            info: Any = await self._calls.xinfo_stream(self._stream)
        except ResponseError as error:
            if "no such key" in str(error):
                return BEGINNING, BEGINNING
            raise
        is_whole = info["entries-added"] == info["length"] or info["first-entry"] is None
        oldest_kept = BEGINNING if is_whole else _entry_id(info["first-entry"][0])
        return _entry_id(info["last-generated-id"]), oldest_kept

    async def _read(self, client: Client, *, block_ms: int | None) -> bool:
        """One read; whether there may be more at once. Only who is that far behind can have missed anything."""
        before = self.last
        since = f"{before[0]}-{before[1]}"
        answer: Any = await client.xread({self._stream: since}, count=COUNT_MAX, block=block_ms)
        entries = answer[0][1] if answer else ()
        for entry_id, fields in entries:
            self._take(_entry_id(entry_id), fields)
        is_behind = len(entries) >= COUNT_MAX
        if is_behind and (await self._ends())[1] > before:
            self._on_gap()
        return is_behind

    def _take(self, entry_id: EntryId, fields: dict[bytes, bytes]) -> None:
        """Once per entry, whichever connection brings it first."""
        if entry_id <= self.last:
            return
        self.last = entry_id
        if fields.get(b"pid") != self._pid_bytes:
            return
        try:
            entry = read_entry(fields)
        except (KeyError, ValueError):
            log.exception("an entry of the stream of grants can't be read: %s", fields)
            return
        self._deliver(entry)

    def __repr__(self) -> str:
        return f"<Wakeups of {self._pid} at {self.last}>"


def _entry_id(text: bytes | str) -> EntryId:
    milliseconds, _, number = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(milliseconds), int(number)
