"""The memory ledger without its waiting: every call decides at once and leaves its answers in an outbox.

Nothing here knows of event loops, tasks or futures. Each public method leaves the ledger *settled* (nothing
that may start within the bounds of the grant loop is still waiting), or `unfinished` is true and `go_on`
continues.

What a `reserve` is answered, in this order:

1. the reason given to `close`, once closed;
2. `NEVER_FITS`, when it is priced for a known engine, accepting or not, and none of those covers it;
3. `NO_ENGINE`, when no engine is known except those it avoids. One that does not accept work at the moment
   (busy, down, draining) is waited for; whether that is worth while is for the caller to judge, who knows why;
4. `QUEUE_FULL`, when the queue was at its bound and the grant loop did not let it start at once. One that
   queues again is not refused for this.

A request that no engine has a price for waits for `reprice`; its owner's deadline bounds that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.ledger.base import Ask, Grant, Refusal
from kvgate.ledger.book import Book
from kvgate.ledger.grants import GrantLoop
from kvgate.ledger.queue import Entry, Queue
from kvgate_policies.types import EngineLimits, EngineShape, KVCost, LedgerView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.ledger.ceilings import Ceilings

Decision = tuple[str, Grant | Refusal]
"""A request id and what was decided for it."""


class LedgerCore:
    """Book, queue and grant loop of one pool. Not safe for threads."""

    def __init__(self, *, bypass_max: int, scan_depth: int, grants_max: int, tie: int) -> None:
        self._book = Book()
        self._queue = Queue()
        self._loop = GrantLoop(
            self._book,
            self._queue,
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

    def take_decisions(self) -> list[Decision]:
        """What was decided since the last call, in the order of the decisions."""
        decisions, self._outbox = self._outbox, []
        return decisions

    def go_on(self) -> None:
        """Run the grant loop once, within its bounds."""
        grants = self._loop.run()
        self._totals["grants"] += len(grants)
        self._outbox += [(grant.request_id, grant) for grant in grants]

    # requests

    def reserve(self, ask: Ask, now_s: float) -> int | Refusal:
        """Enqueue and run the grant loop; the place in the order, or why not.

        Raises ValueError for a request id that is queued or holds a reservation, a `seq` that is taken, or a
        negative cost.
        """
        if ask.request_id in self._queue or self._book.grant_of(ask.request_id) is not None:
            raise ValueError(f"request {ask.request_id} is queued or holds a reservation already")
        _check_costs(ask.costs)
        refusal = self._refusal_at_the_door(ask)
        if refusal is not None:
            self._totals["arrivals"] += 1
            return self._refused(refusal)
        full = ask.seq is None and len(self._queue) >= ask.queue_depth_max
        entry = self._enqueue(ask, now_s)
        self._totals["arrivals"] += 1
        if self._loop.reaches(entry):
            self.go_on()
        if full and ask.request_id in self._queue:
            self._leave_queue(entry)
            return self._refused(Refusal.QUEUE_FULL)
        return entry.seq

    def end(self, request_id: str) -> None:
        """Leave the queue or give the reservation back, whichever it has; nothing for an unknown id."""
        entry = self._queue.get(request_id)
        if entry is not None:
            self._totals["cancels"] += 1
            self._leave_queue(entry)
        elif self._book.drop(request_id):
            self._totals["releases"] += 1
            self.go_on()

    def renew(self, request_id: str, cost: KVCost) -> None:
        """Raises ValueError for a negative cost."""
        _check_cost(cost)
        if self._book.change(request_id, cost):
            self.go_on()

    def reprice(self, request_id: str, costs: Mapping[EngineShape, KVCost]) -> None:
        """Raises ValueError for a negative cost."""
        _check_costs(costs)
        entry = self._queue.get(request_id)
        if entry is None:
            return
        entry.costs = dict(costs)
        entry.misfit_at = -1
        if _never_fits(entry.costs, self._book.known):
            self._answer(entry, Refusal.NEVER_FITS)
        elif entry.parked and self._loop.could_start(entry):
            self._queue.unpark(entry)
        self.go_on()

    def adopt(self, grant: Grant) -> None:
        """Enter a reservation that was decided elsewhere; it may overdraw its engine, which only blocks grants.

        Raises LedgerCorrupt when the request holds one already, KeyError for an engine that is not known.
        """
        self._book.hold(grant)

    def position(self, request_id: str) -> int:
        return self._queue.ahead(request_id)

    # engines

    def observe(self, limits: EngineLimits) -> None:
        known, accepting = self._book.known, self._book.accepting
        if self._book.set_limits(limits):
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

    def view(self, now_s: float) -> LedgerView:
        oldest = self._queue.oldest()
        return LedgerView(
            engines=self._book.uses(),
            queued=len(self._queue),
            oldest_wait_s=0.0 if oldest is None else now_s - oldest.since_s,
            totals=self._totals | {"bypasses": self._loop.bypasses, "pins": self._loop.pins},
        )

    def __repr__(self) -> str:
        closed = "" if self._closed is None else f", closed: {self._closed}"
        return f"<LedgerCore {self._book!r}, {self._queue!r}{closed}>"

    def _refusal_at_the_door(self, ask: Ask) -> Refusal | None:
        if self._closed is not None:
            return self._closed
        if _never_fits(ask.costs, self._book.known):
            return Refusal.NEVER_FITS
        known = (use.limits.engine_id for use in self._book.uses())
        return Refusal.NO_ENGINE if all(engine_id in ask.avoid for engine_id in known) else None

    def _enqueue(self, ask: Ask, now_s: float) -> Entry:
        seq = self._seq_next if ask.seq is None else ask.seq
        entry = Entry(ask.request_id, seq, dict(ask.costs), ask.avoid, now_s)
        self._queue.add(entry)
        self._seq_next = max(self._seq_next, seq + 1)
        return entry

    def _leave_queue(self, entry: Entry) -> None:
        """Take an entry out; those behind it move up, and what it had pinned is free."""
        mattered = self._loop.reaches(entry)
        self._queue.remove(entry)
        if self._book.unpin(entry.request_id) or mattered:
            self.go_on()

    def _answer(self, entry: Entry, reason: Refusal) -> None:
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
            for entry in [entry for entry in self._queue if _never_fits(entry.costs, known)]:
                self._answer(entry, Refusal.NEVER_FITS)
        other_sizes = self._book.accepting != accepting_before
        for entry in self._queue.parked():
            if (other_sizes or entry.avoid) and self._loop.could_start(entry):
                self._queue.unpark(entry)


def _never_fits(costs: Mapping[EngineShape, KVCost], known: Ceilings) -> bool:
    return known.price(costs) and not known.cover(costs)


def _check_costs(costs: Mapping[EngineShape, KVCost]) -> None:
    for cost in costs.values():
        _check_cost(cost)


def _check_cost(cost: KVCost) -> None:
    if min(cost.blocks, cost.seqs, cost.prefill_tokens) < 0:
        raise ValueError(f"a cost has no negative part: {cost}")
