"""A ledger driven with random operations, and what must hold after each of them.

The machine looks from outside: at the answers, at the tickets, and at `view`. Its own book is naive:
dictionaries and sums over all of it. What it checks stands in `_check_*`, one rule each.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvgate.ledger.base import Ask, Grant, Refusal
from kvgate_policies.types import ZERO_COST, EngineLimits, EngineShape, KVCost
from unit.ledger.pool import OTHER_SHAPE, SHAPE, turns

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from kvgate.ledger.base import Ledger, Ticket
    from kvgate_policies.types import EngineUse, LedgerView

COSTS = st.builds(
    KVCost,
    blocks=st.sampled_from([1, 5, 20, 20, 60, 100, 150]),
    seqs=st.sampled_from([1, 1, 1, 2, 5]),
    prefill_tokens=st.sampled_from([0, 10, 60, 120]),
)
PRICES = st.one_of(
    COSTS.map(lambda cost: {SHAPE: cost}),
    st.builds(lambda one, other: {SHAPE: one, OTHER_SHAPE: other}, COSTS, COSTS),
)


@dataclass
class Waiter:
    ticket: Ticket
    costs: Mapping[EngineShape, KVCost]
    avoid: frozenset[str]
    overtaken: int = 0
    task: asyncio.Task[None] | None = None


@dataclass
class Model:
    """What the machine knows: who waits, who runs, which engines there are."""

    limits: dict[str, EngineLimits] = field(default_factory=dict)
    waiting: dict[str, Waiter] = field(default_factory=dict)
    live: dict[str, Grant] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    closed: Refusal | None = None

    def could_start(self, waiter: Waiter, engine_ids: set[str] | None = None) -> bool:
        """Whether some accepting engine would hold it when empty."""
        return any(
            limits.accepting and self.covers(waiter, limits)
            for limits in self.limits.values()
            if engine_ids is None or limits.engine_id in engine_ids
        )

    @staticmethod
    def covers(waiter: Waiter, limits: EngineLimits) -> bool:
        cost = waiter.costs.get(limits.shape)
        return (
            cost is not None
            and limits.engine_id not in waiter.avoid
            and cost.blocks <= limits.blocks
            and cost.seqs <= limits.seqs
        )

    def never_fits(self, costs: Mapping[EngineShape, KVCost]) -> bool:
        priced = [limits for limits in self.limits.values() if limits.shape in costs]
        nobody = frozenset[str]()
        return bool(priced) and not any(
            self.covers(Waiter(None, costs, nobody), limits)  # type: ignore[arg-type]
            for limits in priced
        )

    def fits_now(self, waiter: Waiter, use: EngineUse) -> bool:
        limits, reserved = use.limits, use.reserved
        if not limits.accepting or not self.covers(waiter, limits):
            return False
        cost = waiter.costs[limits.shape]
        return use.reservations == 0 or (
            reserved.blocks + cost.blocks <= limits.blocks
            and reserved.seqs + cost.seqs <= limits.seqs
            and (
                reserved.prefill_tokens == 0
                or reserved.prefill_tokens + cost.prefill_tokens <= limits.prefill_tokens
            )
        )


class LedgerMachine(RuleBasedStateMachine):
    """Subclasses say how to open a ledger, with the bounds given here."""

    bypass_max = 2
    scan_depth = 3
    grants_per_call_max = 3
    engine_ids: tuple[str, ...] = ("a", "b", "c")

    def open(self) -> Ledger:
        raise NotImplementedError

    async def settle(self) -> None:
        await turns(30)

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()
        self.ids = 0
        self.seq_last = -1
        self.decided: list[tuple[str, Grant | Refusal]] = []

    @initialize()
    def start(self) -> None:
        self.ledger = self.runner.run(self._open())
        self.before = self.ledger.view()

    async def _open(self) -> Ledger:
        return self.open()

    # operations

    @rule(
        costs=PRICES,
        depth=st.sampled_from([0, 2, 5, 20, 20]),
        avoid=st.sampled_from([frozenset(), frozenset(), frozenset(), frozenset("a"), frozenset("b")]),
    )
    def reserve(self, costs: dict[EngineShape, KVCost], depth: int, avoid: frozenset[str]) -> None:
        self.ids += 1
        self._reserve(Ask(f"r{self.ids}", "tenant", costs, depth, None, avoid))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), costs=PRICES, elsewhere=st.booleans())
    def queue_again(self, data: Any, costs: dict[EngineShape, KVCost], elsewhere: bool) -> None:
        grant = data.draw(st.sampled_from(sorted(self.model.live.values(), key=lambda grant: grant.seq)))
        self.release(grant.request_id)
        avoid = frozenset({grant.engine_id}) if elsewhere else frozenset[str]()
        self._reserve(Ask(grant.request_id, "tenant", costs, 0, grant.seq, avoid))

    @precondition(lambda self: self._known())
    @rule(data=st.data(), name=st.sampled_from(["cancel", "release"]))
    def end(self, data: Any, name: str) -> None:
        request_id = data.draw(st.sampled_from(self._known()))
        getattr(self, name)(request_id)

    def cancel(self, request_id: str) -> None:
        self._forget_request(request_id)
        self._step(self.ledger.cancel(request_id))

    def release(self, request_id: str) -> None:
        self._forget_request(request_id)
        self._step(self.ledger.release(request_id))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), cost=COSTS)
    def renew(self, data: Any, cost: KVCost) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.model.live)))
        self.model.live[request_id] = replace(self.model.live[request_id], cost=cost)
        self._step(self.ledger.renew(request_id, cost))

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data(), costs=PRICES)
    def reprice(self, data: Any, costs: dict[EngineShape, KVCost]) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.model.waiting)))
        self.model.waiting[request_id].costs = costs
        self._step(self.ledger.reprice(request_id, costs))

    @rule(
        data=st.data(),
        blocks=st.sampled_from([50, 100, 100, 200]),
        seqs=st.sampled_from([2, 4, 16, 16]),
        prefill_tokens=st.sampled_from([50, 100, 1000]),
        accepting=st.sampled_from([True, True, True, False]),
        shape=st.sampled_from([SHAPE, SHAPE, OTHER_SHAPE]),
    )
    def observe(
        self, data: Any, blocks: int, seqs: int, prefill_tokens: int, accepting: bool, shape: EngineShape
    ) -> None:
        engine_id = data.draw(st.sampled_from(self.engine_ids))
        limits = EngineLimits(engine_id, shape, blocks, seqs, prefill_tokens, accepting)
        self.model.limits[engine_id] = limits
        self._step(self.ledger.observe(limits))

    @precondition(lambda self: self.model.limits)
    @rule(data=st.data(), name=st.sampled_from(["void", "forget"]))
    def lose(self, data: Any, name: str) -> None:
        engine_id = data.draw(st.sampled_from(sorted(self.model.limits)))
        self.model.live = {k: grant for k, grant in self.model.live.items() if grant.engine_id != engine_id}
        if name == "forget":
            del self.model.limits[engine_id]
        self._step(getattr(self.ledger, name)(engine_id))

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def drop_the_wait(self, data: Any) -> None:
        """Cancel a waiting task; its request stays in the queue and somebody else asks for the answer."""
        waiter = self.model.waiting[data.draw(st.sampled_from(sorted(self.model.waiting)))]
        assert waiter.task is not None
        waiter.task.cancel()
        waiter.task = None
        self._step(turns(1))

    @rule(dice=st.integers(0, 30))
    def close(self, dice: int) -> None:
        if dice == 0:
            self.model.closed = Refusal.DRAINING
            self._step(self.ledger.close(Refusal.DRAINING))

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            for request_id in [*self.model.waiting, *self.model.live]:
                self.cancel(request_id)
            view = self.ledger.view()
            assert view.queued == 0
            assert all((use.reserved, use.reservations) == (ZERO_COST, 0) for use in view.engines)
            assert all(use.pinned_by is None for use in view.engines)
        self.runner.close()

    # the machine itself

    def _known(self) -> list[str]:
        return sorted([*self.model.waiting, *self.model.live, *self.model.ended[-3:]])

    def _forget_request(self, request_id: str) -> None:
        """Its owner ends it: no decision may arrive for it after this step began."""
        self.model.waiting.pop(request_id, None)
        self.model.live.pop(request_id, None)
        self.model.ended.append(request_id)

    def _reserve(self, ask: Ask) -> None:
        queued_before = len(self.model.waiting)
        answer = self._step(self.ledger.reserve(ask), ask)
        expected = self._expected(ask)
        if expected is not None:
            assert answer is expected
        elif answer is Refusal.QUEUE_FULL:
            assert ask.seq is None
            assert queued_before >= ask.queue_depth_max
        else:
            assert not isinstance(answer, Refusal), answer
            assert ask.seq == answer.seq if ask.seq is not None else answer.seq > self.seq_last
            self.seq_last = max(self.seq_last, answer.seq)
            full = ask.seq is None and queued_before >= ask.queue_depth_max
            assert not (full and ask.request_id in self.model.waiting)

    def _expected(self, ask: Ask) -> Refusal | None:
        model = self.model
        if model.closed is not None:
            return model.closed
        if model.never_fits(ask.costs):
            return Refusal.NEVER_FITS
        return Refusal.NO_ENGINE if set(model.limits) <= ask.avoid else None

    def _step(self, operation: Coroutine[Any, Any, Any], ask: Ask | None = None) -> Any:
        """Run one operation and everything it set off, then check what must hold."""
        return self.runner.run(self._run(operation, ask))

    async def _run(self, operation: Coroutine[Any, Any, Any], ask: Ask | None) -> Any:
        self.decided.clear()
        answer = await operation
        if ask is not None and not isinstance(answer, Refusal):
            self.model.waiting[ask.request_id] = Waiter(answer, ask.costs, ask.avoid)
        for request_id, waiter in self.model.waiting.items():
            if waiter.task is None:
                waiter.task = asyncio.create_task(self._watch(request_id, waiter.ticket))
        await self.settle()
        self._take_decisions()
        view = self.ledger.view()
        for check in (
            self._check_sums,
            self._check_balance,
            self._check_pins,
            self._check_no_lost_wake_up,
        ):
            check(view)
        self.before = view
        return answer

    async def _watch(self, request_id: str, ticket: Ticket) -> None:
        try:
            decision = await ticket.granted()
        except RuntimeError:
            return
        self.decided.append((request_id, decision))

    def _take_decisions(self) -> None:
        view = self.ledger.view()
        for request_id, decision in self.decided:
            assert request_id in self.model.waiting, "a decision for one that does not wait (any more)"
            waiter = self.model.waiting.pop(request_id)
            if isinstance(decision, Refusal):
                self.model.ended.append(request_id)
                never = decision is Refusal.NEVER_FITS and self.model.never_fits(waiter.costs)
                assert never or decision is self.model.closed
                continue
            assert decision.cost == waiter.costs[self.model.limits[decision.engine_id].shape]
            assert decision.engine_id not in waiter.avoid
            self.model.live[request_id] = decision
            self._check_order(decision, waiter)
        self._check_capacity(view)

    def _check_order(self, grant: Grant, waiter: Waiter) -> None:
        """FIFO among those that cost as much; the bound on being passed; nothing new on another's engine."""
        pins = {use.limits.engine_id: use.pinned_by for use in self.before.engines if use.pinned_by}
        quiet = not pins and self.ledger.view().totals["pins"] == self.before.totals["pins"]
        pinner = pins.get(grant.engine_id)
        assert pinner in {None, grant.request_id} or self._pin_ended(grant.engine_id, pinner)
        for other in self.model.waiting.values():
            if other.ticket.seq > grant.seq:
                continue
            if quiet and not self._costs_less(waiter, other):
                assert not other.avoid <= waiter.avoid, f"{grant} passed {other}"
            if self.model.could_start(other, {grant.engine_id}):
                other.overtaken += 1
                if len(self.engine_ids) == 1:
                    assert other.overtaken <= self.bypass_max

    def _pin_ended(self, engine_id: str, pinner: str | None) -> bool:
        now = {use.limits.engine_id: use.pinned_by for use in self.ledger.view().engines}
        return now[engine_id] != pinner

    @staticmethod
    def _costs_less(waiter: Waiter, other: Waiter) -> bool:
        """Whether `waiter` is cheaper than `other` somewhere, or priced where the other isn't."""
        for shape, cost in waiter.costs.items():
            theirs = other.costs.get(shape)
            if theirs is None or cost.blocks < theirs.blocks or cost.seqs < theirs.seqs:
                return True
            if cost.prefill_tokens < theirs.prefill_tokens:
                return True
        return False

    def _check_capacity(self, view: LedgerView) -> None:
        """Where something was granted, the sums are within the capacity after it."""
        granted = [grant for _, grant in self.decided if isinstance(grant, Grant)]
        for use in view.engines:
            mine = [grant for grant in granted if grant.engine_id == use.limits.engine_id]
            if mine:
                assert use.reserved.blocks <= use.limits.blocks
                assert use.reserved.seqs <= use.limits.seqs
                alone = sum(1 for grant in self._live_on(use) if grant.cost.prefill_tokens) <= 1
                assert (
                    alone
                    or use.reserved.prefill_tokens <= use.limits.prefill_tokens
                    or all(grant.cost.prefill_tokens == 0 for grant in mine)
                )

    def _live_on(self, use: EngineUse) -> list[Grant]:
        return [grant for grant in self.model.live.values() if grant.engine_id == use.limits.engine_id]

    def _check_sums(self, view: LedgerView) -> None:
        assert {use.limits.engine_id: use.limits for use in view.engines} == self.model.limits
        for use in view.engines:
            live = self._live_on(use)
            assert use.reserved == sum((grant.cost for grant in live), ZERO_COST)
            assert use.reservations == len(live)

    def _check_balance(self, view: LedgerView) -> None:
        totals = view.totals
        refused = sum(number for name, number in totals.items() if name.startswith("refused_"))
        assert view.queued == len(self.model.waiting)
        assert totals["arrivals"] == view.queued + totals["grants"] + totals["cancels"] + refused
        assert totals["grants"] == len(self.model.live) + totals["releases"] + totals["voided"]
        places = sorted(waiter.ticket.seq for waiter in self.model.waiting.values())
        for waiter in self.model.waiting.values():
            assert waiter.ticket.position == places.index(waiter.ticket.seq)

    def _check_pins(self, view: LedgerView) -> None:
        pinners = [use.pinned_by for use in view.engines if use.pinned_by is not None]
        assert len(pinners) == len(set(pinners))
        for use in view.engines:
            if use.pinned_by is not None:
                assert use.limits.accepting
                assert self.model.covers(self.model.waiting[use.pinned_by], use.limits)

    def _check_no_lost_wake_up(self, view: LedgerView) -> None:
        """Nobody within the scan waits while an engine is free for it."""
        waiting = sorted(self.model.waiting.items(), key=lambda item: item[1].ticket.seq)
        runnable = [(request_id, waiter) for request_id, waiter in waiting if self.model.could_start(waiter)]
        pinners = {use.pinned_by for use in view.engines}
        looked = 0
        for request_id, waiter in runnable:
            for use in view.engines:
                is_open = use.pinned_by in {None, request_id}
                assert not (is_open and self.model.fits_now(waiter, use)), f"{request_id} fits {use}"
            looked += request_id not in pinners
            if looked == self.scan_depth:
                break
