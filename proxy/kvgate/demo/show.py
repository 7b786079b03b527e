"""The demo from the first process to the exit code.

Each phase has engines of its own, started fresh: neither counters nor a prefix cache are carried over.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from rich.console import Console

from kvgate.demo.children import ChildFailedError, Children
from kvgate.demo.frame import frame_of
from kvgate.demo.phase import LedgerWatch, Phase
from kvgate.demo.plan import DemoPlan, plan_for
from kvgate.demo.pool import start_engines, start_kvgate
from kvgate.demo.verdict import Result, judge
from kvgate.demo.view import closing, display_on
from kvgate.demo.words import offer_text
from kvgate.load import Report, Workload, uniform

if TYPE_CHECKING:
    from collections.abc import Coroutine

EXIT_AS_CLAIMED, EXIT_NOT_AS_CLAIMED, EXIT_COULD_NOT_RUN = 0, 1, 2
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
"""128 and the number of the signal, as shells have it."""
_FRAME_INTERVAL_S = 0.2

T = TypeVar("T")


def run(seconds: int = 60, json: bool = False) -> int:
    """Run the demo in about `seconds` (15 to 3600) and return the exit code.

    0: as claimed. 1: it ran, and a claim did not hold. 2: it could not run. 130: Ctrl-C. 143: SIGTERM. With
    `json`, standard output has the result and nothing else.
    """
    console = Console(stderr=json)
    try:
        result = asyncio.run(_terminable(_demo(plan_for(seconds), console)))
    except (ChildFailedError, ValueError) as trouble:
        Console(stderr=True).print(f"kvgate demo: {trouble}", markup=False, highlight=False)
        return EXIT_COULD_NOT_RUN
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except asyncio.CancelledError:
        return EXIT_TERMINATED
    if json:
        sys.stdout.write(result_json(result) + "\n")
    else:
        console.print(closing(result), highlight=False)
    return EXIT_AS_CLAIMED if result.ok else EXIT_NOT_AS_CLAIMED


async def _terminable(main: Coroutine[Any, Any, T]) -> T:
    """SIGTERM unwinds like Ctrl-C: the children end, the terminal is given back."""
    task = asyncio.create_task(main)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


async def _demo(plan: DemoPlan, console: Console) -> Result:
    console.print(offer_text(plan) + "\n", highlight=False)
    workload = uniform(
        plan.model,
        count=plan.offered,
        prompt_tokens=plan.prompt_tokens,
        output_tokens=plan.output_tokens,
        seed=plan.seed,
    )
    direct = await _direct(plan, workload, console)
    kvgate, ledger = await _through_kvgate(plan, workload, console)
    return judge(plan, direct, kvgate, ledger)


async def _direct(plan: DemoPlan, workload: Workload, console: Console) -> Report:
    with Children() as children:
        engines = await start_engines(children, plan)
        phase = Phase("direct", workload, urls=engines, engines=engines)
        return await _shown(phase, plan, console)


async def _through_kvgate(plan: DemoPlan, workload: Workload, console: Console) -> tuple[Report, LedgerWatch]:
    with Children() as children:
        engines = await start_engines(children, plan)
        front = await start_kvgate(children, engines)
        ledger = LedgerWatch(front.admin_url)
        phase = Phase("kvgate", workload, urls=[front.url], engines=engines, ledger=ledger)
        return await _shown(phase, plan, console), ledger


async def _shown(phase: Phase, plan: DemoPlan, console: Console) -> Report:
    """Run a phase and show a frame five times a second."""
    running = asyncio.create_task(phase.run())
    try:
        with display_on(console) as display:
            while not running.done():
                display.show(frame_of(phase, plan, time.monotonic()))
                await asyncio.wait([running], timeout=_FRAME_INTERVAL_S)
            display.show(frame_of(phase, plan, time.monotonic()))
        console.print()
        return running.result()
    finally:
        running.cancel()


def result_json(result: Result) -> str:
    """The result as one JSON object; times are seconds, what is unknown is null."""
    fields = {"ok": result.ok, **asdict(result)}
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()
