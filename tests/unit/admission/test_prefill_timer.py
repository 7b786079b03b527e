"""The prefill part of a JSON answer, which shows no first token, is given back by time."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from kvgate.admission.holding import Holding
from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.types import EngineLimits, EngineShape, KVCost, Outcome
from support.virtual_loop import LoopClock, run_virtual
from unit.admission.test_line import SHAPE as LINE_SHAPE
from unit.admission.test_line import House

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


class InOnePiece(House):
    """The engine shows nothing for half a minute, no headers either: as vLLM does for an answer in one piece."""

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request.headers.get("x-request-id", "").encode())
        await asyncio.sleep(30.0)
        choice = {"index": 0, "text": "a", "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice], "usage": None})


def test_answers_in_one_piece_do_not_keep_others_out_until_they_are_there():
    """Each prompt is above half of what may lie there uncomputed; an engine computes it in a second at most."""

    async def main() -> None:
        house = InOnePiece(None)
        await house.ledger.observe(EngineLimits("http://e:1", LINE_SHAPE, 10_000, 64, 8192))
        calls = [
            asyncio.create_task(house.serve(f"r{index}", prompt=3000, stream=False)) for index in range(8)
        ]
        started: list[int] = []
        for _ in range(5):
            await asyncio.sleep(1.1)
            started.append(len(house.seen))
        assert started == [4, 6, 8, 8, 8]
        for ended in await asyncio.gather(*calls):
            assert ended.outcome is Outcome.SERVED
        assert house.ledger.view().engines[0].reserved == NOTHING

    run_virtual(main())
