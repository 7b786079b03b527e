"""Several processes that share a pool, and everything that goes wrong between them and the server.

Processes die and come back, releases are lost, doubled and late, beats are old, answers are lost, the server
begins anew. After every step all invariants of the ledger hold (`verify`), and nothing that was just granted
overdraws its engine. Whenever a process has beaten, the server counts exactly what the process holds and
what is on its way to it. At the end everything is zero.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from integration.ledger.equivalence import ASKS, RARELY, RULES
from integration.ledger.process import Pool, Process, open_pool, until_settled
from kvgate.ledger.rules import Parts
from kvgate.ledger.scripts import Granted, LeaseLost
from kvgate_policies.occupancy import SCALE
from kvgate_policies.types import ZERO_COST, EngineLimits, KVCost
from unit.ledger.machine import COSTS, USABLE
from unit.ledger.pool import OTHER_SHAPE, SHAPE

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from support.redis_server import RedisServer

ENGINES = ("a", "b")
PIDS = ("p", "q", "r")
WHO = st.integers(0, len(PIDS) - 1)


class Chaos(RuleBasedStateMachine):
    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.ids = 0
        self.generation = 0
        self.read = 0
        self.limits = {name: EngineLimits(name, SHAPE, 100, 16, 100) for name in ENGINES}
        self.late: list[tuple[Process, int, Granted]] = []
        """Releases that left and did not arrive yet."""
        self.late_beats: dict[str, Process] = {}
        """Processes as they were when a beat of theirs left."""

    @initialize()
    def start(self) -> None:
        self.server.flush()
        opening = open_pool(self.server, bypass_max=2, scan_depth=3, grants_max=3)
        self.pool: Pool = self.runner.run(self.stack.enter_async_context(opening))
        self.processes = [self.runner.run(self.pool.join(pid, *self.limits.values())) for pid in PIDS]

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self._step(self._end_all())
            view = self.runner.run(self.pool.scripts.view())
            assert view.queued == 0
            for use in view.engines:
                assert (use.reserved, use.reservations, use.pinned_by) == (ZERO_COST, 0, None)
            self.runner.run(self.stack.aclose())
        self.runner.close()

    async def _end_all(self) -> None:
        """Every process comes back once and ends what it has; what the dead ones left is voided."""
        for process in self.processes:
            await self._restore(process)
        for process in self.processes:
            for request_id in [*process.waiting]:
                await process.cancel(request_id)
            await process.read()
            process.held.clear()
            await process.beat()
        for engine_id in ENGINES:
            for orphan_free in (0, 0):
                await self.pool.scripts.settle(engine_id, orphan_free)
        await until_settled(self.pool)

    # what a process does

    @rule(burst=st.lists(st.tuples(WHO, ASKS), min_size=1, max_size=6))
    def reserve(self, burst: list[Any]) -> None:
        for who, ask in burst:
            self.ids += 1
            self._call(who, Process.reserve, replace(ask, request_id=f"r{self.ids}", force=False))

    @rule(rules=RULES)
    def set_tenants(self, rules: Any) -> None:
        self._step(self.pool.scripts.set_tenants(Parts.of(rules)))

    @rule(who=WHO)
    def read_stream(self, who: int) -> None:
        self._step(self.processes[who].read())

    @rule(who=WHO)
    def beat(self, who: int) -> None:
        self._step(self._restore(self.processes[who]))
        self._check_truth(self.processes[who])

    @precondition(lambda self: self._holders())
    @rule(data=st.data(), how=st.sampled_from(["arrives", "arrives", "twice", "lost", "late"]))
    def release(self, data: Any, how: str) -> None:
        process = self._draw(data, self._holders())
        request_id = data.draw(st.sampled_from(sorted(process.held)))
        grant = replace(process.held.pop(request_id), cost=process.counted.pop(request_id))
        process.rel += 1
        if how == "late":
            self.late.append((process, process.rel, grant))
        elif how != "lost":
            for _ in range(1 + (how == "twice")):
                self._step(self._release(process, process.rel, grant))

    @rule(who=WHO)
    def beat_late(self, who: int) -> None:
        """A beat leaves, and arrives some time."""
        process = self.processes[who]
        self.late_beats[process.pid] = replace(process, held=dict(process.held), closed=set(process.closed))

    @precondition(lambda self: self.late_beats)
    @rule(data=st.data())
    def beat_arrives(self, data: Any) -> None:
        """An old beat, after releases and beats that left later; the next beat puts everything right."""
        former = self.late_beats.pop(data.draw(st.sampled_from(sorted(self.late_beats))))
        (process,) = [process for process in self.processes if process.pid == former.pid]
        self._step(former.beat())
        self._step(self._restore(process))
        self._check_truth(process)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def arrive(self, data: Any) -> None:
        """A late release arrives, perhaps after later ones, or after the beat that contains it."""
        self._step(self._release(*self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))))

    async def _release(self, process: Process, rel: int, grant: Granted) -> None:
        with suppress(LeaseLost):
            await process.scripts.release(process.pid, rel, grant.engine_id, grant.tenant, grant.cost)

    @precondition(lambda self: self._holders())
    @rule(data=st.data(), cost=COSTS)
    def renew(self, data: Any, cost: KVCost) -> None:
        process = self._draw(data, self._holders())
        request_id = data.draw(st.sampled_from(sorted(process.held)))
        self._step(self._renew(process, request_id, cost))

    async def _renew(self, process: Process, request_id: str, cost: KVCost) -> None:
        with suppress(LeaseLost):
            await process.renew(request_id, cost)

    @precondition(lambda self: self._holders())
    @rule(data=st.data(), costs=st.lists(COSTS, min_size=1, max_size=5))
    def renew_many(self, data: Any, costs: list[KVCost]) -> None:
        """The server hears of it with some later beat, or never."""
        process = self._draw(data, self._holders())
        for request_id, cost in zip(sorted(process.held), costs, strict=False):
            process.held[request_id] = replace(process.held[request_id], cost=cost)

    @precondition(lambda self: any(process.waiting for process in self.processes))
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        process = self._draw(data, [process for process in self.processes if process.waiting])
        self._step(process.cancel(data.draw(st.sampled_from(sorted(process.waiting)))))

    @rule(
        who=WHO,
        engine_id=st.sampled_from(ENGINES),
        blocks=st.sampled_from([50, 100, 200]),
        stops=RARELY,
        differs=RARELY,
        usable=USABLE,
    )
    def observe(
        self, who: int, engine_id: str, blocks: int, stops: bool, differs: bool, usable: int | None
    ) -> None:
        shape = OTHER_SHAPE if differs else SHAPE
        limits = EngineLimits(engine_id, shape, blocks, 16, 100, not stops, usable)
        self.limits[engine_id] = limits
        self._call(who, Process.observe, limits)

    @rule(who=WHO, engine_id=st.sampled_from(ENGINES), is_meant=RARELY)
    def void(self, who: int, engine_id: str, is_meant: bool) -> None:
        """The engine restarted: each process finds out for itself."""
        if not is_meant:
            return
        process = self.processes[who]
        self._step(process.read())
        process.held = {key: grant for key, grant in process.held.items() if grant.engine_id != engine_id}
        self.late = [late for late in self.late if late[0] is not process or late[2].engine_id != engine_id]
        self._step(process.scripts.void(process.pid, engine_id))

    @rule(who=WHO, engine_id=st.sampled_from(ENGINES), is_meant=RARELY)
    def forget(self, who: int, engine_id: str, is_meant: bool) -> None:
        if not is_meant:
            return
        process = self.processes[who]
        self._step(process.read())
        process.held = {key: grant for key, grant in process.held.items() if grant.engine_id != engine_id}
        process.closed.discard(engine_id)
        self._step(process.scripts.forget(process.pid, engine_id))

    # what happens to it

    @rule(who=WHO)
    def stall(self, who: int) -> None:
        """It stands still until its lease ran out, and comes back some time."""
        with suppress(AssertionError):
            self._step(self.pool.expire(self.processes[who].pid))

    @rule(who=WHO)
    def crash(self, who: int) -> None:
        """It is gone for good, and a new one starts."""
        self.generation += 1
        gone = self.processes[who]
        with suppress(AssertionError):
            self._step(self.pool.expire(gone.pid))
        self._forget_late(gone)
        self.processes[who] = self.pool.add(f"{PIDS[who]}{self.generation}")
        self.processes[who].seen = self.read
        self._step(self._restore(self.processes[who]))

    @rule(who=WHO, is_meant=RARELY)
    def leave(self, who: int, is_meant: bool) -> None:
        """It ends in good order, and a new one starts."""
        if not is_meant:
            return
        self.generation += 1
        gone = self.processes[who]
        self._step(gone.scripts.leave(gone.pid))
        self._forget_late(gone)
        self.processes[who] = self.pool.add(f"{PIDS[who]}{self.generation}")
        self._step(self._restore(self.processes[who]))

    @rule(engine_id=st.sampled_from(ENGINES), in_use=st.sampled_from([0, 20, 60, 100]))
    def settle(self, engine_id: str, in_use: int) -> None:
        self._step(self.pool.scripts.settle(engine_id, in_use))

    @rule(is_meant=RARELY)
    def flush(self, is_meant: bool) -> None:
        """The server begins with nothing."""
        if is_meant:
            self.server.flush()
            self.read = 0
            for process in self.processes:
                process.seen = 0

    # the machine itself

    def _forget_late(self, gone: Process) -> None:
        self.late = [late for late in self.late if late[0] is not gone]
        self.late_beats.pop(gone.pid, None)

    @staticmethod
    def _draw(data: Any, processes: list[Process]) -> Process:
        place: int = data.draw(st.integers(0, len(processes) - 1))
        return processes[place]

    def _holders(self) -> list[Process]:
        return [process for process in self.processes if process.held]

    def _call(self, who: int, verb: Any, *args: Any) -> None:
        process = self.processes[who]

        async def call() -> None:
            try:
                await verb(process, *args)
            except LeaseLost:
                await self._restore(process)

        self._step(call())

    async def _restore(self, process: Process) -> None:
        """Beat; and where the lease was new, say everything else again too."""
        await process.read()
        reply = await process.beat()
        if reply.lease_new:
            process.ack = max(process.ack, reply.gseq)
            for engine_id in ENGINES:
                accepting = engine_id not in process.closed
                await process.observe(replace(self.limits[engine_id], accepting=accepting))
            for ask in [*process.waiting.values()]:
                await process.reserve(ask)

    def _step(self, operation: Coroutine[Any, Any, Any]) -> None:
        self.runner.run(self._run(operation))

    async def _run(self, operation: Coroutine[Any, Any, Any]) -> None:
        await operation
        faults = await self.pool.scripts.verify()
        assert faults == [], faults
        await until_settled(self.pool)
        assert await self.pool.scripts.verify() == []
        await self._check_new_grants()

    async def _check_new_grants(self) -> None:
        entries = await self.pool.stream.read()
        new, self.read = entries[self.read :], len(entries)
        uses = {use.limits.engine_id: use for use in (await self.pool.scripts.view()).engines}
        for entry in new:
            if isinstance(entry, Granted) and entry.engine_id in uses:
                use = uses[entry.engine_id]
                held = max(use.reserved.occupancy.means)
                assert use.reservations == 1 or held <= SCALE * use.limits.blocks_open
                assert use.reserved.seqs <= use.limits.seqs

    def _check_truth(self, process: Process) -> None:
        """What the server counts for a process that has just beaten: its table, and what it has not read."""
        self.runner.run(self._compare_truth(process))

    async def _compare_truth(self, process: Process) -> None:
        entries = await self.pool.stream.read()
        expected = {key: (held.cost, held.reservations) for key, held in process.sums().items()}
        for entry in entries:
            if isinstance(entry, Granted) and entry.pid == process.pid and entry.gseq > process.ack:
                key = entry.engine_id, entry.tenant
                cost, number = expected.get(key, (ZERO_COST, 0))
                expected[key] = (cost + entry.cost, number + 1)
        counted = {
            (part.engine_id, part.tenant): (part.sums.cost, part.sums.reservations)
            for part in (await self.pool.scripts.inspect()).holdings
            if part.pid == process.pid and part.sums.reservations
        }
        assert counted == expected
        assert process.pid not in await self.pool.orphaned(), "it took back what was its own"
