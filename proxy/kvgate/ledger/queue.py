"""The waiting requests, in their order.

Order is by `seq`. Fresh arrivals come at the end; a request that has to queue again comes back at its old
place. Two sorted lists of numbers hold the order: *active* entries, which some accepting engine could hold
once it is empty, and *parked* ones, which no accepting engine could: they wait for an engine and are no part
of the walk, so that thousands of them cost nothing and hold nobody up.

Costs: find by id O(1), place and position O(log n), insert and remove O(log n) plus one move of eight bytes
per entry behind it (about 2 µs with 10,000 waiting; a balanced tree costs more than that in Python). The
bound on the length is the caller's (`Ask.queue_depth_max`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvgate_policies.types import EngineShape, KVCost


@dataclass(slots=True, eq=False)
class Entry:
    """One waiting request. `parked` is the queue's own; the rest belongs to whoever runs the grant loop."""

    request_id: str
    seq: int
    costs: Mapping[EngineShape, KVCost]
    avoid: frozenset[str]
    since_s: float
    """When it began to wait, by the ledger's clock."""
    bypasses: int = 0
    """How many later entries were granted while this one stood before them and did not fit."""
    misfit_at: int = -1
    """It fitted nowhere when the book had this stamp: only engines with room made since need a look."""
    parked: bool = False


class Queue:
    """Entries by id and by place. Not safe for threads; nothing here waits."""

    def __init__(self) -> None:
        self._by_id: dict[str, Entry] = {}
        self._by_seq: dict[int, Entry] = {}
        self._active: list[int] = []
        self._parked: list[int] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __iter__(self) -> Iterator[Entry]:
        """All entries, by the time they were added; the queue must not change meanwhile."""
        return iter(self._by_id.values())

    def add(self, entry: Entry) -> None:
        """Put an entry at its place. Raises ValueError when its id or its `seq` is taken."""
        if entry.request_id in self._by_id:
            raise ValueError(f"request {entry.request_id} is queued already")
        if entry.seq in self._by_seq:
            raise ValueError(f"seq {entry.seq} is taken by {self._by_seq[entry.seq].request_id}")
        self._by_id[entry.request_id] = entry
        self._by_seq[entry.seq] = entry
        insort(self._list_of(entry), entry.seq)

    def get(self, request_id: str) -> Entry | None:
        return self._by_id.get(request_id)

    def remove(self, entry: Entry) -> None:
        """Take out an entry that is in the queue."""
        del self._by_id[entry.request_id]
        del self._by_seq[entry.seq]
        _discard(self._list_of(entry), entry.seq)

    def active(self, index: int) -> Entry | None:
        """The active entry at `index` (0 is the head), None behind the last."""
        return self._by_seq[self._active[index]] if index < len(self._active) else None

    def parked(self) -> list[Entry]:
        return [self._by_seq[seq] for seq in self._parked]

    def park(self, entry: Entry) -> None:
        self._move(entry, parked=True)

    def unpark(self, entry: Entry) -> None:
        self._move(entry, parked=False)

    def index(self, entry: Entry) -> int:
        """How many entries stand before it in its own list."""
        return bisect_left(self._list_of(entry), entry.seq)

    def ahead(self, request_id: str) -> int:
        """How many stand before the request, parked ones included; 0 for one that is not queued."""
        entry = self._by_id.get(request_id)
        if entry is None:
            return 0
        return bisect_left(self._active, entry.seq) + bisect_left(self._parked, entry.seq)

    def oldest(self) -> Entry | None:
        """The entry that was added first among those still here."""
        return next(iter(self._by_id.values()), None)

    def _move(self, entry: Entry, *, parked: bool) -> None:
        _discard(self._list_of(entry), entry.seq)
        entry.parked = parked
        insort(self._list_of(entry), entry.seq)

    def _list_of(self, entry: Entry) -> list[int]:
        return self._parked if entry.parked else self._active

    def __repr__(self) -> str:
        return f"<Queue {len(self._active)} active, {len(self._parked)} parked>"


def _discard(seqs: list[int], seq: int) -> None:
    del seqs[bisect_left(seqs, seq)]
