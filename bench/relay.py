"""What kvgate costs for each request and each chunk, beside the least a proxy of the same parts can cost.

    python bench/relay.py [--repeats 3] [--scale 1.0] [--json] [--no-leak]

Side by side in one run, interleaved, the order reversed each time, medians: *direct* (no proxy), *bare* (an
ASGI pass-through under the same server and transport, which decides nothing), *kvgate* (the whole application
with learned counter and memory ledger), and *nginx* if it is installed. The proxies have one core, the engine
and the clients another.

The number to look at is the processor time of the proxy for each request and each event, relative to *bare*:
it does not count the time spent waiting for a core, so it holds on a busy machine, too. Wall-clock figures are
only worth something when the load average is low; it is printed beside them.

Afterwards a leak check: thousands of requests and streams, one in twenty left by its client in the middle; the
number of tasks has to be what it was, the ledger at zero, and the memory flat. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from dataclasses import asdict, dataclass

import uvloop
from relay_children import Child, Nginx, cores
from relay_leak import Leaks, check_leaks
from relay_load import FOR_EVER, Seen, connect, request_bytes, run_for
from relay_report import Measured, print_memory, print_tests, summary

SETTLE_S = 0.6
"""Between two measurements: what a proxy holds of aborted requests is given back after 0.3 s."""
IDLE_STREAMS = 256
IDLE_GAP_MS = 60_000
IDLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Test:
    name: str
    title: str
    unit: str
    """What the processor time is divided by: `request` or `event`."""
    connections: int
    seconds: float
    events: int = 0
    gap_ms: int = 0


TESTS = (
    Test("ns1", "JSON answers, 1 connection", "request", 1, 1.5),
    Test("ns16", "JSON answers, 16 connections", "request", 16, 2.0),
    Test("ns64", "JSON answers, 64 connections", "request", 64, 2.0),
    Test("s64p", "64 streams, an event each 20 ms", "event", 64, 4.0, FOR_EVER, 20),
    Test("burst", "16 streams of 400 events without a gap", "event", 16, 2.0, 400, 0),
    Test("ttft", "4 streams of 10 events, 10 ms apart", "request", 4, 2.0, 10, 10),
)


class Direct:
    """No proxy: what the engine and the clients can do by themselves."""

    def __init__(self, url: str) -> None:
        self.url = url

    def cpu_s(self) -> float:
        return 0.0

    def memory_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


Candidate = Direct | Child | Nginx


async def measure(test: Test, name: str, candidate: Candidate, scale: float) -> Measured:
    seen, cpu_s, passed_s = await run_for(
        candidate.url,
        test.seconds * scale,
        0.4,
        connections=test.connections,
        events=test.events,
        gap_ms=test.gap_ms,
        cpu_s=candidate.cpu_s,
    )
    await asyncio.sleep(SETTLE_S)
    count = seen.requests if test.unit == "request" else seen.events
    return Measured.of(test.name, name, count, cpu_s, passed_s, seen)


async def memory(candidate: Candidate) -> tuple[float, float]:
    """MB after some use, and KB for each stream that is open and silent."""
    await run_for(candidate.url, 0.5, 0.2, connections=16, cpu_s=candidate.cpu_s)
    await asyncio.sleep(SETTLE_S)
    base = candidate.memory_bytes()
    streams = await connect(candidate.url, IDLE_STREAMS, request_bytes(FOR_EVER, IDLE_GAP_MS), Seen())
    await asyncio.sleep(IDLE_S)
    full = candidate.memory_bytes()
    for stream in streams:
        stream.close()
    await asyncio.sleep(SETTLE_S)
    return base / 2**20, (full - base) / IDLE_STREAMS / 1024


async def run(args: argparse.Namespace) -> int:
    proxy_core, load_core = cores()
    os.sched_setaffinity(0, {load_core})
    engine = Child("relay_engine.py", core=load_core)
    candidates = started(engine.url, proxy_core)
    measured: list[Measured] = []
    loads = [os.getloadavg()[0]]
    try:
        sizes = {name: await memory(one) for name, one in candidates.items() if name != "direct"}
        chosen = [test for test in TESTS if not args.only or test.name in args.only.split(",")]
        for repeat in range(args.repeats):
            for test in chosen:
                order = list(candidates.items())
                for name, candidate in reversed(order) if repeat % 2 else order:
                    measured.append(await measure(test, name, candidate, args.scale))
            loads.append(os.getloadavg()[0])
    finally:
        for candidate in candidates.values():
            candidate.close()
    leaks = None if args.no_leak else await check_leaks(engine.url, proxy_core)
    engine.close()
    return report(args, measured, sizes, loads, leaks)


def started(upstream: str, core: int) -> dict[str, Candidate]:
    candidates: dict[str, Candidate] = {"direct": Direct(upstream)}
    candidates["bare"] = Child("relay_bare.py", upstream, core=core)
    candidates["kvgate"] = Child("relay_gate.py", upstream, core=core)
    if Nginx.installed():
        candidates["nginx"] = Nginx(upstream.removeprefix("http://"), _free_port(), core)
    return candidates


def report(
    args: argparse.Namespace,
    measured: list[Measured],
    sizes: dict[str, tuple[float, float]],
    loads: list[float],
    leaks: Leaks | None,
) -> int:
    if args.json:
        found = {
            "load_average": loads,
            "tests": summary(measured),
            "memory_mb_and_kb_per_stream": sizes,
            "leaks": None if leaks is None else asdict(leaks) | {"ok": leaks.ok},
        }
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        print(f"load average {', '.join(f'{load:.1f}' for load in loads)}; {os.cpu_count()} cores")
        if not Nginx.installed():
            print("nginx is not installed: left out")
        print_tests(measured, {test.name: (test.title, test.unit) for test in TESTS})
        print_memory(sizes)
        if leaks is not None:
            print(leaks.text())
    return 0 if leaks is None or leaks.ok else 1


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of all durations")
    parser.add_argument("--only", default="", help=f"of {','.join(test.name for test in TESTS)}")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-leak", action="store_true")
    return uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
