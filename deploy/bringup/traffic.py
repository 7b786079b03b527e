"""Three tenants who ask, for as long as it runs, so that there is something to see.

    python traffic.py http://127.0.0.1:8080 http://127.0.0.1:8081 --policy policy.yaml

People ask steadily and little, researchers steadily and more, and every 45 seconds a job asks for a lot at once, so
that a queue forms and goes again. Two engines of 120 blocks are about three quarters full on average. The keys are
those of the policy file. Nothing is retried: what was refused is counted, and asked no more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ANSWERED = "answered"
REQUEST_S_MAX = 300.0
"""Above the longest wait in the policy's queues and the longest answer."""
REPORT_S = 30.0
"""Between two lines of the log."""
SEED = 12


@dataclass(frozen=True, slots=True)
class Flow:
    """What one tenant asks."""

    tenant: str
    every_s: float
    burst: int
    """Requests at once."""
    words: int
    """Of a prompt; about a token each."""
    output_tokens_max: int
    in_flight_max: int
    """More are left out: a load that only grows shows nothing."""


FLOWS = (
    Flow("chat", every_s=1.5, burst=1, words=100, output_tokens_max=64, in_flight_max=20),
    Flow("research", every_s=2.0, burst=1, words=180, output_tokens_max=129, in_flight_max=40),
    Flow("batch", every_s=45.0, burst=30, words=180, output_tokens_max=129, in_flight_max=40),
)


class Traffic:
    """All flows against some kvgates, in turn. `seen` counts (tenant, how it ended)."""

    def __init__(
        self, urls: Sequence[str], keys: Mapping[str, str], model: str = "llm", flows: Sequence[Flow] = FLOWS
    ) -> None:
        self._urls: Iterator[str] = itertools.cycle(urls)
        self._keys = keys
        self._model = model
        self._flows = flows
        self._random = random.Random(SEED)  # noqa: S311  the point is that it can be repeated
        self._in_flight: Counter[str] = Counter()
        self.seen: Counter[tuple[str, str]] = Counter()

    async def run(self) -> None:
        """Ask until cancelled; what is under way then is broken off."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_S_MAX, sock_connect=10.0)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for flow in self._flows:
                tasks.create_task(self._flow(http, tasks, flow))

    def lines(self) -> list[str]:
        """For each tenant, how its requests ended."""
        ends = {flow.tenant: Counter[str]() for flow in self._flows}
        for (tenant, end), count in sorted(self.seen.items()):
            ends[tenant][end] = count
        return [f"{tenant}: {_counts(of_tenant)}" for tenant, of_tenant in ends.items()]

    async def _flow(self, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup, flow: Flow) -> None:
        while True:
            room = flow.in_flight_max - self._in_flight[flow.tenant]
            for _ in range(min(flow.burst, room)):
                tasks.create_task(self._ask(http, flow))
            await asyncio.sleep(flow.every_s)

    async def _ask(self, http: aiohttp.ClientSession, flow: Flow) -> None:
        self._in_flight[flow.tenant] += 1
        try:
            end = await self._send(http, flow)
        except (aiohttp.ClientError, OSError, TimeoutError) as trouble:
            end = type(trouble).__name__
        finally:
            self._in_flight[flow.tenant] -= 1
        self.seen[flow.tenant, end] += 1

    async def _send(self, http: aiohttp.ClientSession, flow: Flow) -> str:
        headers = {"authorization": f"Bearer {self._keys[flow.tenant]}"}
        url = next(self._urls) + "/v1/chat/completions"
        async with http.post(url, json=self._body(flow), headers=headers) as response:
            last = b""
            async for chunk in response.content.iter_any():
                last = (last + chunk)[-32:]
        if response.status != 200:
            return response.headers.get("x-kvgate-reason", str(response.status))
        return ANSWERED if b"[DONE]" in last else "broken off"

    def _body(self, flow: Flow) -> dict[str, Any]:
        words = ("".join(self._random.choices("abcdefghijklmnopqrstuvwxyz", k=3)) for _ in range(flow.words))
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": " ".join(words)}],
            "max_tokens": flow.output_tokens_max,
            "stream": True,
        }


def _counts(ends: Counter[str]) -> str:
    return ", ".join(f"{count} {end}" for end, count in ends.items()) or "nothing yet"


def keys_of(policy_file: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The first key of each tenant of the policy. Raises KeyError for one that is not there, and OSError."""
    tenants = yaml.safe_load(policy_file.read_text())["tenants"]
    return {name: _key(tenant["keys"][0], policy_file.parent, env) for name, tenant in tenants.items()}


def _key(ref: Mapping[str, str], folder: Path, env: Mapping[str, str]) -> str:
    return env[ref["env"]] if "env" in ref else (folder / ref["file"]).read_text().strip()


async def _until_stopped(traffic: Traffic) -> None:
    running = asyncio.create_task(traffic.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        while not (await asyncio.wait([running], timeout=REPORT_S))[0]:
            print(" · ".join(traffic.lines()), flush=True)
        await running


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Three tenants who ask.")
    parser.add_argument("urls", nargs="+", metavar="URL", help="where a kvgate serves")
    parser.add_argument("--policy", type=Path, required=True, metavar="FILE", help="whose keys are used")
    parser.add_argument("--model", default="llm", metavar="NAME")
    given = parser.parse_args(arguments)
    asyncio.run(_until_stopped(Traffic(given.urls, keys_of(given.policy, os.environ), given.model)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
