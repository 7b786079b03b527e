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
from kvgate.ledger.door import check_ask
from kvgate.ledger.scripts import Sums
from kvgate.ledger.wire import least_of, sum_of
from kvgate_policies.types import ZERO_COST, EngineLimits, KVCost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvgate.ledger.scripts import Granted, Place

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
        """How many are ahead in its flow; where other processes queue too, an estimate from this process's own."""
        return 0 if self._decided.is_set() else self._table.position(self._request_id)

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
    rank: int = 0
    """Its place in its flow before `seq`, once Redis gave it."""
    since_s: float = 0.0
    """When it came."""
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
    """What is in Redis's sums for it, if all went well; None while Redis was not told of the grant."""
    known: KVCost | None = None
    """What Redis surely has in its sums for it: of a grant that it gave, or a heartbeat that it took."""

    @property
    def wire(self) -> str:
        return self.ask.request_id

    @property
    def flow(self) -> tuple[str, str]:
        return self.ask.priority, self.ask.tenant

    @property
    def place(self) -> tuple[int, int]:
        """Sorts as the arrivals do."""
        return self.ticket.seq, self.number

    def give_back(self, left: KVCost | None) -> None:
        """Redis is told, or may not be, that no more than `left` is held."""
        if self.known is not None and left is not None and self.known is not left:
            self.known = least_of(self.known, left)

    def granted(self, granted: Granted) -> Grant:
        """The grant that was read for it."""
        ask = self.ask
        return Grant(
            self.request_id,
            granted.engine_id,
            granted.shape,
            granted.cost,
            granted.seq,
            ask.tenant,
            ask.priority,
            ask.work,
            ask.tokens,
            granted.rank,
            granted.forced,
        )

    def again(self, now_s: float = 0.0) -> Ask:
        """The ask to send when it may be there already: at its place, or with what is left of its time."""
        if self.placed:
            return replace(self.ask, seq=self.ticket.seq, rank=self.rank)
        if self.ask.rank_in_ms is None:
            return self.ask
        waited_ms = round(1000 * (now_s - self.since_s))
        return replace(self.ask, rank_in_ms=max(self.ask.rank_in_ms - waited_ms, 0))


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
    queued_everywhere: Mapping[str, int] = field(default_factory=dict[str, int])
    """By tenant, how many waited in all processes when last seen."""
    redis_ahead_s: float = 0.0
    """By how much the clock of Redis is ahead of this process's own, when last heard."""
    _doubtful: dict[str, int] = field(default_factory=dict[str, int])
    """Wire ids that do not wait here and that Redis may still queue, or queue late; how often to withdraw each."""
    _untold: dict[str, KVCost] = field(default_factory=dict[str, KVCost])
    """By engine, of those that ended here since the last claim was taken without Redis's being told."""
    _claimed: dict[Entry, KVCost] = field(default_factory=dict[Entry, KVCost])
    """What the last claim had of each; empty once it was taken."""
    _entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    _by_wire: dict[str, Entry] = field(default_factory=dict[str, Entry])
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _seq_seen: int = -1

    def add(self, ask: Ask, now_s: float = 0.0) -> Entry:
        """Enter a request that waits. Raises ValueError for one that is here already, or a negative cost or charge."""
        check_ask(ask, is_known=ask.request_id in self._entries)
        number = next(self._numbers)
        seq = self._seq_seen + 1 if ask.seq is None else ask.seq
        self.saw(seq)
        ticket = OwnTicket(self, ask.request_id, seq)
        wired = replace(ask, request_id=f"{ask.request_id}~{number}")
        entry = Entry(ask.request_id, wired, ticket, number, ask.rank, now_s, placed=ask.seq is not None)
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

    def placed(self, entry: Entry, place: Place) -> None:
        entry.ticket.seq, entry.rank, entry.placed = place.seq, place.rank, True
        self.saw(place.seq)

    def hold(self, entry: Entry, grant: Grant, counted: KVCost | None) -> None:
        """It waits no longer: announce its grant. `counted` as in `Entry`."""
        entry.grant, entry.counted, entry.known = grant, counted, counted
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
        """In the order in which they came."""
        waiting = [entry for entry in self._entries.values() if entry.grant is None]
        waiting.sort(key=lambda entry: entry.place)
        return waiting

    def depth(self, tenant: str) -> int:
        """How many of a tenant wait here."""
        return sum(entry.grant is None and entry.ask.tenant == tenant for entry in self._entries.values())

    def rank(self, entry: Entry) -> int:
        """Its rank by the clock of Redis: what Redis gave, or would have given when it came."""
        if entry.placed or entry.ask.rank_in_ms is None:
            return entry.rank
        return int(1000 * (entry.since_s + self.redis_ahead_s)) + entry.ask.rank_in_ms

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
        self._untold.pop(engine_id, None)

    def claim(self) -> dict[tuple[str, str], Sums]:
        """The sums by engine and tenant for a heartbeat that leaves now; what they contain is counted from here on."""
        for entry, cost in self._claimed.items():
            entry.give_back(cost)  # that claim may have been taken or not
        self._claimed = {}
        held: dict[tuple[str, str], list[KVCost]] = {}
        for entry in self._entries.values():
            grant = entry.grant
            if grant is not None:
                entry.counted = self._claimed[entry] = grant.cost
                held.setdefault((grant.engine_id, grant.tenant), []).append(grant.cost)
        return {key: _sums(costs) for key, costs in held.items()}

    def claim_taken(self) -> None:
        """The heartbeat with the last claim was taken."""
        for entry, cost in self._claimed.items():
            entry.known = cost
            entry.give_back(entry.counted)  # what was given back since
        self._claimed = {}
        self._untold.clear()

    def known(self) -> dict[str, KVCost]:
        """What Redis surely counts for this process on each engine; of a claim that may be on its way or lost, and of
        what was counted before, the less.
        """
        sums = dict(self._untold)
        for entry in self._entries.values():
            self._add_known(sums, entry)
        return sums

    def ended_untold(self, entry: Entry) -> None:
        """It left the table, and nobody tries to tell Redis."""
        self._add_known(self._untold, entry)

    def _add_known(self, sums: dict[str, KVCost], entry: Entry) -> None:
        if entry.grant is None or entry.known is None:
            return
        claimed = self._claimed.get(entry, entry.known)
        engine_id = entry.grant.engine_id
        sums[engine_id] = sums.get(engine_id, ZERO_COST) + least_of(entry.known, claimed)

    def next_rel(self) -> int:
        self.rel += 1
        return self.rel

    def position(self, request_id: str) -> int:
        """Own requests ahead in its flow, scaled to all of its tenant's where other processes queue them too."""
        entry = self._entries[request_id]
        own = [other for other in self._entries.values() if other.grant is None]
        place = entry.rank, entry.place
        ahead = sum(other.flow == entry.flow and (other.rank, other.place) < place for other in own)
        tenant = entry.ask.tenant
        of_tenant = sum(other.ask.tenant == tenant for other in own)
        everywhere = max(self.queued_everywhere.get(tenant, 0), of_tenant)
        return ahead * everywhere // of_tenant

    def __repr__(self) -> str:
        held = len(self.held())
        return f"<Table {len(self._entries) - held} waiting, {held} held>"


def _sums(costs: list[KVCost]) -> Sums:
    cost = sum_of(costs)
    used = sum(each.use_blocks for each in costs)
    return Sums(cost, len(costs), None if used == cost.blocks else used)
