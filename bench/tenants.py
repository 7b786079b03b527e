"""What does a tenant wait beside one that offers ten times what the pool can do?

    python bench/tenants.py [--ledger memory|redis] [--turn-s 12] [--turns 4] [--json]

Two simulated engines, real HTTP, everything on this machine: one kvgate, or two on one Redis. The situations that are
compared, and why "alone" means a full pool, are told in `tests/e2e/tenants/noisy.py`; the test beside it is this in
short. The exit code is 1 when the victim's p99 wait beside the flood is more than twice that alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.tenants.noisy import Noise, noise, table
from e2e.tenants.rig import in_one_process, in_two_replicas

LEDGERS = {"memory": in_one_process, "redis": in_two_replicas}
RATIO_MAX = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledger", choices=LEDGERS, default=None, help="both unless given")
    parser.add_argument("--turn-s", type=float, default=12.0, help="seconds of one turn")
    parser.add_argument("--turns", type=int, default=4, help="of each of the two that are compared")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {
        name: measure(name, options.turn_s, options.turns)
        for name in ([options.ledger] if options.ledger else LEDGERS)
    }
    if options.json:
        print(json.dumps({name: as_json(one) for name, one in found.items()}, indent=2))
    else:
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for name, one in found.items():
            print("\n".join(["", f"ledger: {name}", *table(one)]))
    return 0 if all(one.ratio <= RATIO_MAX for one in found.values()) else 1


def measure(ledger: str, turn_s: float, turns: int) -> Noise:
    with tempfile.TemporaryDirectory() as folder, LEDGERS[ledger](Path(folder)) as deployed:
        return asyncio.run(noise(deployed, turn_s, turns))


def as_json(found: Noise) -> dict[str, object]:
    situations = {
        name: {
            "victims": len(waits.answers),
            "refused_share": waits.refused_share,
            "wait_ms": {f"p{percent}": waits.wait_ms(percent) for percent in (50, 90, 99)},
            "within_bound_share": waits.within(found.bound_ms),
            "neighbour_offered_of_capacity": found.offered(name),
            "pool_busy_share": found.done(name),
        }
        for name, waits in found.waits.items()
    }
    return {
        "capacity_per_s": found.capacity_per_s,
        "p99_to_alone": found.ratio,
        "situations": situations,
    }


if __name__ == "__main__":
    sys.exit(main())
