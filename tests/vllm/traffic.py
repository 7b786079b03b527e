"""The requests this bench sends: seeded, of exact length, with token ids as prompts.

Ids are drawn afresh for each prompt, so no two share a prefix and the engine's prefix cache can't help: what
a request takes is what it says. `seed` is never sent: vLLM's CPU build dies of it when a prefill is split.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from vllm.server import BLOCK_SIZE, MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

FIRST_ID, LAST_ID = 300, 900
"""Ordinary tokens: above the special ones and the single bytes, below the end of the vocabulary."""

REQUEST_S_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Call:
    """One completion of exact length."""

    prompt: tuple[int, ...]
    max_tokens: int

    def body(self, *, stream: bool = False) -> dict[str, Any]:
        fields = {
            "model": MODEL,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return fields | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


@dataclass(slots=True)
class Got:
    """What came back for one stream."""

    status: int
    finish_reason: str | None = None
    completion_tokens: int | None = None
    done: bool = False
    error: str | None = None

    @property
    def complete(self) -> bool:
        return self.status == 200 and self.done and self.error is None and self.finish_reason == "length"

    def read(self, line: str) -> None:
        """Take in one line of the event stream."""
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data or "{}")
        if "error" in event:
            self.error = data
        for choice in event.get("choices", ()):
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        if usage := event.get("usage"):
            self.completion_tokens = usage["completion_tokens"]


def random_prompt(rng: random.Random, tokens: int) -> tuple[int, ...]:
    return tuple(rng.randint(FIRST_ID, LAST_ID) for _ in range(tokens))


def one_by_one() -> list[Call]:
    """30 requests: lengths at random, and the edges where one token more takes one block more."""
    rng = random.Random(20)
    edges = [(1, 1), (320, 1), (BLOCK_SIZE, 1), (BLOCK_SIZE + 1, 1), (31, 2), (31, 3), (192, 129), (192, 130)]
    edges += [(161, 160), (1, 33)]
    edges += [(600, slots - 599) for slots in (19 * BLOCK_SIZE, 19 * BLOCK_SIZE + 1)]
    sizes = edges + [(rng.randint(1, 600), rng.randint(1, 300)) for _ in range(30 - len(edges))]
    return [Call(random_prompt(rng, prompt), max_tokens) for prompt, max_tokens in sizes]


def burst(seed: int) -> list[Call]:
    """48 equal requests of 10 blocks each, four times what 120 blocks hold at once.

    Another seed gives other tokens: a second burst must not find the first one's blocks in the prefix cache.
    """
    rng = random.Random(seed)
    return [Call(random_prompt(rng, 192), 129) for _ in range(48)]


async def offer(url: str, calls: Sequence[Call], *, whole: int = 0) -> list[Got]:
    """Send all calls at once, and read each to its end: as streams, but the first `whole` of them in one piece."""
    limits = httpx.Limits(max_connections=len(calls))
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_S_MAX, limits=limits) as client:
        asked = (
            _whole(client, call) if index < whole else _stream(client, call)
            for index, call in enumerate(calls)
        )
        return list(await asyncio.gather(*asked))


async def lines(answer: httpx.Response) -> AsyncIterator[str]:
    """The lines of an event stream. httpx's own also end at U+0085 and the like, which random weights do say."""
    pending = b""
    async for chunk in answer.aiter_raw():
        *whole, pending = (pending + chunk).split(b"\n")
        for line in whole:
            yield line.decode()


async def _whole(client: httpx.AsyncClient, call: Call) -> Got:
    try:
        answer = await client.post("/v1/completions", json=call.body())
    except httpx.TransportError as error:
        return Got(0, error=repr(error))
    if answer.status_code != 200:
        return Got(answer.status_code, error=answer.text)
    said = answer.json()
    return Got(200, said["choices"][0]["finish_reason"], said["usage"]["completion_tokens"], done=True)


async def _stream(client: httpx.AsyncClient, call: Call) -> Got:
    got = Got(0)
    try:
        async with client.stream("POST", "/v1/completions", json=call.body(stream=True)) as answer:
            got.status = answer.status_code
            if got.status != 200:
                got.error = (await answer.aread()).decode()
                return got
            async for line in lines(answer):
                got.read(line)
    except httpx.TransportError as error:
        got.error = repr(error)
    return got
