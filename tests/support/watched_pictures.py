"""The pictures of the README, from a real run: `make dashboards-images` (about two minutes).

Three tenants at two simulated engines for a minute and a half: everybody has room, then one of them floods the pool,
then long answers come. What is drawn is what Prometheus scraped.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from kvgate_dashboards.drawing import picture
from kvgate_dashboards.reading import boards, panels
from kvgate_dashboards.view import View
from support.watched_run import CRAWLER, JOBS, LONG_JOBS, ROOT, WEB, WatchedRun

FOLDER = ROOT / "grafana/images"
BYTES_MAX = 150_000
RATE_S = 10
PICTURES = {
    "overview.png": ("kvgate-overview", ("Is anyone waiting, who, why, what would help", "The queue")),
    "tenants.png": (
        "kvgate-tenants",
        ("Now", "The KV cache: held against promised and allowed", "What each got"),
    ),
    "engines.png": ("kvgate-engines", ("Are they well", "KV blocks: reserved against used")),
}
"""File → board, and its rows."""


async def record(folder: Path) -> tuple[WatchedRun, float, float]:
    """The run, with its begin and the height of the overload; Prometheus can still be asked."""
    run = WatchedRun(folder, small_pool=False, crawler_per_minute=6000)
    async with run:
        await asyncio.sleep(3.0)
        begin_s = time.time()
        clients = run.clients
        clients.add(WEB, 4, pause_s=0.5)
        clients.add(replace(CRAWLER, output_tokens=24), 2, pause_s=1.0)
        await asyncio.sleep(15.0)
        for _ in range(12):
            clients.add(JOBS)
            await asyncio.sleep(0.8)
        clients.add(LONG_JOBS, 4)
        await asyncio.sleep(15.0)
        clients.add(WEB, 8, pause_s=0.3)
        clients.add(CRAWLER, 4)
        await asyncio.sleep(35.0)
        end_s = time.time()
        await clients.leave()
    return run, begin_s, end_s


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run, begin_s, end_s = asyncio.run(record(Path(folder)))
        try:
            for name, (uid, rows) in PICTURES.items():
                board = boards()[uid]
                view = View(run.prometheus, begin_s, end_s, RATE_S, {"pool": "chat"})
                drawn = picture([p for p in panels(board) if p.section in rows], view, board["title"])
                (FOLDER / name).write_bytes(drawn)
                print(f"{name}: {len(drawn):,} bytes")
                if len(drawn) > BYTES_MAX:
                    return 1
        finally:
            run.prometheus.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
