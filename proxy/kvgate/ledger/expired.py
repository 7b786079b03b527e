"""Which processes are to be taken for gone, found out without changing anything.

Every script first does what is due (it takes a process for gone, goes on where a call stopped), so none is asked
here: leases and the names of slots are read as they are, between two calls of the processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.ledger.keys import NAMES, keys_of

if TYPE_CHECKING:
    from kvgate.ledger.connect import Client

LISTED_MAX = 1000
"""Processes in one answer; the others are found when these are gone."""
_SEPARATOR = "\1"
"""Between process, engine and tenant in the name of a slot (`lua/prelude.lua`)."""


async def expired(client: Client, pool: str) -> dict[str, list[str]]:
    """Processes whose lease ran out, each with the engines on which it holds something.

    Raises what is in `connect.TROUBLE`.
    """
    key = dict(zip(NAMES, keys_of(pool), strict=True))
    seconds, microseconds = await _time(client)
    now_ms = seconds * 1000 + microseconds // 1000
    pids: Any = await client.zrangebyscore(key["leases"], "-inf", now_ms, start=0, num=LISTED_MAX)
    holds: dict[str, list[str]] = {pid.decode(): [] for pid in pids}
    async for field, _ in client.hscan_iter(key["slots"], count=1000):
        pid, engine_id, _ = field.decode().split(_SEPARATOR, 2)
        if pid in holds and engine_id not in holds[pid]:
            holds[pid].append(engine_id)
    return holds


async def _time(client: Client) -> tuple[int, int]:
    """The server's; a cluster's client answers by node."""
    answer: Any = await client.time()
    seconds, microseconds = next(iter(answer.values())) if isinstance(answer, dict) else answer
    return int(seconds), int(microseconds)
