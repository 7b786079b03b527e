"""The ledger in memory and the scripts in Redis, driven with the same random operations.

Every answer is compared: places, grants with engine, price and order, refusals, the times until a budget covers a
request, and the whole view, with the virtual times of the classes to the last bit. The clock of the server is held.
On the Redis side the operations come from one process or from several that share the pool as if they were one. Beats,
also old ones, come in between and must change nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from integration.ledger.process import START_MS, Pool, Process, open_pool, until_settled
from kvgate.ledger.base import Ask, Grant, RateSpent, Served
from kvgate.ledger.charges import charge_of
from kvgate.ledger.core import LedgerCore
from kvgate.ledger.rules import Parts
from kvgate.ledger.scripts import Granted, Place
from kvgate_policies.types import CLASSES, EngineLimits, KVCost, TenantRules
from unit.ledger.machine import COSTS, HELD, PREFER, PRICES, USABLE, Z, expect
from unit.ledger.pool import OTHER_SHAPE, SHAPE

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kvgate.ledger.charges import Charge
    from kvgate_policies.types import TenantUse
    from support.redis_server import RedisServer

NOBODY = frozenset[str]()
AVOID = st.sampled_from([NOBODY, NOBODY, NOBODY, NOBODY, frozenset("a"), frozenset("b")])
DEPTH = st.sampled_from([20, 20, 20, 20, 3, 0])
RARELY = st.sampled_from([False, False, False, True])
SOME_PRICES = st.one_of(
    st.builds(
        lambda blocks, prefill_tokens, eighths, spread: {
            SHAPE: expect(KVCost(blocks, 1, prefill_tokens), eighths, spread)
        },
        st.sampled_from([20, 40, 60, 90]),
        st.sampled_from([0, 0, 10, 60]),
        HELD,
        st.sampled_from([0, 0, 1, 3]),
    ),
    PRICES,
)
"""Mostly such as fit some engine and soon fill it: what waits in vain is no test of the order."""
TENANTS = ("a", "b", "Zoë", "b b")
RULES = st.dictionaries(
    st.sampled_from(TENANTS),
    st.builds(
        TenantRules,
        weight=st.sampled_from([1, 1, 4, 0.3]),
        guarantee=st.sampled_from([0, 0, 0.2, 1 / 3]),
        limit=st.sampled_from([1, 1, 0.5, 0.7]),
        limit_tokens=st.sampled_from([None, None, None, 1600]),
        borrow=st.sampled_from([True, True, True, False]),
        tokens_per_minute=st.sampled_from([None, None, 70_000, 7]),
        requests_per_minute=st.sampled_from([None, None, 600, 7]),
    ),
)
ASKS = st.builds(
    Ask,
    request_id=st.just(""),
    tenant=st.sampled_from(TENANTS),
    costs=SOME_PRICES,
    queue_depth_max=DEPTH,
    seq=st.none(),
    priority=st.sampled_from(CLASSES),
    work=st.sampled_from([1, 7, 100, 3000]),
    tokens=st.sampled_from([0, 1, 50, 2000]),
    rank_in_ms=st.sampled_from([None, None, None, 30_000, 1000, 100_000]),
    force=st.sampled_from([False] * 7 + [True]),
    avoid=AVOID,
    z=Z,
    prefer=PREFER,
)
SERVED = st.one_of(
    st.none(), st.builds(Served, work=st.sampled_from([0, 7, 50, 5000]), tokens=st.sampled_from([0, 1, 3000]))
)


class Equivalence(RuleBasedStateMachine):
    """Subclasses give the server, and may change the bounds."""

    server: RedisServer
    bypass_max = 2
    scan_depth = 3
    grants_max = 3
    engine_ids: tuple[str, ...] = ("a", "b", "c")
    pids: tuple[str, ...] = ("p",)

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.ids = 0
        self.read = 0
        self.seqs: dict[int, int] = {}
        """Places in Redis → places in memory."""
        self.owners: dict[str, Process] = {}
        """Who waits or holds → its process."""
        self.grants: dict[str, Grant] = {}
        self.asks: dict[str, Ask] = {}
        self.limits: dict[str, EngineLimits] = {}
        self.now_ms = START_MS

    @initialize()
    def start(self) -> None:
        self.server.flush()
        bounds = {"bypass_max": self.bypass_max, "scan_depth": self.scan_depth, "grants_max": self.grants_max}
        self.core = LedgerCore(**bounds, tie=0)
        self.pool: Pool = self.runner.run(
            self.stack.enter_async_context(
                open_pool(self.server, clock_is_held=True, lease_ms=1 << 40, **bounds)
            )
        )
        self.processes = [self.runner.run(self.pool.join(pid)) for pid in self.pids]
        for engine_id in self.engine_ids:
            self._observe(EngineLimits(engine_id, SHAPE, 100, 16, 100), self.processes)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for request_id in list(self.owners):
                self.end(request_id)
            for process in self.processes:
                self.runner.run(process.read())
                self.runner.run(process.beat())
            view = self.runner.run(self.pool.scripts.view())
            assert view.queued == 0
            assert all((use.reservations, use.pinned_by) == (0, None) for use in view.engines)
            self.runner.run(self.stack.aclose())
        self.runner.close()

    # operations

    @rule(data=st.data(), burst=st.lists(ASKS, min_size=1, max_size=6))
    def reserve(self, data: Any, burst: list[Any]) -> None:
        for ask in burst:
            self.ids += 1
            self._reserve(self._draw_process(data), replace(ask, request_id=f"r{self.ids}"), None)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), costs=PRICES, elsewhere=st.booleans())
    def queue_again(self, data: Any, costs: Any, elsewhere: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.grants)))
        grant, process = self.grants[request_id], self.owners[request_id]
        self.end(request_id)
        avoid = frozenset({grant.engine_id}) if elsewhere else frozenset[str]()
        theirs = next(there for there, here in self.seqs.items() if here == grant.seq)
        kept = {"costs": costs, "queue_depth_max": 0, "avoid": avoid, "seq": grant.seq, "rank": grant.rank}
        self._reserve(process, replace(self.asks[request_id], **kept), theirs)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def end_one(self, data: Any) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.owners))))

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), served=SERVED)
    def release(self, data: Any, served: Any) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.grants))), served)

    def end(self, request_id: str, served: Served | None = None) -> None:
        """Cancel what waits and release what holds; a grant that was not read yet is read, and released."""
        process = self.owners.pop(request_id)
        grant = self.grants.pop(request_id, None)
        self.core.end(request_id, served)
        charge = charge_of(grant, served) if grant and served else None
        self._settle(self._end(process, request_id, charge))

    @rule(wait_ms=st.sampled_from([1, 10, 100, 1000, 8571, 60_000]))
    def wait(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.runner.run(self.pool.set_clock(self.now_ms))

    @rule(rules=RULES)
    def set_tenants(self, rules: Any) -> None:
        self.core.set_tenants(rules)
        self._settle(self.pool.scripts.set_tenants(Parts.of(rules)))

    async def _end(self, process: Process, request_id: str, charge: Charge | None) -> None:
        if request_id in process.waiting:
            _, was_queued = await process.scripts.cancel(process.pid, request_id)
            if was_queued:
                del process.waiting[request_id]
                return
            await process.read()
        if request_id in process.held:
            await process.release(request_id, charge)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), cost=COSTS)
    def renew(self, data: Any, cost: KVCost) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.grants)))
        self.grants[request_id] = replace(self.grants[request_id], cost=cost)
        self.core.renew(request_id, cost)
        self._settle(self._renew(self.owners[request_id], request_id, cost))

    async def _renew(self, process: Process, request_id: str, cost: KVCost) -> None:
        await process.read()
        await process.renew(request_id, cost)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), costs=st.lists(COSTS, min_size=1, max_size=5))
    def renew_many(self, data: Any, costs: list[KVCost]) -> None:
        """With the next heartbeat of the process that holds them."""
        process = self._draw_process(data)
        own = [key for key in sorted(self.grants) if self.owners[key] is process]
        renewed = dict(zip(own, costs, strict=False))
        for request_id, cost in renewed.items():
            self.grants[request_id] = replace(self.grants[request_id], cost=cost)
        self.core.renew_many(renewed)
        self._settle(self._renew_many(process, renewed))

    async def _renew_many(self, process: Process, renewed: dict[str, KVCost]) -> None:
        await process.read()
        for request_id, cost in renewed.items():
            process.held[request_id] = replace(process.held[request_id], cost=cost)
        await process.beat()

    @precondition(lambda self: len(self.owners) > len(self.grants))
    @rule(data=st.data(), costs=PRICES)
    def reprice(self, data: Any, costs: Any) -> None:
        request_id = data.draw(st.sampled_from(sorted(set(self.owners) - set(self.grants))))
        process = self.owners[request_id]
        self.core.reprice(request_id, costs)
        self._settle(process.scripts.reprice(process.pid, request_id, costs))

    @rule(
        data=st.data(),
        blocks=st.sampled_from([50, 100, 100, 200]),
        seqs=st.sampled_from([2, 4, 16, 16]),
        prefill_tokens=st.sampled_from([50, 100, 1000]),
        stops=RARELY,
        differs=RARELY,
        usable=USABLE,
    )
    def observe(
        self,
        data: Any,
        blocks: int,
        seqs: int,
        prefill_tokens: int,
        stops: bool,
        differs: bool,
        usable: int | None,
    ) -> None:
        engine_id = data.draw(st.sampled_from(self.engine_ids))
        shape = OTHER_SHAPE if differs else SHAPE
        limits = EngineLimits(engine_id, shape, blocks, seqs, prefill_tokens, not stops, usable)
        before = self.limits.get(engine_id)
        is_news_for_each = before is None or before.accepting != limits.accepting
        if is_news_for_each and self._is_one_of_several_waiting():
            return
        self._observe(limits, self.processes if is_news_for_each else [self._draw_process(data)])

    @precondition(lambda self: self.limits)
    @rule(data=st.data(), usable=USABLE)
    def trust(self, data: Any, usable: int | None) -> None:
        engine_id = data.draw(st.sampled_from(sorted(self.limits)))
        self._observe(replace(self.limits[engine_id], blocks_usable=usable), [self._draw_process(data)])

    def _observe(self, limits: EngineLimits, who: list[Process]) -> None:
        self.limits[limits.engine_id] = limits
        self.core.observe(limits)
        for process in who:
            self._settle(process.observe(limits), compare=process is who[-1])

    def _is_one_of_several_waiting(self) -> bool:
        """Each process learns of an engine in a step of its own: in memory it would be one for all."""
        return len(self.processes) > 1 and len(self.owners) > len(self.grants)

    @precondition(lambda self: self.limits)
    @rule(data=st.data(), is_meant=RARELY, is_forgotten=RARELY)
    def lose(self, data: Any, is_meant: bool, is_forgotten: bool) -> None:
        engine_id = data.draw(st.sampled_from(sorted(self.limits)))
        if not is_meant or self._is_one_of_several_waiting():
            return
        for request_id in [key for key, grant in self.grants.items() if grant.engine_id == engine_id]:
            del self.grants[request_id], self.owners[request_id]
        if is_forgotten:
            del self.limits[engine_id]
            self.core.forget(engine_id)
        else:
            self.core.void(engine_id)
        for process in self.processes:
            self._settle(self._lose(process, engine_id, is_forgotten), compare=process is self.processes[-1])

    async def _lose(self, process: Process, engine_id: str, is_forgotten: bool) -> None:
        await process.read()
        lost = [request_id for request_id, grant in process.held.items() if grant.engine_id == engine_id]
        for request_id in lost:
            del process.held[request_id]
        if is_forgotten:
            process.closed.discard(engine_id)
            await process.scripts.forget(process.pid, engine_id)
        else:
            await process.scripts.void(process.pid, engine_id)

    @rule(data=st.data(), after_reading=st.booleans())
    def beat(self, data: Any, after_reading: bool) -> None:
        process = self._draw_process(data)
        if after_reading:
            self.runner.run(process.read())
        self._settle(process.beat())

    @rule(data=st.data())
    def ask_again(self, data: Any) -> None:
        """The answer to a reserve was lost, and it is sent again: the same place, and nothing changes."""
        unanswered = [
            request_id for request_id, process in self.owners.items() if request_id in process.waiting
        ]
        if not unanswered:
            return
        process = self.owners[request_id := data.draw(st.sampled_from(sorted(unanswered)))]
        ask = process.waiting[request_id]
        _, place = self.runner.run(process.scripts.reserve(process.pid, ask, ack=process.ack))
        assert isinstance(place, Place)
        assert place.seq in self.seqs
        self._settle(process.beat())

    # the machine itself

    def _draw_process(self, data: Any) -> Process:
        place: int = data.draw(st.integers(0, len(self.processes) - 1))
        return self.processes[place]

    def _reserve(self, process: Process, ask: Ask, theirs: int | None) -> None:
        reply, answer = self.runner.run(process.ask(replace(ask, seq=theirs)))
        assert reply.now_ms == self.now_ms
        expected = self.core.reserve(ask, self.now_ms / 1000)
        self.asks[ask.request_id] = ask
        if isinstance(answer, Place):
            assert isinstance(expected, int), expected
            assert theirs in {None, answer.seq}
            self.owners[ask.request_id] = process
            self.seqs[answer.seq] = expected
        elif isinstance(expected, RateSpent):
            assert isinstance(answer, RateSpent)
            assert answer.budget == expected.budget
            assert answer.retry_after_s == expected.retry_after_s, f"there {answer}, here {expected}"
        else:
            assert answer == expected, f"there {answer}, here {expected}"
        self._settle(process.beat())
        in_order = sorted(self.seqs)
        assert [self.seqs[seq] for seq in in_order] == sorted(self.seqs.values())

    def _settle(self, operation: Coroutine[Any, Any, Any], *, compare: bool = True) -> None:
        """Run what was asked of Redis and go on on both sides until nothing is unfinished; then compare."""
        self.runner.run(operation)
        self.runner.run(until_settled(self.pool))
        while self.core.unfinished:
            self.core.go_on()
        if compare:
            self._compare_decisions()
            self._compare_views()
        faults = self.runner.run(self.pool.scripts.verify())
        assert not faults, faults

    def _compare_decisions(self) -> None:
        entries = self.runner.run(self.pool.stream.read())
        new, self.read = entries[self.read :], len(entries)
        grants, refusals = [], {}
        for request_id, decision in self.core.take_decisions():
            if isinstance(decision, Grant):
                grants.append(decision)
                self.grants[request_id] = decision
            else:
                refusals[request_id] = decision
                del self.owners[request_id]
        theirs = [self._as_here(entry) for entry in new if isinstance(entry, Granted)]
        assert theirs == grants, f"there {theirs}\nhere {grants}"
        assert {e.request_id: e.refusal for e in new if not isinstance(e, Granted)} == refusals
        gseqs = [entry.gseq for entry in entries if isinstance(entry, Granted)]
        assert gseqs == sorted(set(gseqs))

    def _as_here(self, granted: Granted) -> Grant:
        ask = self.asks[granted.request_id]
        assert granted.tenant == ask.tenant
        return Grant(
            granted.request_id,
            granted.engine_id,
            granted.shape,
            granted.cost,
            self.seqs[granted.seq],
            ask.tenant,
            ask.priority,
            ask.work,
            ask.tokens,
            granted.rank,
            granted.forced,
        )

    def _compare_views(self) -> None:
        here, there = self.core.view(0.0), self.runner.run(self.pool.scripts.view())
        assert there.engines == here.engines, f"there {there.engines}\nhere {here.engines}"
        assert there.queued == here.queued
        assert {name: there.totals[name] for name in here.totals} == here.totals
        uses, expected_uses = _without_waits(there.tenants), _without_waits(here.tenants)
        assert uses == expected_uses, f"there {uses}\nhere {expected_uses}"
        waiting = sorted(set(self.owners) - set(self.grants))
        expected = [self.core.position(request_id) for request_id in waiting]
        assert self.runner.run(self.pool.scripts.ahead(waiting)) == expected
        self._compare_turns()

    def _compare_turns(self) -> None:
        shares = self.runner.run(self.pool.shares())
        turns = self.core._turns
        numbers = [float(word) for word in shares[10:16]]
        assert numbers == [*turns.virtual, *turns.overtaken], f"there {numbers}, here {turns.virtual}"


def _without_waits(tenants: tuple[TenantUse, ...]) -> dict[str, TenantUse]:
    return {use.name: replace(use, oldest_wait_s=0.0) for use in tenants}
