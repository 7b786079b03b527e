"""The compose file's `cpu` shape as processes: two kvgates on one shared ledger, two simulated engines, Prometheus.

    make up                                    # or: .venv/bin/python deploy/up.py --for 30s

Nothing is installed and nothing is left behind: Ctrl-C (or SIGTERM) ends every process, and the folder with their logs
goes with them. What is started with which arguments is read from compose.yaml; only addresses differ. The ports are
those that the compose file publishes; with `--free-ports`, others.

The exit code is 0 when it ran until it was told to end, 1 when a part did not start or ended by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from bringup.children import ChildFailedError, Children
from bringup.parts import Parts
from bringup.ports import HOST, PortTakenError, check_free, places_for, with_free_ports
from bringup.shape import read_shape
from bringup.traffic import Traffic, keys_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from bringup.shape import Shape

COMPOSE = Path(__file__).resolve().parent / "compose.yaml"
POLICY = COMPOSE.parent / "compose/policy.yaml"
WATCH_S = 0.5
"""Between two looks at whether everything still runs."""
TARGETS_S_MAX = 15.0
"""For Prometheus to have scraped everything once, at an interval of 5 s. Longer is said and not waited for."""
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def bring_up(shape: Shape, ask: bool, seconds: float | None, folder: Path) -> None:
    """Everything, until a signal or the end of its time. Raises ChildFailedError."""
    stop = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with Children(folder) as children:
        try:
            parts = Parts(shape, places_for(shape), COMPOSE, folder, children)
            await _unless(stop, _serve(shape, parts, ask, seconds))
        finally:  # from here on another Ctrl-C hastens the end
            for number in _SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)


async def _unless(stop: asyncio.Event, work: Awaitable[None]) -> None:
    """Do the work, and break it off when told to stop."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


async def _serve(shape: Shape, parts: Parts, ask: bool, seconds: float | None) -> None:
    keys = keys_of(POLICY, os.environ | dict(shape.gates[0].environment))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as http:
        print("starting …", flush=True)
        prometheus = await parts.start(http)
        await _tell(shape, keys, prometheus, http)
    traffic = Traffic([f"http://{HOST}:{gate.port}" for gate in shape.gates], keys)
    asking = asyncio.create_task(traffic.run() if ask else asyncio.Event().wait())
    try:
        who = "three tenants ask" if ask else "nobody asks"
        print(f"{who}; {f'it ends in {seconds:g} s' if seconds else 'Ctrl-C ends it'}", flush=True)
        await _watch(parts, asking, seconds)
    finally:
        asking.cancel()
        await asyncio.wait([asking])
        if ask:
            print("", "what the tenants saw:", *traffic.lines(), sep="\n", flush=True)


async def _watch(parts: Parts, asking: asyncio.Task[Any], seconds: float | None) -> None:
    """Until the time is over. Raises ChildFailedError, and whatever ended the traffic."""
    end_s = time.monotonic() + seconds if seconds else float("inf")
    while time.monotonic() < end_s:
        parts.check()
        if asking.done():
            await asking
        await asyncio.sleep(WATCH_S)


# What is told.


async def _tell(
    shape: Shape, keys: dict[str, str], prometheus: str | None, http: aiohttp.ClientSession
) -> None:
    for gate in shape.gates:
        print(f"{gate.name:12}http://{HOST}:{gate.port}/v1    admin http://{HOST}:{gate.admin_port}/console")
    print(f"{'keys':12}{', '.join(f'{tenant}: {key}' for tenant, key in keys.items())}")
    print(f"{'policy':12}{POLICY}, read again when it is saved")
    if prometheus is None:
        print(f"{'prometheus':12}not started: there is none on this machine, and no package could be fetched")
    else:
        up, count = await _scraped(http, prometheus)
        print(f"{'prometheus':12}{prometheus}    {up} of {count} targets up")
    print(f"{'grafana':12}only with containers; its dashboards are in {COMPOSE.parent.parent / 'grafana'}")


async def _scraped(http: aiohttp.ClientSession, url: str) -> tuple[int, int]:
    """How many targets are up, of how many: once all are, or after a while."""
    up, count = 0, 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TARGETS_S_MAX):
            while up < count or not count:
                up, count = await _targets(http, url)
                await asyncio.sleep(WATCH_S)
    return up, count


async def _targets(http: aiohttp.ClientSession, url: str) -> tuple[int, int]:
    async with http.get(url + "/api/v1/targets") as response:
        found: list[dict[str, Any]] = (await response.json())["data"]["activeTargets"]
    return sum(target["health"] == "up" for target in found), len(found)


# The command.


def duration_s(text: str) -> float:
    """`30s`, `5m`, `1h`. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None or not float(found[1]):
        raise ValueError(text)
    return float(found[1]) * _SECONDS[found[2]]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Two kvgates, two simulated engines, a ledger, Prometheus, three tenants."
    )
    parser.add_argument(
        "--for", dest="seconds", type=duration_s, metavar="TIME", help="end after 30s, 5m, 1h; or never"
    )
    parser.add_argument(
        "--free-ports", action="store_true", help="other ports than those of the compose file"
    )
    parser.add_argument("--no-traffic", action="store_true", help="nobody asks but you")
    given = parser.parse_args(arguments)
    shape = read_shape(COMPOSE, os.environ)
    try:
        if not given.free_ports:
            check_free(shape)
        with tempfile.TemporaryDirectory(prefix="kvgate-up-") as folder:
            wanted = with_free_ports(shape) if given.free_ports else shape
            asyncio.run(bring_up(wanted, not given.no_traffic, given.seconds, Path(folder)))
    except (ChildFailedError, PortTakenError) as trouble:
        print(trouble, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
