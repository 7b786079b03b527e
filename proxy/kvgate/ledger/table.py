"""What one process waits for and holds in a shared ledger: its own truth, from which Redis is told.

Redis keeps sums per process, no reservations. Which request holds what is known here only; a heartbeat carries
the sums of this table, and whatever went wrong in between is put right by them. So every change is made here
first and told to Redis after it.

Each `reserve` gets an id of its own on the wire, made of the request's id and a number. A request that queues
again, or whose earlier grant is still on its way, can so never be mistaken for its former self.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvgate.ledger.base import Ask, Grant, Refusal
from kvgate.ledger.scripts import Sums
from kvgate_policies.types import ZERO_COST, EngineLimits, KVCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvgate.ledger.scripts import Granted

DOUBTFUL_MAX = 4096
"""Withdrawals to be repeated: more than a process can have queued when Redis goes away."""
DOUBTFUL_TIMES = 4
"""How often each is sent: what was written to a connection that broke can still be carried out after it."""


class OwnTicket:
    """A place in the queue of a shared ledger. It holds the decision, as `MemoryTicket` does."""

    def __init__(self, table: Table, request_id: str, seq: int) -> None:
        self._table = table
        self._request_id = request_id
        self._decision: Grant | Refusal | None = None
        self._decided = asyncio.Event()
        self.seq = seq
        """Until Redis has answered, a guess."""

    @property
    def request_id(self) -> str:
        return self._request_id

    @property
    def position(self) -> int:
        """How many are ahead; where other processes queue too, an estimate from this process's own."""
        return 0 if self._decided.is_set() else self._table.position(self.seq)

    @property
    def decision(self) -> Grant | Refusal | None:
        return self._decision

    async def granted(self) -> Grant | Refusal:
        """As `MemoryTicket.granted`: raises RuntimeError when the owner has ended the request."""
        await self._decided.wait()
        if self._decision is None:
            raise RuntimeError(f"request {self._request_id} was ended by its owner")
        return self._decision

    def decide(self, decision: Grant | Refusal | None) -> None:
        self._decision = decision
        self._decided.set()

    def __repr__(self) -> str:
        state = "ended" if self._decided.is_set() else "waiting"
        return f"<OwnTicket {self._request_id} seq {self.seq}: {self._decision or state}>"


@dataclass(slots=True, eq=False)
class Entry:
    """One request of this process that waits or holds."""

    request_id: str
    ask: Ask
    """As it goes out: under its wire id."""
    ticket: OwnTicket
    number: int
    """Order of arrival in this process."""
    placed: bool = False
    """`ticket.seq` is a place that Redis gave; else it is a guess."""
    asked_s: float | None = None
    """When Redis was asked for it last; since then it may have it in its queue."""
    unsure: bool = False
    """A call for it failed: Redis may have it, or get it late."""
    repriced: bool = False
    """The prices changed while Redis could not be told."""
    grant: Grant | None = None
    counted: KVCost | None = None
    """What is in Redis's sums for it; None while Redis does not know of the grant."""

    @property
    def wire(self) -> str:
        return self.ask.request_id

    @property
    def place(self) -> tuple[int, int]:
        """Sorts as the queue does."""
        return self.ticket.seq, self.number

    def again(self) -> Ask:
        """The ask to send when it may be there already: at its place, and it was counted at the door."""
        return replace(
            self.ask, seq=self.ticket.seq if self.placed else self.ask.seq, queue_depth_max=1 << 40
        )


