"""What the engines say while a workload runs: KV use, running, waiting, preemptions.

The simulator answers `GET /sim/state`, which also knows the tokens it computed twice; a real vLLM has only
`/metrics`, where recomputation is invisible. Both give the same sample.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""A scrape of a large vLLM is some hundred KB."""
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
"""A sample that takes longer tells about another time than it is noted for."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One look at one engine."""

    url: str
    at_s: float
    kv_use: float
    """Share of the usable KV blocks that live requests hold, 0 to 1."""
    running: int
    waiting: int
    preemptions: int
    """Counted since the engine started."""
    recomputed_tokens: int | None = None
    """Tokens computed again after a preemption, since the start; None where the engine doesn't tell."""
    running_max: int | None = None
    """The most that ever ran in one step, since the start; None where the engine doesn't tell."""
    blocks_total: int | None = None


class EngineWatch:
    """Samples engines at an interval and keeps what it saw."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        interval_s: float = 0.1,
        samples_max: int = 100_000,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = list(urls)
        self._interval_s = interval_s
        self._samples_max = samples_max
        self._clock_s = clock_s
        self._without_state: set[str] = set()
        self.samples: list[EngineSample] = []
        self.latest: dict[str, EngineSample] = {}
        self.missed = 0
        """Looks that got no usable answer."""

    async def watch(self) -> None:
        """Sample until cancelled, or until `samples_max` are kept (a bound on memory, hours long)."""
        while len(self.samples) < self._samples_max:
            await self.look()
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """One sample of each engine; an engine that does not answer is counted in `missed`."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as http:
            await asyncio.gather(*(self._look_at(http, url) for url in self._urls))

    async def _look_at(self, http: aiohttp.ClientSession, url: str) -> None:
        try:
            sample = await self._sample(http, url)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError):
            self.missed += 1
            return
        self.samples.append(sample)
        self.latest[url] = sample

    async def _sample(self, http: aiohttp.ClientSession, url: str) -> EngineSample:
        if url not in self._without_state:
            async with http.get(url + "/sim/state") as response:
                if response.status == 200:
                    return from_state(url, self._clock_s(), await response.json())
            self._without_state.add(url)
        async with http.get(url + "/metrics") as response:
            response.raise_for_status()
            text = (await response.content.read(_ANSWER_BYTES_MAX)).decode()
            return from_metrics(url, self._clock_s(), text)


def from_state(url: str, at_s: float, state: dict[str, Any]) -> EngineSample:
    """A sample from the simulator's `/sim/state`. Raises KeyError when a field is missing."""
    return EngineSample(
        url=url,
        at_s=at_s,
        kv_use=state["blocks_used"] / state["blocks_usable"],
        running=state["running"],
        waiting=state["waiting"],
        preemptions=state["preemptions"],
        recomputed_tokens=state["recomputed_tokens"],
        running_max=state["running_max"],
        blocks_total=state["blocks_usable"],
    )


def from_metrics(url: str, at_s: float, text: str) -> EngineSample:
    """A sample from vLLM's `/metrics`, its data-parallel ranks together.

    Raises KeyError when a series is missing.
    """
    use = _series(text, "vllm:kv_cache_usage_perc")
    return EngineSample(
        url=url,
        at_s=at_s,
        kv_use=sum(use) / len(use),
        running=int(sum(_series(text, "vllm:num_requests_running"))),
        waiting=int(sum(_series(text, "vllm:num_requests_waiting"))),
        preemptions=int(sum(_series(text, "vllm:num_preemptions_total"))),
    )


def _series(text: str, name: str) -> list[float]:
    """The values of all series of one metric in the Prometheus text format."""
    lines = (line for line in text.splitlines() if line.startswith((name + "{", name + " ")))
    values = [float(line[max(line.rfind("}"), len(name) - 1) + 1 :].split()[0]) for line in lines]
    if not values:
        raise KeyError(name)
    return values
