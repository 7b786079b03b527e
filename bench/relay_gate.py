"""kvgate itself, whole, for the bench: learned counter, memory ledger, a log line for each request.

Its bounds are set so high that nothing queues, except where the bench is about that. Each line on its standard
input is answered by one on its standard output: how many tasks there are and what the ledger holds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys

import uvloop
from relay_children import say_ready

from kvgate.app import App, calm_garbage_collector
from kvgate.config import Settings
from kvgate.telemetry.logs import configure_logs

UNBOUND = 1_000_000


def _told(app: App) -> dict[str, int]:
    gc.collect()
    view = app.ledger.view()
    return {
        "tasks": len(asyncio.all_tasks()),
        "objects": len(gc.get_objects()),
        "active": app.gateway.active,
        "queued": view.queued,
        "reservations": sum(use.reservations for use in view.engines),
        "reserved_blocks": sum(use.reserved.use_blocks for use in view.engines),
    }


async def _serve(upstream: str) -> None:
    app = App(
        Settings(backends=(upstream,), port=0, admin_port=0, max_num_seqs=UNBOUND, prefill_tokens_max=UNBOUND)
    )
    async with app.running():
        while not app.pool.available():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        ended = asyncio.Event()

        def asked() -> None:
            if sys.stdin.buffer.readline():
                print(json.dumps(_told(app)), flush=True)
            else:
                ended.set()

        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), asked)
        calm_garbage_collector()  # as `kvgate serve` does
        say_ready(app.url)
        await ended.wait()


if __name__ == "__main__":
    configure_logs()
    uvloop.run(_serve(sys.argv[1]))
