"""What a process does while Redis is away, until it answers again.

* `local`: it goes on by itself within its share of each engine (`share`): up to what Redis counts for it anyway,
  and further only where the engine's own gauges show room. One that never had a heartbeat has no share.
* `closed`: everything waits, and is answered `ledger_unavailable` when its wait is over.
* `open`: it grants at once, to the engine that is least loaded by its own sums, and counts.

All three are one ledger in memory with another part of the capacity: nothing, a share, or more than anyone can
use. What the process already holds is carried in, what waits is carried in in order. A request larger than the
share, but not than the engine, waits for Redis: each engine is therefore entered twice, as a share that takes
work and as a whole that does not.

The peak of a forecast says nothing of a share: that of a request without a limit may be a whole engine. So here such a
request is asked for what it takes by itself at its risk, where that is less and every engine covers its peak; its
share decides by what is expected. What is handed out and shown has the price that was asked.

Tenants have the rules that were known last: their shares are of what this process may use, and their budgets divided.
What Redis knows of their use, their turns and what they spent is not known here: those begin anew.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kvgate.ledger.base import Grant, Refusal
from kvgate.ledger.core import Decision, LedgerCore
from kvgate.ledger.share import Share, rules_of_share
from kvgate.ledger.shown import parts_shown
from kvgate_policies.forecast_fit import ZVector, blocks_taken
from kvgate_policies.kv_cost import fits_empty
from kvgate_policies.occupancy import NOTHING
from kvgate_policies.types import ZERO_COST, EngineUse, KVCost, LedgerView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate.ledger.base import Ask, RateSpent, Served
    from kvgate_policies.types import EngineLimits, EngineShape, TenantRules

OPEN_FACTOR = 1 << 20
"""More of every engine than any number of requests can ask for; loads keep their order."""
PLACES_PER_SEQ = 1 << 24
"""Places that are guesses may share a `seq`; the order of arrival tells them apart."""
_WHOLE = "\0whole"


class OnFailure(StrEnum):
    """What to do while Redis is away."""

    LOCAL = "local"
    CLOSED = "closed"
    OPEN = "open"


class Fallback:
    """Decides alone. Ids are those of the wire; nothing here waits."""

    def __init__(
        self,
        mode: OnFailure,
        live: int,
        limits: Iterable[EngineLimits],
        *,
        floors: Mapping[str, KVCost],
        leased_until_s: float,
        orphan_hold_s: float,
        bypass_max: int,
        scan_depth: int,
        grants_max: int,
    ) -> None:
        """`live` is how many processes shared the pool when last heard; 0 when nothing ever was.

        `floors` is what Redis surely counts for this process on each engine: until its lease runs out whatever the
        engines show, and then for `orphan_hold_s` at most.
        """
        self.mode = mode
        self._live = live
        self._floors = dict(floors)
        self._leased_until_s = leased_until_s
        self._counted_until_s = leased_until_s + orphan_hold_s
        self._limits: dict[str, EngineLimits] = {}
        self._shares: dict[str, Share] = {}
        self._engine_of: dict[str, str] = {}
        """Of each that holds something, by wire id."""
        self._asked: dict[str, Ask] = {}
        """Those that wait, as they were asked, by wire id."""
        self._now_s = 0.0
        self._core = LedgerCore(bypass_max=bypass_max, scan_depth=scan_depth, grants_max=grants_max, tie=0)
        for each in limits:
            self.observe(each)

    @property
    def unfinished(self) -> bool:
        return self._core.unfinished

    def go_on(self) -> None:
        self._core.go_on()

    def take_decisions(self) -> list[Decision]:
        """What was decided since the last call."""
        decisions = [(wire, self._as_asked(wire, decision)) for wire, decision in self._core.take_decisions()]
        for wire, decision in decisions:
            if isinstance(decision, Grant):
                self._hold(wire, decision, is_new=True)
        self._sink()
        return decisions

    def adopt(self, grant: Grant) -> None:
        """Carry in what is held already; on an engine that is not known here it weighs nothing."""
        if grant.engine_id in self._limits:
            self._core.adopt(grant)
            self._hold(grant.request_id, grant, is_new=False)

    def set_tenants(self, rules: Mapping[str, TenantRules]) -> None:
        """The rules of the whole pool; here this process's part of them holds."""
        self._core.set_tenants({name: self._part_of(each) for name, each in rules.items()})

    def reserve(self, ask: Ask, place: tuple[int, int] | None, now_s: float) -> Refusal | RateSpent | None:
        """Queue; None when it was taken, else why not. One that has a place is not refused for the depth."""
        self._at(now_s)
        self._sink()
        seq = None if place is None else place[0] * PLACES_PER_SEQ + place[1] % PLACES_PER_SEQ
        costs = self._prices(ask.costs, ask.z)
        self._asked[ask.request_id] = ask
        answer = self._core.reserve(replace(ask, seq=seq, avoid=_both(ask.avoid), costs=costs), now_s)
        if not isinstance(answer, int):
            del self._asked[ask.request_id]
        if isinstance(answer, int) or (answer is Refusal.NEVER_FITS and self._may_fit(ask)):
            return None  # above its tenant's part here, it waits for Redis
        return answer

    def end(self, wire: str, now_s: float, served: Served | None = None) -> None:
        share = self._shares.get(self._engine_of.pop(wire, ""))
        if share is not None:
            share.end(wire)
        self._asked.pop(wire, None)
        self._at(now_s)
        self._core.end(wire, served)

    def renew(self, costs: Mapping[str, KVCost]) -> None:
        """Of these grants, by wire id, the costs are other ones."""
        for wire, cost in costs.items():
            share = self._shares.get(self._engine_of.get(wire, ""))
            if share is not None:
                share.change(wire, cost)
        self._core.renew_many(costs)

    def reprice(self, wire: str, costs: Mapping[EngineShape, KVCost]) -> None:
        ask = self._asked.get(wire)
        if ask is not None:
            self._asked[wire] = replace(ask, costs=costs)
            self._core.reprice(wire, self._prices(costs, ask.z))

    def observe(self, limits: EngineLimits) -> None:
        engine_id = limits.engine_id
        self._limits[engine_id] = limits
        if engine_id not in self._shares:
            self._shares[engine_id] = Share(max(self._live, 1), self._floors.pop(engine_id, ZERO_COST))
        self._core.observe(replace(limits, engine_id=engine_id + _WHOLE, accepting=False), apart=True)
        self._core.observe(self._part(limits))

    def gauge(self, engine_id: str, blocks: int, seqs: int | None, now_s: float) -> None:
        """What an engine says of itself, by whomever it is used: blocks in use, sequences there."""
        limits = self._limits.get(engine_id)
        if limits is not None:
            self._shares[engine_id].read(limits, blocks, seqs, now_s)
            self._at(now_s)
            self._sink()

    def forget(self, engine_id: str) -> None:
        self._limits.pop(engine_id, None)
        self._shares.pop(engine_id, None)
        self._core.forget(engine_id)
        self._core.forget(engine_id + _WHOLE)

    def void(self, engine_id: str) -> None:
        share = self._shares.get(engine_id)
        if share is not None:
            share.void()
            self._core.observe(self._part(self._limits[engine_id]))
        self._core.void(engine_id)

    def view(self, now_s: float) -> LedgerView:
        """Of what this process knows of itself; engines as they are, with the most of each that it may use. Tenants
        have the most that it may give them; never more than all engines have, which open mode enters as more than that.
        """
        view = self._core.view(now_s)
        engines = tuple(self._as_it_is(view))
        tenants = parts_shown(view.tenants, engines, is_bounded=self.mode is not OnFailure.OPEN)
        return replace(view, engines=engines, tenants=tenants, mode=self.mode.value)

    def _as_it_is(self, view: LedgerView) -> Iterable[EngineUse]:
        for use in view.engines:
            limits = self._limits.get(use.limits.engine_id)
            if limits is not None:
                held = self._shares[limits.engine_id].held
                yield replace(use, limits=limits, reserved=held, share=self._most(limits))

    def _most(self, limits: EngineLimits) -> KVCost | None:
        """Of an engine; None where nothing bounds it."""
        match self.mode:
            case OnFailure.OPEN:
                return None
            case OnFailure.LOCAL if self._live:
                return self._shares[limits.engine_id].most(limits)
            case OnFailure.LOCAL | OnFailure.CLOSED:
                return ZERO_COST

    def _hold(self, wire: str, grant: Grant, *, is_new: bool) -> None:
        self._engine_of[wire] = grant.engine_id
        self._shares[grant.engine_id].hold(wire, grant.cost, is_new=is_new)

    def _as_asked(self, wire: str, decision: Grant | Refusal) -> Grant | Refusal:
        ask = self._asked.pop(wire, None)
        if isinstance(decision, Refusal) or ask is None:
            return decision
        return replace(decision, cost=ask.costs[decision.shape])

    def _prices(self, costs: Mapping[EngineShape, KVCost], z: ZVector) -> Mapping[EngineShape, KVCost]:
        """With peaks that a share can be asked for."""
        return {
            shape: cost if self._is_beyond(shape, cost) else _by_itself(cost, z)
            for shape, cost in costs.items()
        }

    def _is_beyond(self, shape: EngineShape, cost: KVCost) -> bool:
        """Whether an engine as it is, empty, does not hold the peak."""
        return any(limits.shape == shape and not fits_empty(cost, limits) for limits in self._limits.values())

    def _at(self, now_s: float) -> None:
        """It is later: readings may be old, or new."""
        self._now_s = now_s
        for limits in self._limits.values():
            self._core.observe(self._part(limits))

    def _sink(self) -> None:
        """Where Redis may not count all of a floor any more, lower it."""
        if self._now_s < self._leased_until_s:
            return
        is_over = self._now_s >= self._counted_until_s
        for engine_id, limits in self._limits.items():
            if self._shares[engine_id].sink(is_over=is_over):
                self._core.observe(self._part(limits))

    def _part(self, limits: EngineLimits) -> EngineLimits:
        """What this process may use of an engine."""
        match self.mode:
            case OnFailure.OPEN:
                return _times(limits, OPEN_FACTOR)
            case OnFailure.LOCAL if self._live:
                return self._shares[limits.engine_id].limits(limits, self._now_s)
            case OnFailure.LOCAL | OnFailure.CLOSED:
                return replace(limits, accepting=False)

    def _part_of(self, rules: TenantRules) -> TenantRules:
        """Who lets everything pass asks no budget either."""
        if self.mode is OnFailure.OPEN:
            return replace(rules, tokens_per_minute=None, requests_per_minute=None, limit_tokens=None)
        return rules_of_share(rules, max(self._live, 1))

    def _may_fit(self, ask: Ask) -> bool:
        """Whether an engine as it is, empty, holds the request."""
        return any(
            limits.shape in ask.costs and fits_empty(ask.costs[limits.shape], limits)
            for limits in self._limits.values()
        )

    def __repr__(self) -> str:
        return f"<Fallback {self.mode} of {self._live}: {self._core!r}>"


def _by_itself(cost: KVCost, z: ZVector) -> KVCost:
    """Of a forecast no more blocks than it would be counted with alone on an engine."""
    if cost.expected is None:
        return cost
    blocks = min(cost.blocks, math.ceil(blocks_taken(NOTHING, cost.expected, z)))
    return replace(cost, blocks=blocks)


def _times(limits: EngineLimits, factor: int) -> EngineLimits:
    return replace(
        limits,
        blocks_usable=None,
        blocks=limits.blocks * factor,
        seqs=limits.seqs * factor,
        prefill_tokens=limits.prefill_tokens * factor,
    )


def _both(avoid: frozenset[str]) -> frozenset[str]:
    return avoid | {engine_id + _WHOLE for engine_id in avoid}
