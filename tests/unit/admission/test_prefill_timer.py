"""The prefill part of a JSON answer, which shows no first token, is given back by time."""

from __future__ import annotations

import asyncio

import pytest

from kvgate.admission.holding import Holding
from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.types import EngineLimits, EngineShape, KVCost
from support.virtual_loop import LoopClock, run_virtual

SHAPE = EngineShape(16, 1024)
COST = KVCost(blocks=10, seqs=1, prefill_tokens=100)
NOTHING = KVCost(0, 0, 0)


async def granted() -> tuple[MemoryLedger, Grant]:
    ledger = MemoryLedger(LoopClock())
    await ledger.observe(EngineLimits("e", SHAPE, blocks=100, seqs=8, prefill_tokens=1000))
    ticket = await ledger.reserve(Ask("r", "t", {SHAPE: COST}, 10))
    assert not isinstance(ticket, Refusal | RateSpent)
    assert isinstance(ticket.decision, Grant)
    assert ticket.decision == await ticket.granted()
    return ledger, ticket.decision


def reserved(ledger: MemoryLedger) -> KVCost:
    return ledger.view().engines[0].reserved


def other_tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def test_it_is_given_back_when_it_should_be_computed():
    async def main() -> None:
        ledger, grant = await granted()
        async with Holding(ledger, grant, 0.3) as held:
            held.sent()
            held.first_token_after(2.0)
            await asyncio.sleep(1.9)
            assert reserved(ledger) == COST
            await asyncio.sleep(0.2)
            assert reserved(ledger) == KVCost(10, 1, 0)
            await held.done()
        assert reserved(ledger) == NOTHING

    run_virtual(main())


def test_an_answer_that_is_there_before_leaves_no_timer_and_no_task():
    async def main() -> None:
        ledger, grant = await granted()
        async with Holding(ledger, grant, 0.3) as held:
            held.first_token_after(2.0)
            await held.done()
        assert reserved(ledger) == NOTHING
        await asyncio.sleep(5.0)
        assert not other_tasks()
        assert reserved(ledger) == NOTHING

    run_virtual(main())


def test_a_ledger_that_fails_meanwhile_ends_no_request(caplog):
    class Failing(MemoryLedger):
        async def renew(self, request_id: str, cost: KVCost) -> None:
            raise ConnectionError(f"{request_id} {cost}")

    async def main() -> None:
        _, grant = await granted()
        ledger = Failing(LoopClock())
        async with Holding(ledger, grant, 0.3) as held:
            held.first_token_after(1.0)
            await asyncio.sleep(2.0)
            await held.done()

    run_virtual(main())
    assert "was not given back" in caplog.text


def test_leaving_by_an_error_stops_it():
    async def main() -> None:
        ledger, grant = await granted()
        with pytest.raises(RuntimeError):
            async with Holding(ledger, grant, 0.3) as held:
                held.sent()
                held.first_token_after(0.1)
                raise RuntimeError
        assert reserved(ledger) == NOTHING
        assert not other_tasks()

    run_virtual(main())
