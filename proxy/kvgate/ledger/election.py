"""Which of the processes that share a ledger does something that one of them is enough for. Pure.

Rendezvous hashing over ranks: every process finds the same answer for itself, without a word to the others, the
things are spread over all of them, and when one comes or goes most things stay where they are. (Thaler and
Ravishankar, "Using name-based mappings to increase hit rates", 1998.)
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

REMEMBERED_MAX = 4096
"""Answers kept: a backend is asked for several times a second, and the processes change once a day."""


@lru_cache(REMEMBERED_MAX)
def rank_of(thing: str, processes: int) -> int:
    """The rank, from 0, of the one of `processes` that a thing falls to. Raises ValueError when there is none."""
    return max(range(processes), key=lambda rank: _weight(thing, rank))


def _weight(thing: str, rank: int) -> bytes:
    return blake2b(f"{rank} {thing}".encode(), digest_size=8).digest()
