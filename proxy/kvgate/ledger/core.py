"""The memory ledger without its waiting: every call decides at once and leaves its answers in an outbox.

Nothing here knows of event loops, tasks or futures. Each public method leaves the ledger *settled* (nothing
that may start within the bounds of the grant loop is still waiting), or `unfinished` is true and `go_on`
continues.

What a `reserve` is answered, in this order:

1. the reason given to `close`, once closed;
2. `NEVER_FITS`, when it is priced for a known engine, accepting or not, and none of those covers it at a price
   within its tenant's limit;
3. `NO_ENGINE`, when no engine is known except those it avoids. One that does not accept work at the moment
   (busy, down, draining) is waited for; whether that is worth while is for the caller to judge, who knows why;
4. `RateSpent`, when a budget of its tenant does not cover it. One that queues again is not asked;
5. `QUEUE_FULL`, when its tenant's part of the queue was at its bound and the grant loop did not let it start at
   once. One that queues again is not refused for this.

A request that was taken is charged to the budgets then, and given back its tokens if it leaves the queue without a
grant. A request that no engine has a price for waits for `reprice`; its owner's deadline bounds that.

One that is *forced* is refused for 1 and 3 only. For 2 and 4 it starts at once, without a turn; so it does when the
grant loop did not let it start, as `QUEUE_FULL` or as `"queued"`. What starts without a turn is not charged to its
flow, and one that would have been refused is not charged to the budgets: a refused request spends nothing. Where no
engine with a price accepts work it is `NO_ENGINE` too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal, Served, refusal_of
from kvgate.ledger.book import Book
from kvgate.ledger.charges import charge_of
from kvgate.ledger.door import (
    FORCED_THROUGH,
    avoids_all,
    check_ask,
    check_cost,
    check_costs,
    ms,
    never_fits,
    refusal_at_the_door,
)
from kvgate.ledger.grants import GrantLoop
from kvgate.ledger.queue import Entry, Queue
from kvgate.ledger.shown import tenants_shown
from kvgate.ledger.tenants import Tenants
from kvgate.ledger.turns import Turns
from kvgate_policies.fairness import LEVELS, charge
from kvgate_policies.types import EngineLimits, EngineShape, KVCost, LedgerView, TenantRules

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from kvgate.ledger.ceilings import Ceilings

Decision = tuple[str, Grant | Refusal]
"""A request id and what was decided for it."""


class LedgerCore:
    """Book, queue and grant loop of one pool. Not safe for threads."""

    def __init__(self, *, bypass_max: int, scan_depth: int, grants_max: int, tie: int) -> None:
        self._turns = Turns()
        self._tenants = Tenants(self._turns)
        self._book = Book(self._tenants)
        self._queue = Queue(self._turns)
        self._loop = GrantLoop(
            self._book,
            self._queue,
            self._turns,
            self._tenants,
            bypass_max=bypass_max,
            scan_depth=scan_depth,
            grants_max=grants_max,
            tie=tie,
        )
        self._seq_next = 0
        self._closed: Refusal | None = None
        self._outbox: list[Decision] = []
        self._totals: dict[str, int] = {f"refused_{reason}": 0 for reason in Refusal}
        self._totals |= {"arrivals": 0, "grants": 0, "releases": 0, "cancels": 0, "voided": 0}

    @property
    def unfinished(self) -> bool:
        """The grant loop stopped at the bounds of one call; `go_on` continues it."""
        return self._loop.unfinished

    @property
    def queued(self) -> int:
        return len(self._queue)

    def take_decisions(self) -> list[Decision]:
        """What was decided since the last call, in the order of the decisions."""
        decisions, self._outbox = self._outbox, []
        return decisions

    def go_on(self) -> None:
        """Run the grant loop once, within its bounds."""
        self._granted(self._loop.run())

    # requests

    def reserve(self, ask: Ask, now_s: float) -> int | Refusal | RateSpent:
        """Enqueue and run the grant loop; the place in the order, or why not.

        Raises ValueError for a request id that is queued or holds a reservation, a `seq` that is taken, or a
        negative cost or charge.
        """
        check_ask(ask, is_known=self._knows(ask.request_id))
        refusal = self._closed or refusal_at_the_door(ask, self._book, self._tenants, ms(now_s))
        if refusal is None:
            return self._take(ask, now_s)
        reason = refusal_of(refusal)
        self._totals["arrivals"] += 1
        if not ask.force or reason not in FORCED_THROUGH:
            self._refused(reason)
            return refusal
        if avoids_all(ask, self._book):
            return self._refused(Refusal.NO_ENGINE)
        return self._start(self._entry(ask, now_s), reason)

    def end(self, request_id: str, served: Served | None = None) -> None:
        """Leave the queue or give the reservation back, whichever it has; nothing for an unknown id.

        What a reservation `served` corrects what was charged for it: after its room is free, which may bring flows of
        its tenant back into the walk, and before the grant loop runs.
        """
        entry = self._queue.get(request_id)
        if entry is not None:
            self._totals["cancels"] += 1
            self._tenants.correct_tokens(entry.tenant, -entry.tokens)
            self._leave_queue(entry)
            return
        grant = self._book.drop(request_id)
        if grant is not None:
            self._totals["releases"] += 1
            if served is not None:
                self._correct(grant, served)
            self.go_on()

    def renew(self, request_id: str, cost: KVCost) -> None:
        """Raises ValueError for a negative cost."""
        check_cost(cost)
        if self._book.change(request_id, cost):
            self.go_on()

    def renew_many(self, costs: Mapping[str, KVCost]) -> None:
        """Raises ValueError for a negative cost, and changes nothing then."""
        check_costs(costs)
        changed = [self._book.change(request_id, cost) for request_id, cost in costs.items()]
        if any(changed):
            self.go_on()

    def reprice(self, request_id: str, costs: Mapping[EngineShape, KVCost]) -> None:
        """Raises ValueError for a negative cost."""
        check_costs(costs)
        entry = self._queue.get(request_id)
        if entry is None:
            return
        entry.costs = dict(costs)
        entry.misfit_at, entry.startable_on = -1, None
        if never_fits(entry.costs, self._book.known):
            self._answer(entry, Refusal.NEVER_FITS)
        elif entry.parked and self._loop.could_start(entry):
            self._queue.unpark(entry)
        else:
            self._turns.readmit(entry.flow)
        self.go_on()

    def adopt(self, grant: Grant) -> None:
        """Enter a reservation that was decided elsewhere; it may overdraw its engine, which only blocks grants.

        Raises LedgerCorrupt when the request holds one already, KeyError for an engine that is not known.
        """
        self._book.hold(grant)

    def position(self, request_id: str) -> int:
        return self._queue.ahead(request_id)

    def set_tenants(self, rules: Mapping[str, TenantRules]) -> None:
        """The rules of all tenants. Raises ValueError for impossible ones, and changes nothing then."""
        self._tenants.set_rules(rules)
        self.go_on()

    # engines

    def observe(self, limits: EngineLimits, *, apart: bool = False) -> None:
        """An engine, or what is different of it. `apart`: it is no part of the pool that tenants have shares of."""
        known, accepting = self._book.known, self._book.accepting
        if self._book.set_limits(limits, apart=apart):
            self._reconsider(known, accepting)
            self.go_on()

    def forget(self, engine_id: str) -> None:
        known, accepting = self._book.known, self._book.accepting
        self._totals["voided"] += self._book.remove(engine_id)
        self._reconsider(known, accepting)
        self.go_on()

    def void(self, engine_id: str) -> None:
        self._totals["voided"] += self._book.void(engine_id)
        self.go_on()

    # the whole

    def close(self, reason: Refusal) -> None:
        self._closed = reason
        for entry in list(self._queue):
            self._answer(entry, reason)

    def reserved_on(self, engine_id: str) -> KVCost | None:
        """All that is reserved on an engine; None for one that is not known."""
        return self._book.reserved_on(engine_id)

    def view(self, now_s: float) -> LedgerView:
        oldest = self._queue.oldest()
        return LedgerView(
            engines=self._book.uses(),
            queued=len(self._queue),
            oldest_wait_s=0.0 if oldest is None else now_s - oldest.since_s,
            totals=self._totals | {"bypasses": self._loop.bypasses, "pins": self._loop.pins},
            tenants=tenants_shown(self._tenants, self._queue, now_s),
        )

    def __repr__(self) -> str:
        closed = "" if self._closed is None else f", closed: {self._closed}"
        return f"<LedgerCore {self._book!r}, {self._queue!r}{closed}>"

    def _knows(self, request_id: str) -> bool:
        return request_id in self._queue or self._book.grant_of(request_id) is not None

    def _take(self, ask: Ask, now_s: float) -> int | Refusal:
        """Queue one that the door let in, and run the grant loop."""
        full = ask.seq is None and self._queue.depth(ask.tenant) >= ask.queue_depth_max
        entry = self._entry(ask, now_s)
        self._queue.add(entry)
        self._seq_next = max(self._seq_next, entry.seq + 1)
        self._totals["arrivals"] += 1
        if self._loop.reaches(entry):
            self.go_on()
        if ask.request_id in self._queue and (full or ask.force):
            self._leave_queue(entry)
            if not ask.force:
                return self._refused(Refusal.QUEUE_FULL)
            answer = self._start(entry, Refusal.QUEUE_FULL if full else "queued")
            if full or isinstance(answer, Refusal):
                return answer
        if ask.seq is None:
            self._tenants.spend(ask.tenant, ask.tokens, ms(now_s))
        return entry.seq

    def _start(self, entry: Entry, forced: Literal["queued"] | Refusal) -> int | Refusal:
        """Without a turn, for one that is forced."""
        grant = self._loop.start(entry, forced)
        if grant is None:
            return self._refused(Refusal.NO_ENGINE)
        self._seq_next = max(self._seq_next, entry.seq + 1)
        self._granted([grant])
        if self._turns.moved:  # its tenant has its guarantee now: what was kept free for it may be free
            self.go_on()
        return entry.seq

    def _granted(self, grants: list[Grant]) -> None:
        self._totals["grants"] += len(grants)
        self._outbox += [(grant.request_id, grant) for grant in grants]

    def _entry(self, ask: Ask, now_s: float) -> Entry:
        """One that is about to have a place: its old one, or the next."""
        seq, rank = ask.seq, ask.rank
        if seq is None:
            seq = self._seq_next
            rank = 0 if ask.rank_in_ms is None else ms(now_s) + ask.rank_in_ms
        return Entry(
            ask.request_id,
            seq,
            dict(ask.costs),
            ask.avoid,
            now_s,
            ask.tenant,
            ask.priority,
            rank,
            ask.work,
            ask.tokens,
            ask.z,
            ask.prefer,
        )

    def _correct(self, grant: Grant, served: Served) -> None:
        """What it took instead of what was charged, where it was charged."""
        due = charge_of(grant, served)
        self._tenants.serve(grant.tenant, due.work)
        flow = LEVELS[grant.priority], grant.tenant
        self._turns.correct(flow, charge(due.work_of_turn, self._tenants.weight(grant.tenant)))
        self._tenants.correct_tokens(grant.tenant, due.tokens)

    def _leave_queue(self, entry: Entry) -> None:
        """Take an entry out; those behind it move up, and what it had pinned is free."""
        mattered = self._loop.reaches(entry)
        self._queue.remove(entry)
        if self._book.unpin(entry.request_id) or mattered or self._turns.moved:
            self.go_on()

    def _answer(self, entry: Entry, reason: Refusal) -> None:
        self._tenants.correct_tokens(entry.tenant, -entry.tokens)
        self._queue.remove(entry)
        self._book.unpin(entry.request_id)
        self._outbox.append((entry.request_id, self._refused(reason)))

    def _refused(self, reason: Refusal) -> Refusal:
        self._totals[f"refused_{reason}"] += 1
        return reason

    def _reconsider(self, known_before: Ceilings, accepting_before: Ceilings) -> None:
        """After a change of engines: who can never start now, and who has an engine to wait for again?"""
        known = self._book.known
        if known != known_before:
            for entry in [entry for entry in self._queue if never_fits(entry.costs, known)]:
                self._answer(entry, Refusal.NEVER_FITS)
        other_sizes = self._book.accepting != accepting_before
        for entry in self._queue.parked():
            if (other_sizes or entry.avoid) and self._loop.could_start(entry):
                self._queue.unpark(entry)
