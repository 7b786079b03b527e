"""A cost that grew is known to all processes when `renew` returns: nobody decides by what it was."""

from __future__ import annotations

import asyncio
import itertools
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from integration.ledger.ledgers import MACHINE, queue, refresh, start, until
from integration.ledger.process import CLOCK, START_MS, hold_clock
from kvgate.clock import SystemClock
from kvgate.ledger.base import Ask
from kvgate.ledger.redis import RedisLedger
from kvgate.ledger.wire import least_of
from kvgate_policies.occupancy import SCALE
from kvgate_policies.types import ZERO_COST, KVCost
from unit.ledger.conformance_forecasts import flat, soft, want
from unit.ledger.machine import COSTS
from unit.ledger.pool import SHAPE, ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from support.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not about how fast: on a busy machine a call would fail, and its ledger start anew."""
    monkeypatch.setattr("kvgate.ledger.batching.CALL_S_MAX", 30.0)
    monkeypatch.setattr("kvgate.ledger.connect.SOCKET_S", 30.0)


@asynccontextmanager
async def silent(server: RedisServer, pool: str = "p") -> AsyncIterator[RedisLedger]:
    """A process that beats only when it is told to. The clock of the server is held: nobody is missed by the others."""
    with server.client() as client:
        client.set(CLOCK, START_MS)
    ledger = RedisLedger(
        server.url, pool=pool, clock=SystemClock(), heartbeat_s=300.0, lease_s=1000.0, grace_s=0.0
    )
    hold_clock(ledger._scripts)
    async with ledger.running():
        await refresh(ledger)
        yield ledger


@pytest.fixture
async def pair(redis_server: RedisServer) -> AsyncIterator[tuple[RedisLedger, RedisLedger]]:
    """Two processes that know engine `a` of 100 blocks."""
    async with silent(redis_server) as one, silent(redis_server) as two:
        for ledger in (one, two):
            await ledger.observe(engine())
        yield one, two


def calls_made(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


async def counted(ledger: RedisLedger) -> KVCost:
    """What all together are counted with on the engine, by Redis; nothing is told to it by asking."""
    (use,) = (await ledger._scripts.view()).engines
    return use.reserved


@pytest.mark.parametrize(
    ("held", "grown"),
    [
        pytest.param(cost(40), cost(70), id="the peak"),
        pytest.param(flat(90, 40), flat(90, 70), id="what is expected, at the same peak"),
        pytest.param(soft(90, 40, 40, 40), soft(90, 20, 20, 70), id="at one point of the grid"),
        pytest.param(flat(90, 40), flat(90, 40, 30), id="its deviation"),
        pytest.param(flat(90, 40), cost(70), id="what is guaranteed from now on"),
    ],
)
async def test_another_process_decides_by_what_grew(
    pair: tuple[RedisLedger, RedisLedger], held: KVCost, grown: KVCost
) -> None:
    one, two = pair
    await start(one, want("r", held))
    await one.renew("r", grown)
    waits = await queue(two, want("next", flat(90, 50)))
    assert (await one._scripts.view()).queued == 1
    assert await counted(two) == grown
    await one.release("r")
    await waits.granted()
    assert await counted(two) == flat(90, 50)


async def test_what_one_takes_over_from_another_is_counted_before_that_ends(
    pair: tuple[RedisLedger, RedisLedger],
) -> None:
    """As with a beginning that several requests share: the sum does not fall in between."""
    one, two = pair
    await start(one, ask("bearer", blocks=60))
    await start(one, ask("guest", blocks=20))
    waits = await queue(two, ask("next", blocks=50))
    await one.renew("guest", cost(60))
    await one.release("bearer")
    assert await counted(two) == cost(60)
    assert waits.decision is None
    await one.release("guest")
    await waits.granted()


async def test_what_shrinks_and_what_vectors_say_goes_with_the_heartbeat(
    pair: tuple[RedisLedger, RedisLedger], redis_server: RedisServer
) -> None:
    one, _ = pair
    for number in range(4):
        await start(one, want(f"r{number}", flat(90, 10, 1)))
    before = calls_made(redis_server)
    for number in range(4):
        await one.renew(f"r{number}", flat(80, 9, 1))
        await one.renew(f"r{number}", flat(85, 10, 1))
    await one.renew_many({f"r{number}": flat(90, 12, 1) for number in range(4)})
    assert calls_made(redis_server) == before
    await one._keeper.beat()
    assert (await counted(one)).expected == flat(360, 48, 2).expected


async def test_growth_beside_a_heartbeat_on_its_way_is_counted_once(
    pair: tuple[RedisLedger, RedisLedger],
) -> None:
    one, two = pair
    names = [f"r{number}" for number in range(5)]
    for name in names:
        await start(one, ask(name, blocks=5))
    grown = (one.renew(name, cost(10 + number)) for number, name in enumerate(names))
    await asyncio.gather(one._keeper.beat(), *grown, one._keeper.beat())
    assert await counted(two) == cost(60, 5)
    assert await one._scripts.verify() == []


async def test_growth_while_redis_is_in_doubt_goes_with_a_heartbeat_that_comes_now(
    pair: tuple[RedisLedger, RedisLedger],
) -> None:
    one, two = pair
    await start(one, ask("r", blocks=40))
    one._keeper.doubt()
    await one.renew("r", cost(70))
    await until(lambda: one.up)
    assert await counted(two) == cost(70)


# any operations in any order

POOLS = itertools.count()
ENGINES = ("a", "b")
BLOCKS, SEQS = 100, 16
WHO = st.integers(0, 2)
ASKS = st.builds(
    Ask,
    request_id=st.just(""),
    tenant=st.sampled_from(["x", "y"]),
    costs=COSTS.map(lambda drawn: {SHAPE: drawn}),
    queue_depth_max=st.just(20),
)


def covers(counted: KVCost, held: KVCost) -> bool:
    """In every part, and at every point of the grid."""
    there, here = counted.occupancy, held.occupancy
    numbers = zip(there.to_numbers(), here.to_numbers(), strict=True)
    parts = counted.blocks >= held.blocks, counted.seqs >= held.seqs
    return all(parts) and counted.prefill_tokens >= held.prefill_tokens and all(a >= b for a, b in numbers)


class Growth(RuleBasedStateMachine):
    """Three processes that beat only when they are told to. At any time Redis counts at least what they hold, and what
    it grants has room beside that.
    """

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.ids = 0
        self.ledgers: list[RedisLedger] = []
        self.asked: dict[str, RedisLedger] = {}
        self.granted: set[str] = set()

    @initialize()
    def start(self) -> None:
        self.runner.run(self._start(f"p{next(POOLS)}"))

    async def _start(self, pool: str) -> None:
        for _ in range(3):
            self.ledgers.append(await self.stack.enter_async_context(silent(self.server, pool)))
        for ledger in self.ledgers:
            for name in ENGINES:
                await ledger.observe(engine(name, BLOCKS, SEQS))

    def teardown(self) -> None:
        try:
            for request_id in sorted(self.asked):
                self.end(request_id)
            for ledger in self.ledgers:
                self._step(ledger._keeper.beat())
            if self.ledgers:
                assert self._counted() == {}
        finally:
            self.runner.run(self.stack.aclose())
            self.runner.close()

    @rule(burst=st.lists(st.tuples(WHO, ASKS), min_size=1, max_size=5))
    def reserve(self, burst: list[tuple[int, Ask]]) -> None:
        for who, drawn in burst:
            self.ids += 1
            asked = replace(drawn, request_id=f"r{self.ids}")
            self.asked[asked.request_id] = self.ledgers[who]
            self._step(self.ledgers[who].reserve(asked))

    @precondition(lambda self: self._held())
    @rule(data=st.data(), to=COSTS)
    def renew(self, data: Any, to: KVCost) -> None:
        """By far mostly growth of some part."""
        request_id = data.draw(st.sampled_from(sorted(self._held())))
        self._step(self.asked[request_id].renew(request_id, to))

    @precondition(lambda self: self._held())
    @rule(data=st.data(), to=COSTS)
    def shrink_many(self, data: Any, to: KVCost) -> None:
        ledger = self.ledgers[data.draw(WHO)]
        own = {key: held for key, held in self._held().items() if self.asked[key] is ledger}
        self._step(ledger.renew_many({key: least_of(held, to) for key, held in own.items()}))

    @precondition(lambda self: len(self._held()) > 1)
    @rule(data=st.data())
    def take_over(self, data: Any) -> None:
        """One ends, and another one of its engine goes on with what it had."""
        by_place: dict[tuple[int, str], list[str]] = {}
        for request_id in sorted(self._held()):
            place = id(self.asked[request_id]), self._engine(request_id)
            by_place.setdefault(place, []).append(request_id)
        together = [names for names in by_place.values() if len(names) > 1]
        if not together:
            return
        bearer, heir = data.draw(st.sampled_from(together))[:2]
        held = self._held()
        self._step(self.asked[heir].renew(heir, held[heir] + replace(held[bearer], seqs=0, prefill_tokens=0)))
        self.end(bearer)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def end_one(self, data: Any) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.asked))))

    def end(self, request_id: str) -> None:
        self._step(self.asked.pop(request_id).release(request_id))

    @rule(who=WHO)
    def beat(self, who: int) -> None:
        self._step(self.ledgers[who]._keeper.beat())

    # what is so

    def _held(self) -> dict[str, KVCost]:
        entries = (entry for ledger in self.ledgers for entry in ledger._table.held())
        return {entry.request_id: entry.grant.cost for entry in entries if entry.grant is not None}

    def _engine(self, request_id: str) -> str:
        entry = self.asked[request_id]._table.get(request_id)
        assert entry is not None
        assert entry.grant is not None
        return entry.grant.engine_id

    def _truth(self) -> dict[tuple[str, str], tuple[KVCost, int]]:
        """By process and engine: what is held, and by how many."""
        sums: dict[tuple[str, str], tuple[KVCost, int]] = {}
        for ledger in self.ledgers:
            for entry in ledger._table.held():
                assert entry.grant is not None
                before, number = sums.get((ledger.pid, entry.grant.engine_id), (ZERO_COST, 0))
                sums[ledger.pid, entry.grant.engine_id] = before + entry.grant.cost, number + 1
        return sums

    def _counted(self) -> dict[tuple[str, str], KVCost]:
        sums: dict[tuple[str, str], KVCost] = {}
        for part in self.runner.run(self.ledgers[0]._scripts.inspect()).holdings:
            place = part.pid, part.engine_id
            sums[place] = sums.get(place, ZERO_COST) + part.sums.cost
        return {place: total for place, total in sums.items() if total != ZERO_COST}

    def _step(self, operation: Coroutine[Any, Any, Any]) -> None:
        self.runner.run(self._run(operation))
        truth, known = self._truth(), self._counted()
        for place, (held, _) in truth.items():
            assert covers(known.get(place, ZERO_COST), held), f"there {known.get(place)}, here {held}"
        self._check_new_grants(truth)
        assert self.runner.run(self.ledgers[0]._scripts.verify()) == []

    async def _run(self, operation: Coroutine[Any, Any, Any]) -> None:
        """The grants that it gave are read; none of the processes says what it holds."""
        await operation
        for _ in range(2):
            while (await self.ledgers[0]._scripts.pump()).unfinished:
                pass
            for ledger in self.ledgers:
                await ledger._wakeups.catch_up()
            await asyncio.sleep(0)
        assert all(ledger.up for ledger in self.ledgers)

    def _check_new_grants(self, truth: dict[tuple[str, str], tuple[KVCost, int]]) -> None:
        new = self._held().keys() - self.granted
        self.granted |= new
        for name in {self._engine(request_id) for request_id in new}:
            there = [held for (_, engine_id), held in truth.items() if engine_id == name]
            total = sum((held for held, _ in there), ZERO_COST)
            alone = sum(number for _, number in there) == 1
            assert alone or max(total.occupancy.means) <= SCALE * BLOCKS, "granted beside what was not known"
            assert total.seqs <= SEQS


STEPS = settings(MACHINE, max_examples=15)


def run(server: RedisServer, steps: settings) -> None:
    run_state_machine_as_test(type("GrowthHere", (Growth,), {"server": server}), settings=steps)


def test_nobody_decides_by_less_than_what_is_held(redis_process: RedisServer) -> None:
    run(redis_process, STEPS)


@pytest.mark.soak
@pytest.mark.timeout(1700)
@pytest.mark.skipif(os.environ.get("KVGATE_SOAK") != "1", reason="the short form runs above")
def test_ever_new_operations(redis_process: RedisServer) -> None:
    run(redis_process, settings(STEPS, max_examples=200, stateful_step_count=80, derandomize=False))
