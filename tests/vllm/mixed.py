"""Mixed requests for the tests of forecasts: lengths that are known, and lengths that nobody knows.

Known: prompts and outputs of 32 to 512 tokens, `ignore_eos`. Unknown: chats without a limit, sampled from random weights,
which end at one of `STOPS` ordinary tokens; so each token is the last with a chance of about `STOPS` in the
vocabulary's size, whatever came before: a geometric distribution.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from vllm import traffic
from vllm.model import VOCABULARY, WORDS
from vllm.server import MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

STOPS = 10
"""Of 1,024 tokens: about a hundred tokens for an answer."""


def known(sizes: int, tokens: int, count: int = 48) -> list[traffic.Call]:
    """Two seeds: of the lengths, and of the prompts, which must not be in the prefix cache already."""
    rng, words = random.Random(sizes), random.Random(tokens)
    return [
        traffic.Call(traffic.random_prompt(words, rng.randint(32, 512)), rng.randint(32, 512))
        for _ in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Chat:
    """A question of which nobody knows how long the answer gets."""

    words: int
    seed: int

    def body(self) -> dict[str, Any]:
        rng = random.Random(self.seed)
        stops = random.Random(0).sample(range(300, VOCABULARY), STOPS)
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": " ".join(rng.choices(WORDS, k=self.words))}],
            "temperature": 1.0,
            "stop_token_ids": stops,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def unknown(seed: int, count: int) -> list[Chat]:
    rng = random.Random(seed)
    return [Chat(rng.randint(20, 300), rng.getrandbits(48)) for _ in range(count)]


async def ask(url: str, chats: Sequence[Chat]) -> list[traffic.Got]:
    """Send all at once, as streams, and read each to its end."""
    limits = httpx.Limits(max_connections=len(chats))
    async with httpx.AsyncClient(base_url=url, timeout=traffic.REQUEST_S_MAX, limits=limits) as client:
        return list(await asyncio.gather(*(_stream(client, chat) for chat in chats)))


async def _stream(client: httpx.AsyncClient, chat: Chat) -> traffic.Got:
    got = traffic.Got(0)
    async with client.stream("POST", "/v1/chat/completions", json=chat.body()) as answer:
        got.status = answer.status_code
        async for line in traffic.lines(answer):
            got.read(line)
    return got
