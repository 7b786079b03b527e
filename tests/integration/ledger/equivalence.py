"""The ledger in memory and the scripts in Redis, driven with the same random operations.

Every answer is compared: places, grants with engine, price and order, refusals, and the whole view. On the Redis
side the operations come from one process or from several that share the pool as if they were one. Beats, also
old ones, come in between and must change nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from integration.ledger.process import Pool, Process, open_pool, until_settled
from kvgate.ledger.base import Ask, Grant, Refusal
from kvgate.ledger.core import LedgerCore
from kvgate.ledger.scripts import Granted
from kvgate_policies.types import EngineLimits, KVCost
from unit.ledger.machine import COSTS, PRICES
from unit.ledger.pool import OTHER_SHAPE, SHAPE

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from support.redis_server import RedisServer

NOBODY = frozenset[str]()
AVOID = st.sampled_from([NOBODY, NOBODY, NOBODY, NOBODY, frozenset("a"), frozenset("b")])
DEPTH = st.sampled_from([20, 20, 20, 20, 3, 0])
RARELY = st.sampled_from([False, False, False, True])
SOME_PRICES = st.one_of(
    st.builds(
        lambda blocks, prefill_tokens: {SHAPE: KVCost(blocks, 1, prefill_tokens)},
        st.sampled_from([20, 40, 60, 90]),
        st.sampled_from([0, 0, 10, 60]),
    ),
    PRICES,
)
"""Mostly such as fit some engine and soon fill it: what waits in vain is no test of the order."""


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
        self.limits: dict[str, EngineLimits] = {}

    @initialize()
    def start(self) -> None:
        self.server.flush()
        bounds = {"bypass_max": self.bypass_max, "scan_depth": self.scan_depth, "grants_max": self.grants_max}
        self.core = LedgerCore(**bounds, tie=0)
        self.pool: Pool = self.runner.run(self.stack.enter_async_context(open_pool(self.server, **bounds)))
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

    @rule(data=st.data(), burst=st.lists(st.tuples(SOME_PRICES, DEPTH, AVOID), min_size=1, max_size=6))
    def reserve(self, data: Any, burst: list[Any]) -> None:
        for costs, depth, avoid in burst:
            self.ids += 1
            ask = Ask(f"r{self.ids}", "tenant", costs, depth, None, avoid)
            self._reserve(self._draw_process(data), ask, None)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), costs=PRICES, elsewhere=st.booleans())
    def queue_again(self, data: Any, costs: Any, elsewhere: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.grants)))
        grant, process = self.grants[request_id], self.owners[request_id]
        self.end(request_id)
        avoid = frozenset({grant.engine_id}) if elsewhere else frozenset[str]()
        theirs = next(there for there, here in self.seqs.items() if here == grant.seq)
        self._reserve(process, Ask(request_id, "tenant", costs, 0, grant.seq, avoid), theirs)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def end_one(self, data: Any) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.owners))))

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.grants))))

    def end(self, request_id: str) -> None:
        """Cancel what waits and release what holds; a grant that was not read yet is read, and released."""
        process = self.owners.pop(request_id)
        self.grants.pop(request_id, None)
        self.core.end(request_id)
        self._settle(self._end(process, request_id))

    async def _end(self, process: Process, request_id: str) -> None:
        if request_id in process.waiting:
            _, was_queued = await process.scripts.cancel(process.pid, request_id)
            if was_queued:
                del process.waiting[request_id]
                return
            await process.read()
        if request_id in process.held:
            await process.release(request_id)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), cost=COSTS)
    def renew(self, data: Any, cost: KVCost) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.grants)))
        self.grants[request_id] = replace(self.grants[request_id], cost=cost)
        self.core.renew(request_id, cost)
        self._settle(self._renew(self.owners[request_id], request_id, cost))

    async def _renew(self, process: Process, request_id: str, cost: KVCost) -> None:
        await process.read()
        grant = process.held[request_id]
        process.held[request_id] = replace(grant, cost=cost)
        process.rel += 1
        freed = grant.cost - cost
        await process.scripts.release(process.pid, process.rel, grant.engine_id, freed, reservations=0)

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
    )
    def observe(
        self, data: Any, blocks: int, seqs: int, prefill_tokens: int, stops: bool, differs: bool
    ) -> None:
        engine_id = data.draw(st.sampled_from(self.engine_ids))
        shape = OTHER_SHAPE if differs else SHAPE
        limits = EngineLimits(engine_id, shape, blocks, seqs, prefill_tokens, not stops)
        before = self.limits.get(engine_id)
        is_news_for_each = before is None or before.accepting != limits.accepting
        if is_news_for_each and self._is_one_of_several_waiting():
            return
        self._observe(limits, self.processes if is_news_for_each else [self._draw_process(data)])

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
        _, seq = self.runner.run(process.scripts.reserve(process.pid, ask, ack=process.ack))
        assert isinstance(seq, int)
        assert seq in self.seqs
        self._settle(process.beat())

    # the machine itself

    def _draw_process(self, data: Any) -> Process:
        place: int = data.draw(st.integers(0, len(self.processes) - 1))
        return self.processes[place]

    def _reserve(self, process: Process, ask: Ask, theirs: int | None) -> None:
        expected = self.core.reserve(ask, 0.0)
        if not isinstance(expected, Refusal):
            self.owners[ask.request_id] = process
        answer = self.runner.run(process.reserve(replace(ask, seq=theirs)))
        if isinstance(expected, Refusal) or isinstance(answer, Refusal):
            assert answer == expected
        else:
            assert theirs in {None, answer}
            self.seqs[answer] = expected
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
        assert self.runner.run(self.pool.scripts.verify()) == []

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
        theirs = [entry for entry in new if isinstance(entry, Granted)]
        assert [
            Grant(entry.request_id, entry.engine_id, entry.shape, entry.cost, self.seqs[entry.seq])
            for entry in theirs
        ] == grants
        assert {e.request_id: e.refusal for e in new if not isinstance(e, Granted)} == refusals
        gseqs = [entry.gseq for entry in entries if isinstance(entry, Granted)]
        assert gseqs == sorted(set(gseqs))

    def _compare_views(self) -> None:
        here, there = self.core.view(0.0), self.runner.run(self.pool.scripts.view())
        assert there.engines == here.engines
        assert there.queued == here.queued
        assert {name: there.totals[name] for name in here.totals} == here.totals
        waiting = sorted(set(self.owners) - set(self.grants))
        places = {here: there for there, here in self.seqs.items()}
        entries = [self.core._queue.get(request_id) for request_id in waiting]
        seqs = [places[entry.seq] for entry in entries if entry is not None]
        expected = [self.core.position(request_id) for request_id in waiting]
        assert self.runner.run(self.pool.scripts.ahead(seqs)) == expected
