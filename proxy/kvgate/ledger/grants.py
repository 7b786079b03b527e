"""The grant loop: who starts now, and where?

It decides without waiting: it changes book and queue and returns the grants it made. One call walks the queue
from its head:

1. An entry that fits an engine (`kvgate_policies.placement`) is granted there.
2. An entry that no accepting engine could hold even when empty is *parked*: it waits for an engine. Others
   that go on meanwhile do not pass it, since it could not have started in their place.
3. Any other entry is *passed*. The walk ends after `scan_depth` passed ones; those that have an engine
   pinned do not count, so that pins never hide the rest of the queue (there are no more pins than engines).
4. Each grant counts one bypass on every entry passed before it. One that reached `bypass_max` is
   *exhausted*: it pins the engine that will fit it soonest, and nothing else starts there before it. It still
   takes another engine that fits it first.
5. An exhausted entry that finds no free engine to pin takes over the pin of a later entry. If there is none,
   every engine that could ever hold it is pinned by an earlier entry, so nobody behind starts there either.
6. A pin ends with its request's grant or leaving, or when the engine is gone, does not accept, or has become
   too small. Entries that queue again at an old place can push a pinner out of the walk; then it lets go
   and pins again when its turn is back, as otherwise both could wait for each other.
7. Whenever a pin came, went or changed hands the walk starts again: somebody passed earlier may fit now, or
   the walk reaches further. This ends, since pins only move towards the head.

So an entry is overtaken at most `bypass_max` times before an engine is kept for it, and after that never on
that engine.

One call makes at most `grants_max` grants and parks at most `PARKED_MAX` entries; then it says `unfinished`,
and whoever runs it calls again soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvgate.ledger.base import Grant
from kvgate.ledger.queue import Entry, Queue
from kvgate_policies.kv_cost import fits_empty
from kvgate_policies.placement import pin, place
from kvgate_policies.types import EngineShape, EngineUse, KVCost

if TYPE_CHECKING:
    from kvgate.ledger.book import Book

PARKED_MAX = 256
"""Entries parked in one call: a few µs each, so that a call stays short when a large engine leaves."""


@dataclass(slots=True)
class _Walk:
    """What one walk has seen so far."""

    passed: list[Entry] = field(default_factory=list[Entry])
    misfits: list[Mapping[EngineShape, KVCost]] = field(default_factory=list[Mapping[EngineShape, KVCost]])
    """Prices that fitted nowhere: what costs as much or more needs no look."""
    again: bool = False
    """A pin came, went or changed hands: look again from the head."""


class GrantLoop:
    """Runs the rules above over a book and a queue.

    Raises ValueError for a bound that would stop it: `bypass_max` below 0, the others below 1.
    """

    def __init__(
        self, book: Book, queue: Queue, *, bypass_max: int, scan_depth: int, grants_max: int, tie: int
    ) -> None:
        if bypass_max < 0 or scan_depth < 1 or grants_max < 1:
            raise ValueError("bypass_max must be 0 or more, scan_depth and grants_max 1 or more")
        self._book = book
        self._queue = queue
        self._bypass_max = bypass_max
        self._scan_depth = scan_depth
        self._grants_max = grants_max
        self._tie = tie
        self._grants: list[Grant] = []
        self._parked = 0
        self.unfinished = False
        """The last call stopped at its bounds; there may be more to grant."""
        self.bypasses = 0
        self.pins = 0

    def run(self) -> list[Grant]:
        """Grant whatever may start now, in order, within the bounds of one call."""
        self._grants, self._parked = [], 0
        while self._walk():
            pass
        return self._grants

    def reaches(self, entry: Entry) -> bool:
        """Whether a walk could look at the entry: if not, its coming or leaving changes nothing."""
        return not entry.parked and self._queue.index(entry) < self._scan_depth + self._book.pins

    def could_start(self, entry: Entry) -> bool:
        """Whether some accepting engine would hold the entry once it is empty."""
        if not entry.avoid:
            return self._book.accepting.cover(entry.costs)
        return any(_could_use(entry, use) for use in self._book.uses())

    def _walk(self) -> bool:
        """One walk from the head; True when there is reason for another."""
        walk = _Walk()
        waiting = 0
        while waiting < self._scan_depth:
            entry = self._queue.active(len(walk.passed))
            self.unfinished = entry is not None and self._spent
            if entry is None or self.unfinished:
                break
            if self._grant(entry, walk) or self._park(entry, walk):
                continue
            walk.passed.append(entry)
            self._hold_if_exhausted(entry, walk)
            waiting += self._book.pinned_to(entry.request_id) is None
        if self.unfinished:
            return False
        self._let_go_unseen(walk)
        return walk.again

    @property
    def _spent(self) -> bool:
        return len(self._grants) >= self._grants_max or self._parked >= PARKED_MAX

    def _grant(self, entry: Entry, walk: _Walk) -> bool:
        engine_id = self._place(entry, walk)
        use = None if engine_id is None else self._book.use(engine_id)
        if use is None:
            return False
        self._leave(entry, walk)
        shape = use.limits.shape
        grant = Grant(entry.request_id, use.limits.engine_id, shape, entry.costs[shape], entry.seq)
        self._book.hold(grant)
        self._grants.append(grant)
        self._tie += 1
        self._count_bypasses(walk)
        return True

    def _place(self, entry: Entry, walk: _Walk) -> str | None:
        """As `place` on all engines, without the looks that are known to be in vain."""
        if self._is_misfit(entry, walk):
            return None
        uses = self._book.freed_since(entry.misfit_at)
        engine_id = place(entry.costs, uses, entry.request_id, entry.avoid, self._tie)
        if engine_id is None:
            entry.misfit_at = self._book.stamp
            if not entry.avoid:
                walk.misfits.append(entry.costs)
        return engine_id

    def _is_misfit(self, entry: Entry, walk: _Walk) -> bool:
        """Whether it costs as much as one that fitted nowhere in this walk, and has no engine of its own."""
        if self._book.pinned_to(entry.request_id) is not None:
            return False
        return any(_at_least(entry.costs, costs) for costs in walk.misfits)

    def _leave(self, entry: Entry, walk: _Walk) -> None:
        self._queue.remove(entry)
        self._unpin(entry.request_id, walk)

    def _park(self, entry: Entry, walk: _Walk) -> bool:
        if self.could_start(entry):
            return False
        self._queue.park(entry)
        self._unpin(entry.request_id, walk)
        self._parked += 1
        return True

    def _unpin(self, request_id: str, walk: _Walk) -> None:
        if self._book.unpin(request_id):
            walk.again = True
            walk.misfits.clear()

    def _count_bypasses(self, walk: _Walk) -> None:
        for entry in walk.passed:
            if entry.bypasses < self._bypass_max:
                entry.bypasses += 1
                self.bypasses += 1
            self._hold_if_exhausted(entry, walk)

    def _hold_if_exhausted(self, entry: Entry, walk: _Walk) -> None:
        """Pin an engine for an entry that was passed often enough (rules 4 to 6)."""
        if entry.bypasses < self._bypass_max or self._keeps_pin(entry):
            return
        self._unpin(entry.request_id, walk)
        uses = self._book.uses()
        engine_id = pin(entry.costs, uses, entry.avoid)
        if engine_id is None:
            engine_id = pin(entry.costs, self._pinned_later(entry, uses), entry.avoid)
        if engine_id is not None:
            self._book.pin(engine_id, entry.request_id)
            self.pins += 1
            walk.again = True

    def _keeps_pin(self, entry: Entry) -> bool:
        engine_id = self._book.pinned_to(entry.request_id)
        use = None if engine_id is None else self._book.use(engine_id)
        return use is not None and _could_use(entry, use)

    def _pinned_later(self, entry: Entry, uses: tuple[EngineUse, ...]) -> list[EngineUse]:
        """The engines pinned by entries behind this one, as if they were not."""
        later: list[EngineUse] = []
        for use in uses:
            pinner = None if use.pinned_by is None else self._queue.get(use.pinned_by)
            if pinner is not None and pinner.seq > entry.seq:
                later.append(replace(use, pinned_by=None))
        return later

    def _let_go_unseen(self, walk: _Walk) -> None:
        if self._book.pins:
            seen = {entry.request_id for entry in walk.passed}
            for request_id in self._book.pinners():
                if request_id not in seen:
                    self._unpin(request_id, walk)


def _could_use(entry: Entry, use: EngineUse) -> bool:
    limits = use.limits
    if not limits.accepting or limits.engine_id in entry.avoid:
        return False
    cost = entry.costs.get(limits.shape)
    return cost is not None and fits_empty(cost, limits)


def _at_least(costs: Mapping[EngineShape, KVCost], misfit: Mapping[EngineShape, KVCost]) -> bool:
    """Whether a request costs as much as the misfit on every engine it is priced for."""
    if costs == misfit:
        return True
    return all(_not_below(cost, misfit.get(shape)) for shape, cost in costs.items())


def _not_below(cost: KVCost, other: KVCost | None) -> bool:
    return (
        other is not None
        and cost.blocks >= other.blocks
        and cost.seqs >= other.seqs
        and cost.prefill_tokens >= other.prefill_tokens
    )
