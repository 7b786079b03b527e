"""How long a wait can get: starvation among small ones, and the price of a long queue. Counted, not timed."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING

import pytest

from kvgate.ledger.base import Refusal
from kvgate.ledger.core import LedgerCore
from kvgate.ledger.memory import MemoryLedger
from unit.ledger.pool import HandClock, ask, engine

if TYPE_CHECKING:
    from collections.abc import Callable


def overtakes_until_large_starts(bypass_max: int, seed: int, turns_max: int = 300) -> int | None:
    """60 % of the only engine, among a stream of 5 % ones that come faster than they leave; None: not started."""
    rng = random.Random(seed)
    core = LedgerCore(bypass_max=bypass_max, scan_depth=4, grants_max=16, tie=0)
    core.observe(engine())
    for number in range(15):
        core.reserve(ask(f"first{number}", blocks=5), 0)
    core.reserve(ask("large", blocks=60), 0)
    running = [request_id for request_id, _ in core.take_decisions()]
    before = len(running)
    for turn in range(turns_max):
        core.reserve(ask(f"a{turn}", blocks=5, depth=1000), 0)
        core.reserve(ask(f"b{turn}", blocks=5, depth=1000), 0)
        core.end(running.pop(rng.randrange(len(running))))
        started = [request_id for request_id, _ in core.take_decisions()]
        if "large" in started:
            return core.view(0).totals["grants"] - before - len(started)
        running += started
    return None


@pytest.mark.parametrize("bypass_max", [0, 1, 8, 20])
@pytest.mark.parametrize("seed", range(5))
def test_a_large_request_starts_after_bypass_max_overtakes(bypass_max, seed):
    assert overtakes_until_large_starts(bypass_max, seed) == bypass_max


def test_without_the_bound_it_starves():
    assert overtakes_until_large_starts(10**6, seed=0) is None


def calls_per_cycle(queued: int, cycles: int = 50) -> float:
    """Function calls of one release, grant and reserve with that many waiting."""
    core = LedgerCore(bypass_max=8, scan_depth=4, grants_max=16, tie=0)
    for engine_id in "abc":
        core.observe(engine(engine_id))
    rng = random.Random(5)

    def arrive(number: int) -> None:
        assert not isinstance(
            core.reserve(ask(f"r{number}", rng.choice([5, 10, 60]), depth=10**6), 0), Refusal
        )

    number = 0
    while core.view(0).queued < queued:
        arrive(number)
        number += 1
    running = [request_id for request_id, _ in core.take_decisions()]

    def turn() -> None:
        nonlocal number
        for _ in range(cycles):
            core.end(running.pop(0))
            arrive(number)
            number += 1
            running.extend(request_id for request_id, _ in core.take_decisions())

    return count_calls(turn) / cycles


def count_calls(work: Callable[[], object]) -> int:
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_ten_thousand_waiting_cost_as_much_as_ten():
    assert calls_per_cycle(10_000) <= 1.5 * calls_per_cycle(10)


def test_an_arrival_at_the_end_of_a_long_queue_runs_no_grant_loop():
    core = LedgerCore(bypass_max=8, scan_depth=4, grants_max=16, tie=0)
    core.observe(engine())
    core.reserve(ask("x", blocks=100), 0)
    for number in range(500):
        core.reserve(ask(f"r{number}", depth=1000), 0)
    near = count_calls(core._loop.run)
    late = count_calls(lambda: core.reserve(ask("late", depth=1000), 0))
    assert late < near


async def test_grants_go_on_without_any_further_call():
    """4,000 small ones fit at once when a large one ends; each call grants 16, the loop brings the rest."""
    ledger = MemoryLedger(HandClock())
    await ledger.observe(engine(blocks=4000, seqs=4000))
    await ledger.reserve(ask("x", blocks=4000))
    for number in range(4000):
        await ledger.reserve(ask(f"r{number}", blocks=1, depth=10_000))
    await ledger.release("x")
    steps = 0
    while ledger.view().queued:
        await asyncio.sleep(0)
        steps += 1
        assert steps <= 4000 / 16 + 2
    assert ledger.view().engines[0].reservations == 4000
