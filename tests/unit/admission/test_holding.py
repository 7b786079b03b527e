"""Whoever takes gives back, by every door: end, error, cancellation at each await."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from kvgate.admission.holding import Holding
from kvgate.ledger.base import Ask, Grant
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.types import EngineLimits, EngineShape, KVCost
from support.virtual_loop import LoopClock, run_virtual

SHAPE = EngineShape(16, 1024)
COST = KVCost(blocks=10, seqs=1, prefill_tokens=100)
DRAINING_S = 0.3


async def granted() -> tuple[MemoryLedger, Grant]:
    ledger = MemoryLedger(LoopClock())
    await ledger.observe(EngineLimits("e", SHAPE, blocks=100, seqs=8, prefill_tokens=1000))
    ticket = await ledger.reserve(Ask("r", "t", {SHAPE: COST}, 10))
    grant = await ticket.granted()  # type: ignore[union-attr]
    assert isinstance(grant, Grant)
    return ledger, grant


def reserved(ledger: MemoryLedger) -> KVCost:
    return ledger.view().engines[0].reserved


def test_the_first_token_gives_the_prefill_part_back_and_the_end_the_rest():
    async def main() -> None:
        ledger, grant = await granted()
        async with Holding(ledger, grant, DRAINING_S) as held:
            held.sent()
            await held.first_token()
            assert reserved(ledger) == KVCost(10, 1, 0)
            await held.correct(KVCost(14, 1, 500))
            assert reserved(ledger) == KVCost(14, 1, 0)
            await held.done()
            assert reserved(ledger) == KVCost(0, 0, 0)
            await held.first_token()
            await held.correct(COST)
            assert reserved(ledger) == KVCost(0, 0, 0)
        assert ledger.view().totals["releases"] == 1

    run_virtual(main())


@pytest.mark.parametrize("computing", [True, False])
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
def test_an_error_gives_back_after_the_grace_if_the_engine_may_compute(
    computing: bool, error: type[BaseException]
):
    async def main() -> None:
        ledger, grant = await granted()
        loop = asyncio.get_running_loop()
        start = loop.time()
        with pytest.raises(error):
            async with Holding(ledger, grant, DRAINING_S) as held:
                if computing:
                    held.sent()
                raise error
        assert reserved(ledger) == KVCost(0, 0, 0)
        assert loop.time() - start == pytest.approx(DRAINING_S if computing else 0.0)

    run_virtual(main())


def test_a_client_that_leaves_cannot_cancel_the_release():
    async def main() -> None:
        ledger, grant = await granted()

        async def hold() -> None:
            async with Holding(ledger, grant, DRAINING_S) as held:
                held.sent()
                await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await anyio.sleep(1)
            tasks.cancel_scope.cancel()
        assert reserved(ledger) == KVCost(0, 0, 0)

    run_virtual(main())
