"""Draw a dashboard from a real Prometheus into a PNG, without a Grafana.

    python grafana/render.py --prometheus http://127.0.0.1:9090 --board kvgate-overview --last 30m --out overview.png

The queries are those of the dashboard's JSON. `make dashboards-images` makes the pictures of the README with it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kvgate_dashboards.drawing import picture
from kvgate_dashboards.reading import boards, panels
from kvgate_dashboards.source import Prometheus
from kvgate_dashboards.view import View

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration_s(text: str) -> float:
    """`90s`, `30m`, `6h`, `2d`."""
    try:
        return float(text[:-1]) * SECONDS[text[-1:]]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError("a duration such as 30m or 6h") from None


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    drawn = [uid for uid in boards() if uid != "kvgate-runbook"]
    parser.add_argument("--prometheus", required=True, metavar="URL", help="such as http://127.0.0.1:9090")
    parser.add_argument("--board", choices=drawn, default="kvgate-overview")
    parser.add_argument(
        "--section", action="append", metavar="TITLE", help="only these rows of it; may be repeated"
    )
    parser.add_argument(
        "--last", type=duration_s, default=3600.0, metavar="TIME", help="how far back. Default: 1h"
    )
    parser.add_argument(
        "--scrape", type=duration_s, default=15.0, metavar="TIME", help="between scrapes. Default: 15s"
    )
    parser.add_argument("--pool", default=".*", metavar="REGEX")
    parser.add_argument("--tenant", default=".*", metavar="REGEX")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """0, or 1 when the board has no such row."""
    asked = options(arguments)
    board = boards()[asked.board]
    wanted = [p for p in panels(board) if not asked.section or p.section in asked.section]
    if not wanted:
        print(f"no such row: {', '.join(asked.section)}", file=sys.stderr)  # noqa: T201
        return 1
    end_s = time.time()
    chosen = {"pool": asked.pool, "tenant": asked.tenant}
    rate_s = round(asked.scrape * 5)
    view = View(Prometheus(asked.prometheus), end_s - asked.last, end_s, rate_s, chosen)
    asked.out.write_bytes(picture(wanted, view, board["title"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