@dataclass(slots=True)
class Table:
    """The requests of one process. Not safe for threads; nothing here waits."""

    ack: int = 0
    """Grants up to this `gseq` were read, or are none of ours any more."""
    rel: int = 0
    """Counts what was taken out of the sums by a call of its own."""
    limits: dict[str, EngineLimits] = field(default_factory=dict[str, EngineLimits])
    """The engines that this process knows."""
    forgotten: set[str] = field(default_factory=set[str])
    """Those it knew, and Redis was not told yet that it does no more."""
    queued_everywhere: int = 0
    """The length of the shared queue when last seen."""
    _doubtful: dict[str, int] = field(default_factory=dict[str, int])
    """Wire ids that do not wait here and that Redis may still queue, or queue late; how often to withdraw each."""
    _entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    _by_wire: dict[str, Entry] = field(default_factory=dict[str, Entry])
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _seq_seen: int = -1

    def add(self, ask: Ask) -> Entry:
        """Enter a request that waits. Raises ValueError for one that is here already, or a negative cost."""
        if ask.request_id in self._entries:
            raise ValueError(f"request {ask.request_id} is queued or holds a reservation already")
        check_costs(ask.costs.values())
        number = next(self._numbers)
        seq = self._seq_seen + 1 if ask.seq is None else ask.seq
        self.saw(seq)
        ticket = OwnTicket(self, ask.request_id, seq)
        wired = replace(ask, request_id=f"{ask.request_id}~{number}")
        entry = Entry(ask.request_id, wired, ticket, number, placed=ask.seq is not None)
        self._entries[ask.request_id] = self._by_wire[wired.request_id] = entry
        return entry

    def get(self, request_id: str) -> Entry | None:
        return self._entries.get(request_id)

    def by_wire(self, wire: str) -> Entry | None:
        return self._by_wire.get(wire)

    def read(self, granted: Granted) -> bool:
        """A grant of this process was read; False for one that a heartbeat has given back already."""
        is_new = granted.gseq > self.ack
        self.ack = max(self.ack, granted.gseq)
        self.saw(granted.seq)
        return is_new

    def saw(self, seq: int) -> None:
        """Guesses for new places go on from the highest seen."""
        self._seq_seen = max(self._seq_seen, seq)

    def placed(self, entry: Entry, seq: int) -> None:
        entry.ticket.seq, entry.placed = seq, True
        self.saw(seq)

    def hold(self, entry: Entry, grant: Grant, counted: KVCost | None) -> None:
        """It waits no longer: announce its grant. `counted` as in `Entry`."""
        entry.grant, entry.counted = grant, counted
        entry.ticket.decide(grant)

    def drop(self, entry: Entry, decision: Refusal | None = None) -> None:
        """It is over; a `decision` is for one whose wait ends by a refusal."""
        del self._entries[entry.request_id]
        del self._by_wire[entry.wire]
        entry.ticket.decide(decision)
        if entry.unsure and entry.grant is None:
            self.doubt(entry.wire)

    def doubt(self, wire: str) -> None:
        """Redis may have this in its queue although it does not wait here."""
        if len(self._doubtful) < DOUBTFUL_MAX:
            self._doubtful[wire] = DOUBTFUL_TIMES

    def take_doubtful(self) -> list[str]:
        """To be withdrawn now; each is given out `DOUBTFUL_TIMES` times."""
        wires = list(self._doubtful)
        self._doubtful = {wire: times - 1 for wire, times in self._doubtful.items() if times > 1}
        return wires

    def waiting(self) -> list[Entry]:
        """In the order of the queue."""
        waiting = [entry for entry in self._entries.values() if entry.grant is None]
        waiting.sort(key=lambda entry: entry.place)
        return waiting

    def held(self, engine_id: str | None = None) -> list[Entry]:
        """Those that hold a reservation, on any engine or on one."""
        return [
            entry
            for entry in self._entries.values()
            if entry.grant is not None and engine_id in {None, entry.grant.engine_id}
        ]

    def strike(self, engine_id: str) -> None:
        """What is held there is void; the later releases of it find nothing."""
        for entry in self.held(engine_id):
            self.drop(entry)

    def claim(self) -> dict[str, Sums]:
        """The sums for a heartbeat that leaves now; what they contain is counted from here on."""
        sums: dict[str, Sums] = {}
        for entry in self._entries.values():
            grant = entry.grant
            if grant is not None:
                entry.counted = grant.cost
                before = sums.get(grant.engine_id, _NOTHING)
                sums[grant.engine_id] = Sums(before.cost + grant.cost, before.reservations + 1)
        return sums

    def next_rel(self) -> int:
        self.rel += 1
        return self.rel

    def position(self, seq: int) -> int:
        """Own requests ahead, scaled to the whole queue where other processes queue in it too."""
        own = [entry.ticket.seq for entry in self._entries.values() if entry.grant is None]
        ahead = sum(1 for other in own if other < seq)
        return ahead if self.queued_everywhere <= len(own) else ahead * self.queued_everywhere // len(own)

    def __repr__(self) -> str:
        held = len(self.held())
        return f"<Table {len(self._entries) - held} waiting, {held} held>"


_NOTHING = Sums(ZERO_COST, 0)


def check_costs(costs: Iterable[KVCost]) -> None:
    """Raises ValueError for a negative part."""
    for cost in costs:
        if min(cost.blocks, cost.seqs, cost.prefill_tokens) < 0:
            raise ValueError(f"a cost has no negative part: {cost}")
