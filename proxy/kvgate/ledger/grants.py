"""The grant loop: who starts now, and where?

It decides without waiting: it changes book, queue and turns and returns the grants it made. One call walks the
flows in the order of the `Turns`, looking at the order anew after each grant. Of the flow that is due, the first
entry that was not passed in this walk is looked at:

1. An entry that fits an engine (`kvgate_policies.placement`), at a price within its tenant's limit and within what is
   open to its tenant beside the hard partitions of others, is granted there, and its flow is charged.
2. An entry that no accepting engine could hold even when empty is *parked*: it waits for an engine. Others
   that go on meanwhile do not pass it, since it could not have started in their place.
3. An entry that no accepting engine could hold within its tenant's limit is *at its limit*. If it is the head of its
   flow, the flow is suspended until another entry is its head, the tenant's use falls, or rules or engines change;
   otherwise the flow is done for this walk. It is not passed, and lets go of a pin.
4. Any other entry is *passed*. A flow is done after `scan_depth` passed ones, or when all were; those that have an
   engine pinned do not count, so that pins never hide the rest (there are no more pins than engines). The walk ends
   after `FLOWS_MAX` flows are done; those of which all that was passed has a pin do not count either.
5. Each grant counts one bypass on every entry passed before it. One that reached `bypass_max` is *entitled*, and so is
   one whose tenant's use, with what is kept free for those of its entries that were passed before in this walk, is
   below its guarantee. An entitled one pins the engine that will fit it soonest, and nothing else starts there before
   it. It still takes another engine that fits it first. One that is no longer entitled lets go.
6. An entitled entry that finds no free engine to pin takes over the pin of one behind it in the walk. If there is
   none, every engine that could ever hold it is pinned by an earlier entry, so nobody behind starts there either.
7. Where there are hard partitions, the blocks of a passed entitled entry (its largest price within the limit) are
   kept free in the open part too: nobody behind it who takes of that part may take them.
8. A pin ends with its request's grant or leaving, or when the engine is gone, does not accept, or has become
   too small. An entry that is out of the walk's reach, behind others that came before it, lets go too
   and pins again when its turn is back, as otherwise both could wait for each other.
9. Whenever a pin came, went or changed hands, or a tenant below its guarantee had a grant (so that others of its
   entries may be entitled no longer), the walk starts again: somebody passed earlier may fit now, or the walk reaches
   further. This ends, since between two grants the order of the walk stands and pins only move towards its head.

So an entry is overtaken at most `bypass_max` times before an engine is kept for it, and after that never on
that engine.

One call makes at most `grants_max` grants and sets aside (parks, suspends) at most `SET_ASIDE_MAX` times; then it
says `unfinished`, and whoever runs it calls again soon.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.ledger.base import Grant, Refusal
from kvgate.ledger.queue import Entry, Queue
from kvgate.ledger.walk import Costs, Seen, Walk, could_use, is_at_least, up_to
from kvgate_policies.fairness import FLOWS_MAX, charge
from kvgate_policies.placement import least_loaded, pin, place
from kvgate_policies.types import EngineUse

if TYPE_CHECKING:
    from typing import Literal

    from kvgate.ledger.book import Book
    from kvgate.ledger.tenants import Tenants
    from kvgate.ledger.turns import FlowKey, Turns

SET_ASIDE_MAX = 256
"""Entries parked and flows suspended in one call: a few µs each, so that a call stays short when a large engine
leaves or the limits of many tenants fall."""


class GrantLoop:
    """Runs the rules above over book, queue, turns and tenants.

    Raises ValueError for a bound that would stop it: `bypass_max` below 0, the others below 1.
    """

    def __init__(
        self,
        book: Book,
        queue: Queue,
        turns: Turns,
        tenants: Tenants,
        *,
        bypass_max: int,
        scan_depth: int,
        grants_max: int,
        tie: int,
    ) -> None:
        if bypass_max < 0 or scan_depth < 1 or grants_max < 1:
            raise ValueError("bypass_max must be 0 or more, scan_depth and grants_max 1 or more")
        self._book = book
        self._queue = queue
        self._turns = turns
        self._tenants = tenants
        self._bypass_max = bypass_max
        self._scan_depth = scan_depth
        self._grants_max = grants_max
        self._tie = tie
        self._grants: list[Grant] = []
        self._set_aside = 0
        self.unfinished = False
        """The last call stopped at its bounds; there may be more to grant."""
        self.bypasses = 0
        self.pins = 0

    def run(self) -> list[Grant]:
        """Grant whatever may start now, in order, within the bounds of one call."""
        self._grants, self._set_aside = [], 0
        while self._walk():
            pass
        self._turns.moved = False
        return self._grants

    def reaches(self, entry: Entry) -> bool:
        """Whether a walk could look at the entry: if not, its coming or leaving changes nothing."""
        if entry.parked or self._queue.index(entry) >= self._scan_depth + self._book.pins:
            return False
        flows_ahead = self._turns.ahead(entry.flow)
        return flows_ahead is not None and flows_ahead < FLOWS_MAX + self._book.pins

    def could_start(self, entry: Entry, costs: Costs | None = None) -> bool:
        """Whether some accepting engine would hold the entry once it is empty, at these prices or its own."""
        accepting = self._book.accepting
        if costs is None:
            if entry.startable_on is accepting:
                return True
            could = self.could_start(entry, entry.costs)
            entry.startable_on = accepting if could else None
            return could
        if not entry.avoid:
            return accepting.cover(costs)
        return any(could_use(entry, costs, use) for use in self._book.uses())

    def start(self, entry: Entry, forced: Literal["queued"] | Refusal) -> Grant | None:
        """Start an entry that is not queued whatever is reserved; None when no engine with a price accepts work.

        On the engine that is least loaded after it; an avoided one only if there is no other.
        """
        uses = self._book.uses()
        engine_id = least_loaded(entry.costs, uses, entry.avoid, self._tie, entry.z)
        engine_id = engine_id or least_loaded(entry.costs, uses, frozenset(), self._tie, entry.z)
        use = None if engine_id is None else self._book.use(engine_id)
        if use is None:
            return None
        return self._hold(entry, use, forced)

    def _walk(self) -> bool:
        """One walk in the order of the flows; True when there is reason for another."""
        walk = Walk()
        self.unfinished = False
        while walk.flows < FLOWS_MAX:
            flow = self._turns.first(walk.done)
            if flow is None:
                break
            self._visit(flow, walk)
            if self.unfinished:
                return False
        self._let_go_unseen(walk)
        return walk.again

    def _visit(self, flow: FlowKey, walk: Walk) -> None:
        """Look at the entries of the flow that is due, as long as it is: until a grant, or until it is done."""
        seen = walk.seen.get(flow)
        if seen is None:
            seen = walk.seen[flow] = Seen()
        left = self._tenants.left(flow[1])
        while seen.unpinned < self._scan_depth:
            entry = self._queue.active(flow, seen.passed)
            if entry is None:
                break
            if self._spent:
                self.unfinished = True
                return
            costs = entry.costs if left is None else up_to(entry.costs, left)
            if self._grant(entry, costs, walk):
                return
            if self._park(entry, walk):
                continue
            if costs is not entry.costs and not self.could_start(entry, costs):
                self._stop_at_limit(entry, seen, walk)
                return
            self._pass(entry, costs, seen, walk)
        walk.finish(flow, seen)

    @property
    def _spent(self) -> bool:
        return len(self._grants) >= self._grants_max or self._set_aside >= SET_ASIDE_MAX

    def _within_limit(self, entry: Entry) -> Costs:
        """Its prices that do not take its tenant above its limit."""
        left = self._tenants.left(entry.tenant)
        return entry.costs if left is None else up_to(entry.costs, left)

    def _grant(self, entry: Entry, costs: Costs, walk: Walk) -> bool:
        if self._tenants.has_partitions:
            costs = up_to(costs, self._tenants.left_open(entry.tenant, sum(walk.kept.values())))
        use = self._place(entry, costs, walk)
        if use is None:
            return False
        walk.again |= self._tenants.lacks(entry.tenant, 0)
        self._turns.grant(entry.flow, charge(entry.work, self._tenants.weight(entry.tenant)))
        self._queue.remove(entry)
        self._unpin(entry.request_id, walk)
        self._grants.append(self._hold(entry, use, None))
        self._count_bypasses(walk)
        return True

    def _hold(self, entry: Entry, use: EngineUse, forced: Literal["queued"] | Refusal | None) -> Grant:
        shape = use.limits.shape
        grant = Grant(
            entry.request_id,
            use.limits.engine_id,
            shape,
            entry.costs[shape],
            entry.seq,
            entry.tenant,
            entry.priority,
            entry.work,
            entry.tokens,
            entry.rank,
            forced,
        )
        self._book.hold(grant)
        self._tenants.serve(entry.tenant, entry.work)
        self._tie += 1
        return grant

    def _place(self, entry: Entry, costs: Costs, walk: Walk) -> EngineUse | None:
        """As `place` on all engines, without the looks that are known to be in vain."""
        if self._is_misfit(entry, walk):
            return None
        uses = self._book.freed_since(entry.misfit_at)
        engine_id = place(costs, uses, entry.request_id, entry.avoid, self._tie, entry.z, entry.prefer)
        if engine_id is not None:
            return self._book.use(engine_id)
        if costs is entry.costs:
            entry.misfit_at = self._book.stamp
            if not entry.avoid:
                walk.misfits.append((costs, entry.z))
        return None

    def _is_misfit(self, entry: Entry, walk: Walk) -> bool:
        """Whether it costs as much as one that fitted nowhere in this walk, and has no engine of its own."""
        if self._book.pins and self._book.pinned_to(entry.request_id) is not None:
            return False
        for misfit in walk.misfits:  # noqa: SIM110 — without a generator, in the innermost loop
            if is_at_least(entry.costs, entry.z, misfit):
                return True
        return False

    def _park(self, entry: Entry, walk: Walk) -> bool:
        if self.could_start(entry):
            return False
        self._queue.park(entry)
        self._unpin(entry.request_id, walk)
        self._set_aside += 1
        return True

    def _stop_at_limit(self, entry: Entry, seen: Seen, walk: Walk) -> None:
        self._unpin(entry.request_id, walk)
        if seen.passed:
            walk.finish(entry.flow, seen)
        else:
            self._turns.suspend(entry.flow)
            self._set_aside += 1

    def _pass(self, entry: Entry, costs: Costs, seen: Seen, walk: Walk) -> None:
        walk.passed.append(entry)
        seen.passed += 1
        self._keep_free(entry, costs, walk)
        if not self._book.pins or self._book.pinned_to(entry.request_id) is None:
            seen.unpinned += 1

    def _keep_free(self, entry: Entry, costs: Costs, walk: Walk) -> None:
        """Pin an engine for an entry that is entitled, and let go of the pin of one that is not (rule 5)."""
        claimed = walk.claimed.get(entry.tenant, 0)
        is_below = self._tenants.lacks(entry.tenant, claimed)
        if entry.bypasses < self._bypass_max and not is_below:
            self._unpin(entry.request_id, walk)
            return
        self._pin(entry, costs, walk)
        engine_id = self._book.pinned_to(entry.request_id)
        use = None if engine_id is None else self._book.use(engine_id)
        if is_below and use is not None:
            walk.claimed[entry.tenant] = claimed + costs[use.limits.shape].use_blocks

    def _unpin(self, request_id: str, walk: Walk) -> None:
        if self._book.pins and self._book.unpin(request_id):
            walk.again = True
            walk.misfits.clear()

    def _count_bypasses(self, walk: Walk) -> None:
        for entry in walk.passed:
            if entry.bypasses < self._bypass_max:
                entry.bypasses += 1
                self.bypasses += 1
            if entry.bypasses >= self._bypass_max:
                self._pin(entry, self._within_limit(entry), walk)

    def _pin(self, entry: Entry, costs: Costs, walk: Walk) -> None:
        """Keep an engine, and of the open part what it costs, free for an entitled entry (rules 5 to 8)."""
        if self._tenants.has_partitions and self._tenants.shares_open_part(entry.tenant):
            walk.kept[entry.request_id] = max((cost.use_blocks for cost in costs.values()), default=0)
        if self._keeps_pin(entry, costs):
            return
        self._unpin(entry.request_id, walk)
        uses = self._book.uses()
        engine_id = pin(costs, uses, entry.avoid, entry.z)
        if engine_id is None:
            engine_id = pin(costs, self._pinned_behind(entry, uses, walk), entry.avoid, entry.z)
        if engine_id is not None:
            self._book.pin(engine_id, entry.request_id)
            self.pins += 1
            walk.again = True

    def _keeps_pin(self, entry: Entry, costs: Costs) -> bool:
        engine_id = self._book.pinned_to(entry.request_id)
        use = None if engine_id is None else self._book.use(engine_id)
        return use is not None and could_use(entry, costs, use)

    def _pinned_behind(self, entry: Entry, uses: tuple[EngineUse, ...], walk: Walk) -> list[EngineUse]:
        """The engines pinned by entries behind this one in the walk, as if they were not."""
        before: set[str] = set()
        for other in walk.passed:
            if other is entry:
                break
            before.add(other.request_id)
        return [
            replace(use, pinned_by=None)
            for use in uses
            if use.pinned_by is not None and use.pinned_by not in before
        ]

    def _let_go_unseen(self, walk: Walk) -> None:
        if self._book.pins:
            seen = {entry.request_id for entry in walk.passed}
            for request_id in self._book.pinners():
                if request_id not in seen:
                    self._unpin(request_id, walk)
