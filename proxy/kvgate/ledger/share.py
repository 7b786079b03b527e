"""How much of one engine a process may use while it is cut off from the shared ledger.

It cannot tell whether Redis is gone for all, or whether it alone is cut off and the others go on with Redis. In the
second case they count what it last told Redis as its own until its engine shows all of that free, and use all the
rest. So there are three bounds:

* *Its share*, nine tenths of what is open of the engine, divided by the processes that there were: never more.
* *The floor*, what Redis surely counts for it: up to there it may fill up again whenever something of its own ends.
  Once its lease is over, as soon as less than half of the floor is in use here, the engine may show it free to the
  others, and the floor sinks to what is left; at the latest when Redis forgets it (`orphan_hold_s`), to nothing.
* *The gauge*: beyond the floor only what the engine's own gauges show to be free, in a reading that is not old. A
  sequence on the engine is taken to become as large as those of this process are. What was granted here since the
  reading before the last one may not be in the last one, and so is counted beside it.

That is a bet all the same: the others may take room that was free when it was read. What is lost by it is one
reading's worth, and the next one shows it. It is never made on a pool that is full.

All three are in blocks, and the ledger in memory decides within the smallest that applies (`fallback`). With forecasts
they are in blocks as expected, at the point of the grid where most are (`use_blocks`): peaks say nothing, as those of
requests without a limit sum up to several times the engine. That keeps the promise of the inequality too:

* The floor is F, the largest mean of what Redis counts for this process, for which Redis keeps a margin beside. Whoever
  starts here leaves `mean + z·deviation ≤ F` at every point. Redis counts F at every point from the end of the lease on
  (`orphan_slots` in `lua/gone.lua`), and its sums with the others' requests were within the engine with z deviations
  of *all*, which are not less than those of the others alone. So what runs here, with its deviations, and what runs
  elsewhere, with its own, are together within the engine: never over it in expectation, and at the risk of z at most.
* Until then, a lease at most, Redis counts what was expected when it heard last. That is some hundred tokens ago: at a
  point where less than F was expected, the others may have as much too much as was gained here meanwhile.
* Shares of all processes together are nine tenths, each with its own deviations: no less than those of the sum.

A guaranteed reservation counts its peak in all of this, and is covered by the whole bound alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.ledger.wire import least_of, sum_of
from kvgate_policies.types import ZERO_COST, KVCost

if TYPE_CHECKING:
    from kvgate_policies.types import EngineLimits, TenantRules

SHARE_PERCENT = 90
"""Of an engine that the processes divide among themselves; the tenth that is left is for what they do not know of
each other."""
READING_S_MAX = 3.0
"""After which a reading is old: three scrapes of the usual second."""


class Share:
    """Of one process, on one engine. Knows what is held there, by wire id; waits for nothing."""

    def __init__(self, processes: int, floor: KVCost = ZERO_COST) -> None:
        self._processes = processes
        self._floor = _as_expected(floor)
        self._held: dict[str, KVCost] = {}
        self._young: set[str] = set()
        """Granted since the last reading."""
        self._read: KVCost | None = None
        """Up to where the last reading allows."""
        self._read_s = 0.0
        self.held = ZERO_COST
        """All that is held, together."""

    def hold(self, wire: str, cost: KVCost, *, is_new: bool) -> None:
        self._set(wire, cost)
        if is_new:
            self._young.add(wire)

    def change(self, wire: str, cost: KVCost) -> None:
        if wire in self._held:
            self._set(wire, cost)

    def end(self, wire: str) -> None:
        self._set(wire, ZERO_COST)
        self._held.pop(wire, None)
        self._young.discard(wire)

    def _set(self, wire: str, cost: KVCost) -> None:
        self.held = self.held - self._held.get(wire, ZERO_COST) + cost
        self._held[wire] = cost

    def void(self) -> None:
        """The engine restarted: nothing of all that is there any more, nor counted by anyone."""
        self._held.clear()
        self._young.clear()
        self.held = self._floor = ZERO_COST
        self._read = None

    def sink(self, *, is_over: bool = False) -> bool:
        """Lower the floor where less than half of it is in use, or to nothing when it is over; whether it was."""
        held = ZERO_COST if is_over else _as_expected(self.held)
        if 2 * held.blocks >= self._floor.blocks and 2 * held.seqs >= self._floor.seqs:
            return False
        self._floor = least_of(self._floor, held)
        return True

    def read(self, limits: EngineLimits, blocks: int, seqs: int | None, now_s: float) -> None:
        """What the engine's gauges show: blocks in use, and sequences that run or wait."""
        held = _as_expected(self.held)
        will_be = 0 if seqs is None or not held.seqs else math.ceil(seqs * held.blocks / held.seqs)
        room = KVCost(
            max(limits.blocks * SHARE_PERCENT // 100 - max(blocks, will_be), 0),
            max(limits.seqs * SHARE_PERCENT // 100 - (seqs or 0), 0),
            0,
        )
        young = sum_of(self._held[wire] for wire in self._young)
        self._read, self._read_s = _as_expected(self.held - young) + room, now_s
        self._young.clear()

    def most(self, limits: EngineLimits) -> KVCost:
        """Never more than that, whatever is read: its part of what is open at present."""
        part = 100 * self._processes
        return KVCost(
            limits.blocks_open * SHARE_PERCENT // part,
            limits.seqs * SHARE_PERCENT // part,
            limits.prefill_tokens * SHARE_PERCENT // part,
        )

    def limits(self, limits: EngineLimits, now_s: float) -> EngineLimits:
        """The engine as this process may use it now."""
        most = share = self.most(limits)
        is_read = self._read is not None and now_s - self._read_s <= READING_S_MAX
        if self._read is not None and is_read:
            share = least_of(share, _most(self._floor, self._read))
        elif self._processes > 1:
            share = least_of(share, self._floor)
        return replace(
            limits,
            blocks=share.blocks,
            seqs=share.seqs,
            prefill_tokens=most.prefill_tokens,
            blocks_usable=None,
        )

    def __repr__(self) -> str:
        return f"<Share of {self._processes}: {self.held} held, floor {self._floor}, read {self._read}>"


def _as_expected(cost: KVCost) -> KVCost:
    """In blocks as expected where most are."""
    return KVCost(cost.use_blocks, cost.seqs, 0)


def _most(one: KVCost, other: KVCost) -> KVCost:
    return KVCost(max(one.blocks, other.blocks), max(one.seqs, other.seqs), 0)


def rules_of_share(rules: TenantRules, processes: int) -> TenantRules:
    """Of what is given in tokens the part that a process has; shares are of what it may use, as they are."""
    return replace(
        rules,
        limit_tokens=_fraction(rules.limit_tokens, SHARE_PERCENT / 100 / processes),
        tokens_per_minute=_fraction(rules.tokens_per_minute, 1 / processes),
        requests_per_minute=_fraction(rules.requests_per_minute, 1 / processes),
    )


def _fraction(number: int | None, part: float) -> int | None:
    return None if number is None else max(1, math.floor(number * part))
