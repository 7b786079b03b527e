"""A ledger driven with random operations, and what must hold after each of them.

The machine looks from outside: at the answers, at the tickets, and at `view`. Its own book is naive:
dictionaries and sums over all of it. What it checks stands in `_check_*`, one rule each.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal, Served
from kvgate_policies.fairness import FLOWS_MAX, PoolSize, guaranteed_blocks, limit_blocks
from kvgate_policies.forecast_fit import Z_DEFAULT, ZVector, z_of
from kvgate_policies.occupancy import GRID, SCALE, Occupancy
from kvgate_policies.types import (
    ZERO_COST,
    EngineLimits,
    EngineShape,
    KVCost,
    PriorityClass,
    TenantRules,
)
from unit.ledger.pool import OTHER_SHAPE, SHAPE, turns

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from kvgate.ledger.base import Ledger, Ticket
    from kvgate_policies.types import EngineUse, LedgerView


def expect(cost: KVCost, eighths: tuple[int, ...] | None, spread: int) -> KVCost:
    """The cost with a forecast: parts of the peak that are held along the grid, and a deviation of as many eighths."""
    if eighths is None:
        return cost
    parts = (eighths[len(eighths) * point // len(GRID)] for point in range(len(GRID)))
    means = tuple(SCALE * cost.blocks * part // 8 for part in parts)
    variance = SCALE * (cost.blocks * spread) ** 2 // 64
    return replace(cost, expected=Occupancy(means, (variance,) * len(GRID)))


def guaranteed_only(costs: Mapping[Any, KVCost]) -> dict[Any, KVCost]:
    return {key: replace(cost, expected=None) for key, cost in costs.items()}


HELD = st.sampled_from(
    [None, None, (1, 2, 4, 8, 0), (3, 3, 3, 3, 3), (8, 8, 8, 8, 8), (6, 4, 0, 0, 0), (0, 0, 0, 1, 8)]
)
"""Half of them much less than their peak; one is its peak, and so as good as guaranteed."""
COSTS = st.builds(
    expect,
    st.builds(
        KVCost,
        blocks=st.sampled_from([1, 5, 20, 20, 60, 100, 150]),
        seqs=st.sampled_from([1, 1, 1, 2, 5]),
        prefill_tokens=st.sampled_from([0, 10, 60, 120]),
    ),
    HELD,
    st.sampled_from([0, 0, 1, 4]),
)
USABLE = st.sampled_from([None, None, None, 90, 40, 0])
Z = st.sampled_from([Z_DEFAULT, Z_DEFAULT, z_of(0.5), z_of(0.2), z_of(0.0001)])
PREFER = st.sampled_from([(), (), ("a",), ("b", "a"), ("c",), ("gone", "b")])
PRICES = st.one_of(
    COSTS.map(lambda cost: {SHAPE: cost}),
    st.builds(lambda one, other: {SHAPE: one, OTHER_SHAPE: other}, COSTS, COSTS),
)
TENANTS = ("x", "y", "z")
PRIORITIES = (PriorityClass.INTERACTIVE, PriorityClass.BATCH)
assert len(TENANTS) * len(PRIORITIES) <= FLOWS_MAX, "a walk reaches all flows"
RANKS_IN_MS = (None, 10**7, 2 * 10**7)
"""So far apart that no time passes between them."""
RULES = st.builds(
    TenantRules,
    weight=st.sampled_from([0.5, 1.0, 4.0]),
    limit=st.sampled_from([1.0, 1.0, 0.6, 0.3]),
    limit_tokens=st.sampled_from([None, None, 16 * 60]),
    tokens_per_minute=st.sampled_from([None, None, None, 1000]),
    requests_per_minute=st.sampled_from([None, None, None, 5]),
)
GUARANTEES = st.sampled_from([(0.0, True), (0.0, True), (0.3, True), (0.3, False), (0.1, False)])
POLICIES = st.dictionaries(
    st.sampled_from(TENANTS),
    st.builds(lambda rules, shares: replace(rules, guarantee=shares[0], borrow=shares[1]), RULES, GUARANTEES),
)

ASKS = st.tuples(
    st.builds(
        Ask,
        request_id=st.just(""),
        tenant=st.sampled_from(TENANTS),
        costs=PRICES,
        queue_depth_max=st.sampled_from([0, 2, 5, 20, 20]),
        priority=st.sampled_from(PRIORITIES),
        work=st.sampled_from([1, 50, 400]),
        tokens=st.sampled_from([0, 30, 300]),
        force=st.sampled_from([False] * 9 + [True]),
        avoid=st.sampled_from([frozenset(), frozenset(), frozenset(), frozenset("a"), frozenset("b")]),
        z=Z,
        prefer=PREFER,
    ),
    st.sampled_from([0, 0, 0, 1, 2]),
)
"""A request without its id, and which of the ranks it has."""


@dataclass
class Waiter:
    ticket: Ticket
    ask: Ask
    costs: Mapping[EngineShape, KVCost]
    place: tuple[int, int]
    """Where its rank is among the three there are, and its seq."""
    overtaken: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def avoid(self) -> frozenset[str]:
        return self.ask.avoid

    @property
    def flow(self) -> tuple[PriorityClass, str]:
        return self.ask.priority, self.ask.tenant


@dataclass
class Model:
    """What the machine knows: who waits, who runs, which engines there are."""

    limits: dict[str, EngineLimits] = field(default_factory=dict)
    waiting: dict[str, Waiter] = field(default_factory=dict)
    live: dict[str, Grant] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    closed: Refusal | None = None
    ranks: dict[str, int] = field(default_factory=dict)
    """Request → which of the ranks it has."""
    rules: dict[str, TenantRules] = field(default_factory=dict)

    @property
    def pool(self) -> PoolSize:
        sizes = [limits.shape.block_size for limits in self.limits.values()]
        return PoolSize(sum(limits.blocks for limits in self.limits.values()), min(sizes, default=1))

    def rules_of(self, tenant: str) -> TenantRules:
        return self.rules.get(tenant, TenantRules())

    def partition(self, tenant: str) -> int:
        rules = self.rules_of(tenant)
        return 0 if rules.borrow else guaranteed_blocks(rules, self.pool)

    def limit(self, tenant: str) -> int | None:
        others = sum(self.partition(other) for other in TENANTS if other != tenant)
        return limit_blocks(self.rules_of(tenant), self.pool, others)

    def use(self, tenant: str) -> int:
        return sum(grant.cost.use_blocks for grant in self.live.values() if grant.tenant == tenant)

    def set_aside(self, tenant: str) -> int:
        """Blocks that partitions of others keep from a tenant."""
        return sum(max(0, self.partition(other) - self.use(other)) for other in TENANTS if other != tenant)

    def queued_of(self, tenant: str) -> int:
        return sum(waiter.ask.tenant == tenant for waiter in self.waiting.values())

    def within_limit(
        self, tenant: str, costs: Mapping[EngineShape, KVCost], use: int
    ) -> dict[EngineShape, KVCost]:
        limit = self.limit(tenant)
        return {
            shape: cost for shape, cost in costs.items() if limit is None or use + cost.use_blocks <= limit
        }

    def could_start(
        self,
        waiter: Waiter,
        engine_ids: set[str] | None = None,
        costs: Mapping[EngineShape, KVCost] | None = None,
    ) -> bool:
        """Whether some accepting engine would hold it when empty."""
        costs = waiter.costs if costs is None else costs
        return any(
            limits.accepting and self.covers(costs, waiter.avoid, limits)
            for limits in self.limits.values()
            if engine_ids is None or limits.engine_id in engine_ids
        )

    @staticmethod
    def covers(costs: Mapping[EngineShape, KVCost], avoid: frozenset[str], limits: EngineLimits) -> bool:
        cost = costs.get(limits.shape)
        return (
            cost is not None
            and limits.engine_id not in avoid
            and cost.blocks <= limits.blocks
            and cost.seqs <= limits.seqs
        )

    def never_fits(self, costs: Mapping[EngineShape, KVCost], tenant: str | None = None) -> bool:
        """By capacity; with a tenant, by its limit too."""
        priced = [limits for limits in self.limits.values() if limits.shape in costs]
        allowed = costs if tenant is None else self.within_limit(tenant, costs, 0)
        return bool(priced) and not any(self.covers(allowed, frozenset(), limits) for limits in priced)

    def fits_now(self, waiter: Waiter, costs: Mapping[EngineShape, KVCost], use: EngineUse) -> bool:
        limits, reserved = use.limits, use.reserved
        if not limits.accepting or not self.covers(costs, waiter.avoid, limits):
            return False
        cost = costs[limits.shape]
        return use.reservations == 0 or (
            self.has_blocks(reserved, cost, limits, waiter.ask.z)
            and reserved.seqs + cost.seqs <= limits.seqs
            and (
                reserved.prefill_tokens == 0
                or reserved.prefill_tokens + cost.prefill_tokens <= limits.prefill_tokens
            )
        )

    @staticmethod
    def has_blocks(reserved: KVCost, cost: KVCost, limits: EngineLimits, z: ZVector) -> bool:
        if reserved.blocks + cost.blocks <= limits.blocks_open:
            return True
        total = reserved.occupancy + cost.occupancy
        return all(
            mean + factor * math.sqrt(SCALE * variance) <= SCALE * limits.blocks_open
            for mean, variance, factor in zip(total.means, total.variances, z, strict=True)
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

    @initialize(rules=POLICIES, forecasts=st.booleans())
    def start(self, rules: dict[str, TenantRules], forecasts: bool) -> None:
        self.forecasts = forecasts
        self.ledger = self.runner.run(self._open())
        self.before = self.ledger.view()
        for engine_id in self.engine_ids:
            self._observe(EngineLimits(engine_id, SHAPE, 100, 16, 100))
        self.set_tenants(rules)

    async def _open(self) -> Ledger:
        return self.open()

    # operations

    @rule(burst=st.lists(ASKS, min_size=1, max_size=6))
    def reserve(self, burst: list[tuple[Ask, int]]) -> None:
        for drawn, rank in burst:
            self.ids += 1
            ask = replace(drawn, request_id=f"r{self.ids}", rank_in_ms=RANKS_IN_MS[rank])
            ask = replace(ask, costs=self._meant(ask.costs))
            self.model.ranks[ask.request_id] = rank
            self._reserve(ask)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), costs=PRICES, elsewhere=st.booleans())
    def queue_again(self, data: Any, costs: dict[EngineShape, KVCost], elsewhere: bool) -> None:
        grant = data.draw(st.sampled_from(sorted(self.model.live.values(), key=lambda grant: grant.seq)))
        self.release(grant.request_id)
        avoid = frozenset({grant.engine_id}) if elsewhere else frozenset[str]()
        costs = self._meant(costs)
        again = Ask(grant.request_id, grant.tenant, costs, 0, grant.seq, grant.priority, grant.work)
        self._reserve(replace(again, tokens=grant.tokens, rank=grant.rank, avoid=avoid))

    @rule(rules=POLICIES)
    def set_tenants(self, rules: dict[str, TenantRules]) -> None:
        self.model.rules = rules
        self._step(self.ledger.set_tenants(rules))

    @precondition(lambda self: self.model.live)
    @rule(
        data=st.data(), served=st.builds(Served, st.sampled_from([0, 50, 900]), st.sampled_from([0, 30, 600]))
    )
    def serve(self, data: Any, served: Served) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.model.live)))
        self._forget_request(request_id)
        self._step(self.ledger.release(request_id, served))

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
        cost = self._meant({"": cost})[""]
        self.model.live[request_id] = replace(self.model.live[request_id], cost=cost)
        self._step(self.ledger.renew(request_id, cost))

    @precondition(lambda self: self.model.live)
    @rule(costs=st.lists(COSTS, min_size=1, max_size=5))
    def renew_many(self, costs: list[KVCost]) -> None:
        renewed = dict(zip(sorted(self.model.live), costs, strict=False))
        renewed = self._meant(renewed)
        for request_id, cost in renewed.items():
            self.model.live[request_id] = replace(self.model.live[request_id], cost=cost)
        self._step(self.ledger.renew_many({**renewed, "nobody": KVCost(1, 1, 0)}))

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data(), costs=PRICES)
    def reprice(self, data: Any, costs: dict[EngineShape, KVCost]) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.model.waiting)))
        costs = self._meant(costs)
        self.model.waiting[request_id].costs = costs
        self._step(self.ledger.reprice(request_id, costs))

    @rule(
        data=st.data(),
        blocks=st.sampled_from([50, 100, 100, 200]),
        seqs=st.sampled_from([2, 4, 16, 16]),
        prefill_tokens=st.sampled_from([50, 100, 1000]),
        accepting=st.sampled_from([True, True, True, False]),
        shape=st.sampled_from([SHAPE, SHAPE, OTHER_SHAPE]),
        usable=USABLE,
    )
    def observe(
        self,
        data: Any,
        blocks: int,
        seqs: int,
        prefill_tokens: int,
        accepting: bool,
        shape: EngineShape,
        usable: int | None,
    ) -> None:
        engine_id = data.draw(st.sampled_from(self.engine_ids))
        self._observe(EngineLimits(engine_id, shape, blocks, seqs, prefill_tokens, accepting, usable))

    @precondition(lambda self: self.model.limits)
    @rule(data=st.data(), usable=USABLE)
    def trust(self, data: Any, usable: int | None) -> None:
        engine_id = data.draw(st.sampled_from(sorted(self.model.limits)))
        self._observe(replace(self.model.limits[engine_id], blocks_usable=usable))

    def _observe(self, limits: EngineLimits) -> None:
        self.model.limits[limits.engine_id] = limits
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

    def _meant(self, costs: Mapping[Any, KVCost]) -> dict[Any, KVCost]:
        """As drawn; or where the machine has no forecasts, their peaks."""
        return dict(costs) if self.forecasts else guaranteed_only(costs)

    def _known(self) -> list[str]:
        return sorted([*self.model.waiting, *self.model.live, *self.model.ended[-3:]])

    def _forget_request(self, request_id: str) -> None:
        """Its owner ends it: no decision may arrive for it after this step began."""
        self.model.waiting.pop(request_id, None)
        self.model.live.pop(request_id, None)
        self.model.ended.append(request_id)

    def _reserve(self, ask: Ask) -> None:
        model = self.model
        queued_before = model.queued_of(ask.tenant)
        expected = self._expected(ask)
        answer = self._step(self.ledger.reserve(ask), ask)
        full = ask.seq is None and queued_before >= ask.queue_depth_max
        if expected is not None:
            assert answer is expected
        elif isinstance(answer, RateSpent):
            assert ask.seq is None
            assert getattr(model.rules_of(ask.tenant), answer.budget) is not None
            assert answer.retry_after_s > 0
        elif answer is Refusal.QUEUE_FULL:
            assert full
        elif answer is Refusal.NO_ENGINE:
            assert ask.force
            assert not any(limits.accepting and limits.shape in ask.costs for limits in model.limits.values())
        else:
            assert not isinstance(answer, Refusal), answer
            assert ask.seq == answer.seq if ask.seq is not None else answer.seq > self.seq_last
            self.seq_last = max(self.seq_last, answer.seq)
            assert not (full and ask.request_id in model.waiting)
            assert not ask.force or ask.request_id in model.live
        if ask.force and isinstance(answer, Refusal | RateSpent):
            assert answer in {Refusal.NO_ENGINE, model.closed}

    def _expected(self, ask: Ask) -> Refusal | None:
        model = self.model
        if model.closed is not None:
            return model.closed
        if model.never_fits(ask.costs, ask.tenant) and not ask.force:
            return Refusal.NEVER_FITS
        return Refusal.NO_ENGINE if set(model.limits) <= ask.avoid else None

    def _step(self, operation: Coroutine[Any, Any, Any], ask: Ask | None = None) -> Any:
        """Run one operation and everything it set off, then check what must hold."""
        return self.runner.run(self._run(operation, ask))

    async def _run(self, operation: Coroutine[Any, Any, Any], ask: Ask | None) -> Any:
        self.decided.clear()
        answer = await operation
        if ask is not None and not isinstance(answer, Refusal | RateSpent):
            place = self.model.ranks[ask.request_id], answer.seq
            self.model.waiting[ask.request_id] = Waiter(answer, ask, ask.costs, place)
        for request_id, waiter in self.model.waiting.items():
            if waiter.task is None:
                waiter.task = asyncio.create_task(self._watch(request_id, waiter.ticket))
        await self.settle()
        self._take_decisions()
        view = self.ledger.view()
        for check in (
            self._check_sums,
            self._check_balance,
            self._check_tenants,
            self._check_pins,
            self._check_no_lost_wake_up,
        ):
            check(view)
        self.check_inside()
        self.before = view
        return answer

    def check_inside(self) -> None:
        """For a subclass that can look into its ledger."""

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
            shape = self.model.limits[decision.engine_id].shape
            assert (decision.shape, decision.cost) == (shape, waiter.costs[shape])
            assert (decision.priority, decision.tenant) == waiter.flow
            assert (decision.work, decision.tokens) == (waiter.ask.work, waiter.ask.tokens)
            assert decision.forced is None or waiter.ask.force
            self.model.live[request_id] = decision
            if decision.forced is None:
                assert decision.engine_id not in waiter.avoid
                self._check_order(decision, waiter)
        self._check_capacity(view)
        self._check_limits()

    def _check_order(self, grant: Grant, waiter: Waiter) -> None:
        """In its flow: the order among those that cost as much, the bound on being passed, and nothing new on an
        engine that one before it has pinned.
        """
        before = [
            other
            for other in self.model.waiting.values()
            if other.flow == waiter.flow and other.place < waiter.place
        ]
        pins = {use.limits.engine_id: use.pinned_by for use in self.before.engines if use.pinned_by}
        quiet = not pins and self.ledger.view().totals["pins"] == self.before.totals["pins"]
        pinner = pins.get(grant.engine_id)
        if pinner in {other.ticket.request_id for other in before}:
            assert self._pin_ended(grant.engine_id, pinner)
        for other in before:
            if quiet and not self._costs_less(waiter, other):
                assert not other.avoid <= waiter.avoid, f"{grant} passed {other}"
            if self.model.could_start(other, {grant.engine_id}):
                other.overtaken += 1
                if len(self.engine_ids) == 1:
                    assert other.overtaken <= self.bypass_max

    def _check_limits(self) -> None:
        """Where a tenant was granted something, it is within its limit, and the partitions of others are whole."""
        model = self.model
        granted = [grant for _, grant in self.decided if isinstance(grant, Grant)]
        forced = {grant.tenant for grant in granted if grant.forced is not None}
        for tenant in {grant.tenant for grant in granted} - forced:
            limit = model.limit(tenant)
            assert limit is None or model.use(tenant) <= limit
            if (
                any(model.partition(other) for other in TENANTS)
                and not forced
                and not model.partition(tenant)
            ):
                total = sum(model.use(other) for other in TENANTS)
                assert total <= model.pool.blocks - model.set_aside(tenant)

    def _pin_ended(self, engine_id: str, pinner: str | None) -> bool:
        now = {use.limits.engine_id: use.pinned_by for use in self.ledger.view().engines}
        return now[engine_id] != pinner

    @staticmethod
    def _costs_less(waiter: Waiter, other: Waiter) -> bool:
        """Whether `waiter` is cheaper than `other` somewhere, takes more risk, or is priced where the other isn't."""
        if any(mine < theirs for mine, theirs in zip(waiter.ask.z, other.ask.z, strict=True)):
            return True
        for shape, cost in waiter.costs.items():
            theirs = other.costs.get(shape)
            if theirs is None or cost.blocks < theirs.blocks or cost.seqs < theirs.seqs:
                return True
            if min((cost.occupancy - theirs.occupancy).to_numbers()) < 0:
                return True
            if cost.prefill_tokens < theirs.prefill_tokens:
                return True
        return False

    def _check_capacity(self, view: LedgerView) -> None:
        """Where something was granted, the sums are within the capacity after it."""
        granted = [grant for _, grant in self.decided if isinstance(grant, Grant)]
        for use in view.engines:
            mine = [grant for grant in granted if grant.engine_id == use.limits.engine_id]
            if mine and all(grant.forced is None for grant in mine):
                assert (
                    use.reservations == 1
                    or max(use.reserved.occupancy.means) <= SCALE * use.limits.blocks_open
                )
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
        for waiter in self.model.waiting.values():
            ahead = [
                other
                for other in self.model.waiting.values()
                if other.flow == waiter.flow and other.place < waiter.place
            ]
            assert waiter.ticket.position == len(ahead)

    def _check_tenants(self, view: LedgerView) -> None:
        model = self.model
        shown = {use.name: use for use in view.tenants}
        for tenant in TENANTS:
            holds = sum(grant.tenant == tenant for grant in model.live.values())
            if tenant not in shown:
                assert tenant not in model.rules
                assert holds == model.queued_of(tenant) == 0
                continue
            use, limit = shown[tenant], model.limit(tenant)
            assert use.rules == model.rules_of(tenant)
            assert (use.blocks, use.reservations) == (model.use(tenant), holds)
            assert use.queued == model.queued_of(tenant)
            assert use.blocks_guaranteed == guaranteed_blocks(use.rules, model.pool)
            assert use.blocks_limit == (model.pool.blocks if limit is None else limit)

    def _check_pins(self, view: LedgerView) -> None:
        pinners = [use.pinned_by for use in view.engines if use.pinned_by is not None]
        assert len(pinners) == len(set(pinners))
        for use in view.engines:
            if use.pinned_by is not None:
                assert use.limits.accepting
                waiter = self.model.waiting[use.pinned_by]
                assert self.model.covers(waiter.costs, waiter.avoid, use.limits)

    def _check_no_lost_wake_up(self, view: LedgerView) -> None:
        """Nobody within the scan of its flow waits while an engine and its tenant's shares are free for it."""
        flows: dict[tuple[PriorityClass, str], list[Waiter]] = {}
        for waiter in sorted(self.model.waiting.values(), key=lambda waiter: waiter.place):
            if self.model.could_start(waiter):
                flows.setdefault(waiter.flow, []).append(waiter)
        pinners = {use.pinned_by for use in view.engines}
        for waiters in flows.values():
            looked = 0
            for waiter in waiters:
                costs = self.model.within_limit(
                    waiter.ask.tenant, waiter.costs, self.model.use(waiter.ask.tenant)
                )
                if not self.model.could_start(waiter, costs=costs):
                    break
                self._check_waits_for_room(waiter, self._open_to(waiter, costs), view)
                looked += waiter.ticket.request_id not in pinners
                if looked == self.scan_depth:
                    break

    def _open_to(self, waiter: Waiter, costs: Mapping[EngineShape, KVCost]) -> dict[EngineShape, KVCost]:
        """The prices that the partitions of others leave room for, whatever else may be kept free."""
        model = self.model
        if not any(model.partition(tenant) for tenant in TENANTS):
            return dict(costs)
        room = model.pool.blocks - sum(model.use(tenant) for tenant in TENANTS)
        room -= model.set_aside(waiter.ask.tenant)
        if not model.partition(waiter.ask.tenant):
            room -= sum(
                max(cost.use_blocks for cost in other.costs.values())
                for other in model.waiting.values()
                if other is not waiter
            )
        return {shape: cost for shape, cost in costs.items() if cost.use_blocks <= room}

    def _check_waits_for_room(
        self, waiter: Waiter, costs: Mapping[EngineShape, KVCost], view: LedgerView
    ) -> None:
        for use in view.engines:
            is_open = use.pinned_by in {None, waiter.ticket.request_id}
            assert not (is_open and self.model.fits_now(waiter, costs, use)), f"{waiter} fits {use}"
