"""A process that stood still for longer than its lease: what it was granted before may be another's by now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvgate.ledger.base import Ask
from kvgate.ledger.memory import MemoryLedger
from kvgate.ledger.redis import RedisLedger
from kvgate_policies.types import Outcome
from support.virtual_loop import LoopClock, run_virtual
from unit.admission.test_line import DONE, House, token, usage

ANSWER = (token("b", "stop"), usage(100, 10), DONE)
BACK_S = 3.0
"""When the lease is sure again."""


@pytest.fixture
def _unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    def lease_sure(ledger: MemoryLedger) -> bool:
        return ledger._clock.monotonic() >= BACK_S

    async def reserve(ledger: MemoryLedger, ask: Ask) -> Any:
        """As a shared ledger: who asks again waits until it knows where it stands."""
        await asyncio.sleep(1.0)
        return await asked(ledger, ask)

    asked = MemoryLedger.reserve
    monkeypatch.setattr(MemoryLedger, "lease_sure", property(lease_sure))
    monkeypatch.setattr(MemoryLedger, "reserve", reserve)


@pytest.mark.usefixtures("_unsure")
def test_a_grant_that_is_not_sure_is_given_back_and_the_request_queues_again_at_its_place():
    async def main() -> None:
        house = House(ANSWER)
        await house.open()
        ended = await house.serve("r")
        assert ended.outcome is Outcome.SERVED
        assert len(house.seen) == 1, "nothing went out before it was sure"
        assert house.clock.monotonic() >= BACK_S
        assert house.records["r"].requeues == 2
        assert house.engines.reports == [], "no fault of the engine"
        assert [use.reservations for use in house.ledger.view().engines] == [0]

    run_virtual(main())


def test_a_shared_ledger_is_sure_of_its_lease_for_as_long_as_it_lasts_less_a_heartbeat():
    async def main() -> None:
        ledger = RedisLedger(
            "redis://127.0.0.1:1", pool="p", clock=LoopClock(), lease_s=5.0, heartbeat_s=0.25
        )
        assert not ledger.lease_sure, "it never had one"
        ledger._keeper._beaten_s = asyncio.get_running_loop().time()
        await asyncio.sleep(4.7)
        assert ledger.lease_sure
        await asyncio.sleep(0.1)
        assert not ledger.lease_sure
        ledger._alone.begin(2, 0.0)
        assert ledger.lease_sure, "what it decides alone is its own"

    run_virtual(main())
