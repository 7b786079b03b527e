"""The waiting requests, each in its flow.

A flow is one tenant's requests of one class; inside it the order is by `rank`, then by `seq`. Fresh arrivals by
arrival come at the end; a request that has to queue again comes back at its old place. Two sorted lists of places
hold the order of each flow: *active* entries, which some accepting engine could hold once it is empty, and *parked*
ones, which no accepting engine could: they wait for an engine and are no part of the walk, so that thousands of them
cost nothing and hold nobody up.

The queue tells the `Turns` of a flow that gets its first active entry or loses its last one, and of one that has
another entry at its head.

Costs: find by id O(1), place and position O(log n), insert and remove O(log n) plus one move of eight bytes
per entry behind it (about 2 µs with 10,000 waiting; a balanced tree costs more than that in Python). The
bound on the length is the caller's (`Ask.queue_depth_max`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvgate_policies.fairness import LEVELS
from kvgate_policies.forecast_fit import Z_DEFAULT, ZVector
from kvgate_policies.types import PriorityClass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvgate.ledger.ceilings import Ceilings
    from kvgate.ledger.turns import FlowKey, Turns
    from kvgate_policies.types import EngineShape, KVCost

Place = tuple[int, int]
"""Rank and seq."""


@dataclass(slots=True, eq=False)
class Entry:
    """One waiting request. `parked` is the queue's own; the rest belongs to whoever runs the grant loop."""

    request_id: str
    seq: int
    costs: Mapping[EngineShape, KVCost]
    avoid: frozenset[str]
    since_s: float
    """When it began to wait, by the ledger's clock."""
    tenant: str = "anonymous"
    priority: PriorityClass = PriorityClass.STANDARD
    rank: int = 0
    work: int = 1
    tokens: int = 0
    z: ZVector = Z_DEFAULT
    prefer: tuple[str, ...] = ()
    bypasses: int = 0
    """How many others were granted while this one stood before them in the walk and did not fit."""
    misfit_at: int = -1
    """It fitted nowhere when the book had this stamp: only engines with room made since need a look."""
    startable_on: Ceilings | None = None
    """The accepting engines, as they were when one of them could have held it."""
    parked: bool = False
    flow: FlowKey = field(init=False)
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        self.flow = LEVELS[self.priority], self.tenant
        self.place = self.rank, self.seq


@dataclass(slots=True, eq=False)
class _Lane:
    """The places of one flow."""

    active: list[Place] = field(default_factory=list[Place])
    parked: list[Place] = field(default_factory=list[Place])


class Queue:
    """Entries by id, by tenant and by place. Not safe for threads; nothing here waits."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._by_id: dict[str, Entry] = {}
        self._by_seq: dict[int, Entry] = {}
        self._by_tenant: dict[str, dict[str, Entry]] = {}
        self._lanes: dict[FlowKey, _Lane] = {}

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
        self._by_tenant.setdefault(entry.tenant, {})[entry.request_id] = entry
        self._insert(entry)

    def get(self, request_id: str) -> Entry | None:
        return self._by_id.get(request_id)

    def remove(self, entry: Entry) -> None:
        """Take out an entry that is in the queue."""
        del self._by_id[entry.request_id]
        del self._by_seq[entry.seq]
        of_tenant = self._by_tenant[entry.tenant]
        del of_tenant[entry.request_id]
        if not of_tenant:
            del self._by_tenant[entry.tenant]
        lane = self._discard(entry)
        if not (lane.active or lane.parked):
            del self._lanes[entry.flow]

    def active(self, flow: FlowKey, index: int) -> Entry | None:
        """The active entry of a flow at `index` (0 is the head), None behind the last."""
        places = self._lanes[flow].active
        return self._by_seq[places[index][1]] if index < len(places) else None

    def parked(self) -> list[Entry]:
        return [self._by_seq[seq] for lane in self._lanes.values() for _, seq in lane.parked]

    def park(self, entry: Entry) -> None:
        self._move(entry, parked=True)

    def unpark(self, entry: Entry) -> None:
        self._move(entry, parked=False)

    def index(self, entry: Entry) -> int:
        """How many entries of its flow stand before it in its own list."""
        return bisect_left(self._list_of(entry), entry.place)

    def ahead(self, request_id: str) -> int:
        """How many of its flow stand before the request, parked ones included; 0 for one that is not queued."""
        entry = self._by_id.get(request_id)
        if entry is None:
            return 0
        lane = self._lanes[entry.flow]
        return bisect_left(lane.active, entry.place) + bisect_left(lane.parked, entry.place)

    def oldest(self) -> Entry | None:
        """The entry that was added first among those still here."""
        return next(iter(self._by_id.values()), None)

    # tenants

    def tenants(self) -> Iterator[str]:
        """Those that have something here."""
        return iter(self._by_tenant)

    def depth(self, tenant: str) -> int:
        """How many of a tenant wait, of all classes, parked ones included."""
        return len(self._by_tenant.get(tenant, ()))

    def oldest_of(self, tenant: str) -> Entry | None:
        """As `oldest`, of one tenant."""
        return next(iter(self._by_tenant.get(tenant, {}).values()), None)

    def _insert(self, entry: Entry) -> None:
        places = self._list_of(entry)
        insort(places, entry.place)
        if entry.parked:
            return
        if len(places) == 1:
            self._turns.enter(entry.flow)
        elif places[0] == entry.place:
            self._turns.readmit(entry.flow)

    def _discard(self, entry: Entry) -> _Lane:
        lane = self._lanes[entry.flow]
        places = lane.parked if entry.parked else lane.active
        index = bisect_left(places, entry.place)
        del places[index]
        if not entry.parked and not places:
            self._turns.leave(entry.flow)
        elif not entry.parked and index == 0:
            self._turns.readmit(entry.flow)
        return lane

    def _move(self, entry: Entry, *, parked: bool) -> None:
        self._discard(entry)
        entry.parked = parked
        self._insert(entry)

    def _list_of(self, entry: Entry) -> list[Place]:
        lane = self._lanes.get(entry.flow)
        if lane is None:
            lane = self._lanes[entry.flow] = _Lane()
        return lane.parked if entry.parked else lane.active

    def __repr__(self) -> str:
        active = sum(len(lane.active) for lane in self._lanes.values())
        return f"<Queue {active} active, {len(self._by_id) - active} parked, {len(self._lanes)} flows>"
