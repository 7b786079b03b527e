from __future__ import annotations

import asyncio

from kvgate.load.heartbeat import Heartbeat
from support.virtual_loop import run_virtual


def _beaten_while(happening) -> Heartbeat:
    """A heartbeat whose clock is the loop's time plus what a stall adds to it."""
    late_s = [0.0]

    async def main() -> Heartbeat:
        heartbeat = Heartbeat(lambda: asyncio.get_running_loop().time() + late_s[0])
        beating = asyncio.create_task(heartbeat.beat())
        await happening(late_s)
        beating.cancel()
        return heartbeat

    return run_virtual(main())


def test_a_client_that_runs_has_no_stalls():
    async def idle(_late_s) -> None:
        await asyncio.sleep(60)

    assert _beaten_while(idle).stalls == []


def test_a_pause_is_one_stall_of_its_length():
    async def paused(late_s) -> None:
        for pause_s in (3.0, 0.05, 1.0):
            await asyncio.sleep(10)
            late_s[0] += pause_s
        await asyncio.sleep(10)

    stalls = _beaten_while(paused).stalls
    assert [round(stall.length_s) for stall in stalls] == [3, 1]
    assert 10 <= stalls[0].start_s < stalls[0].end_s < 14
