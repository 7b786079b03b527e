"""The two measurements that several tests look at, each made once: requests one by one, and a burst."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from vllm import traffic
from vllm.steps import Step, Summary, tokens_by_request

if TYPE_CHECKING:
    from vllm.server import Engine

BURST_STEP_S = 0.02
"""A decoding step of a model in use: 10 to 30 ms on the GPU it was chosen for."""


@dataclass(frozen=True, slots=True)
class Accounted:
    """A request that was alone on the engine, and what the engine did for it."""

    call: traffic.Call
    kv_max: int
    """The most blocks in use while it ran."""
    tokens: int
    """Output tokens by the step log."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Streams that were offered at once: what the clients got, and what the engine did."""

    got: list[traffic.Got]
    steps: list[Step]
    summary: Summary


def one_by_one(engine: Engine) -> list[Accounted]:
    with httpx.Client(base_url=engine.url, timeout=traffic.REQUEST_S_MAX) as client:
        return [_alone(engine, client, call) for call in traffic.one_by_one()]


def _alone(engine: Engine, client: httpx.Client, call: traffic.Call) -> Accounted:
    mark = engine.steps.mark()
    client.post("/v1/completions", json=call.body()).raise_for_status()
    steps = engine.steps.since(mark)
    [tokens] = tokens_by_request(steps).values()
    return Accounted(call, max(step.kv for step in steps), tokens)


def burst(engine: Engine, url: str, seed: int) -> Burst:
    mark = engine.steps.mark()
    with engine.paced(BURST_STEP_S):
        got = asyncio.run(traffic.offer(url, traffic.burst(seed)))
    steps = engine.steps.since(mark)
    return Burst(got, steps, Summary.of(steps))
