from __future__ import annotations

import gc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from kvgate.errors import LedgerCorrupt
from kvgate.ledger.memory import MemoryLedger
from unit.ledger.conformance import LedgerConformance
from unit.ledger.pool import HandClock, Probe, ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvgate.ledger.base import Ledger, Ticket


class TestMemoryLedger(LedgerConformance):
    @asynccontextmanager
    async def open(self, **bounds: int) -> AsyncIterator[Ledger]:
        ledger = MemoryLedger(HandClock(), **bounds)
        yield ledger


async def test_the_oldest_wait_is_measured_by_the_clock():
    clock = HandClock()
    probe = Probe(MemoryLedger(clock))
    await probe.ledger.observe(engine())
    assert probe.ledger.view().oldest_wait_s == 0.0
    await probe.start(ask("x", blocks=100))
    await probe.wait(ask("r1"))
    clock.now_s += 5
    await probe.wait(ask("r2"))
    clock.now_s += 2
    assert probe.ledger.view().oldest_wait_s == 7.0
    await probe.ledger.cancel("r1")
    assert probe.ledger.view().oldest_wait_s == 2.0


async def test_tie_says_where_the_turns_among_equal_engines_begin():
    first = []
    for tie in range(3):
        probe = Probe(MemoryLedger(HandClock(), tie=tie))
        for engine_id in "abc":
            await probe.ledger.observe(engine(engine_id))
        first.append((await probe.start(ask("r"))).engine_id)
    assert first == ["a", "b", "c"]


async def test_one_call_never_grants_more_than_its_bound():
    probe = Probe(MemoryLedger(HandClock(), grants_per_call_max=3))
    await probe.ledger.observe(engine())
    await probe.start(ask("x", blocks=100))
    for number in range(10):
        await probe.wait(ask(f"r{number}"))
    await probe.ledger.release("x")
    assert probe.use().reservations == 3
    await probe.settle()
    assert probe.use().reservations == 10


async def test_thousands_that_wait_for_an_engine_are_set_aside_in_bounded_steps():
    probe = Probe(MemoryLedger(HandClock()))
    await probe.ledger.observe(engine())
    await probe.ledger.observe(engine("big", blocks=500))
    await probe.start(ask("x", blocks=500))
    for number in range(1000):
        await probe.ledger.reserve(ask(f"stuck{number}", blocks=400, depth=10_000))
    small = await probe.wait(ask("small", depth=10_000))
    await probe.ledger.observe(engine("big", blocks=500, accepting=False))
    assert probe.use("a").reservations == 0, "one call does not walk past all of them"
    assert await probe.started(small) == ["small"]
    assert small.seq == 1001


async def test_a_sum_below_zero_is_raised_and_changes_nothing():
    ledger = MemoryLedger(HandClock())
    probe = Probe(ledger)
    await ledger.observe(engine())
    await probe.start(ask("r", blocks=30))
    book = ledger._core._book
    with pytest.raises(LedgerCorrupt, match="engine a"):
        book._add("a", cost(-31, 0))
    with pytest.raises(LedgerCorrupt, match="engine a"):
        book._add("a", cost(-29, -1), reservations=-1)
    other = await probe.start(ask("other"))
    with pytest.raises(LedgerCorrupt, match="twice"):
        book.hold(other)
    assert probe.use().reserved == cost(40, 2)


@pytest.mark.parametrize("bounds", [{"bypass_max": -1}, {"scan_depth": 0}, {"grants_per_call_max": 0}])
def test_bounds_that_would_stop_it_are_refused(bounds):
    with pytest.raises(ValueError, match="or more"):
        MemoryLedger(HandClock(), **bounds)


async def test_repr_says_what_is_going_on():
    probe = Probe(MemoryLedger(HandClock()))
    await probe.ledger.observe(engine())
    await probe.start(ask("x", blocks=100))
    ticket = await probe.wait(ask("r"))
    assert "1 engines, 1 reservations" in repr(probe.ledger)
    assert "1 active" in repr(probe.ledger)
    assert "r seq 1: waiting at 0" in repr(ticket)


async def test_nothing_is_kept_of_requests_that_ended():
    ledger = MemoryLedger(HandClock())
    probe = Probe(ledger)
    await ledger.observe(engine())
    for number in range(50):
        await ledger.reserve(ask(f"r{number}"))
    for number in range(50):
        await ledger.release(f"r{number}")
    await probe.settle()
    probe.assert_empty()
    gc.collect()
    assert not ledger._tickets
    assert not ledger._core._book._grants
    assert not ledger._core._queue._by_seq


async def pinned_by_late(ledger: MemoryLedger, probe: Probe) -> Ticket:
    """Engine `a` half full and pinned by `late`, which was passed once; `b` is too small for it."""
    await ledger.observe(engine("a"))
    await ledger.observe(engine("b", blocks=30))
    await probe.start(ask("x", blocks=50))
    late = await probe.wait(ask("late", blocks=90))
    await probe.start(ask("small", blocks=5, avoid=frozenset({"b"})))
    assert probe.use("a").pinned_by == "late"
    return late


@pytest.mark.parametrize("blocks", [40, 60], ids=["fits at once", "has to wait"])
async def test_a_pin_goes_to_the_earlier_of_two_that_were_passed_often_enough(blocks):
    ledger = MemoryLedger(HandClock(), bypass_max=1)
    probe = Probe(ledger)
    await pinned_by_late(ledger, probe)
    old = await probe.queue(ask("old", blocks=blocks, seq=-1))
    assert await probe.decision(old) is None, "the engine is pinned by another"
    await probe.start(ask("tiny", blocks=1, avoid=frozenset({"a"})))
    if blocks == 40:
        assert await probe.started(old) == ["old"]
        return
    assert probe.use("a").pinned_by == "old"
    await ledger.release("x")
    assert await probe.started(old) == ["old"]
    assert probe.use("a").pinned_by == "late"


async def test_a_pinner_pushed_out_of_the_walk_lets_go():
    """Otherwise those in front could not start because of its pin, and it would not be looked at."""
    ledger = MemoryLedger(HandClock(), bypass_max=1, scan_depth=2)
    probe = Probe(ledger)
    late = await pinned_by_late(ledger, probe)
    tickets = [await probe.queue(ask(f"old{number}", blocks=100, seq=number - 3)) for number in range(3)]
    assert probe.use("a").pinned_by is None
    await ledger.release("x")
    await ledger.release("small")
    waiting = {ticket.request_id: ticket for ticket in (*tickets, late)}
    for request_id in ("old0", "old1", "late", "old2"):
        assert await probe.started(*waiting.values()) == [request_id]
        await ledger.release(request_id)
        del waiting[request_id]
    probe.assert_empty()
