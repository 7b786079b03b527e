"""Clients with keys that write down what happened to each request, by the wall clock (which Prometheus reads, too)."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

REQUEST_S_MAX = 120.0
PAUSE_S = 0.5
"""After a refusal; SDKs wait at least that long."""


@dataclass(frozen=True, slots=True)
class Habit:
    """What the requests of one tenant look like."""

    tenant: str
    key: str
    pool: str
    prompt_tokens: int = 96
    max_tokens: int | None = 48
    output_tokens: int = 24
    """After which the simulated model stops by itself."""
    chat: bool = False
    """A chat with words, whose tokens have to be estimated; otherwise token ids, which are counted exactly."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"


@dataclass(slots=True)
class Seen:
    """One request."""

    habit: Habit
    sent_s: float
    first_s: float | None = None
    """The first byte of an answer that was let in."""
    ended_s: float | None = None
    reason: str | None = None
    """`x-kvgate-reason` of a refusal, or `broken`."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    whole: bool = False

    def queued_at(self, at_s: float) -> bool:
        until = self.first_s or self.ended_s
        return self.sent_s <= at_s and (until is None or at_s < until)

    def running_at(self, at_s: float) -> bool:
        return (
            self.first_s is not None
            and self.first_s <= at_s
            and (self.ended_s is None or at_s < self.ended_s)
        )


@dataclass(slots=True)
class Clients:
    """Any number of clients; each sends the next request when its last one is over, until `stop`."""

    urls: Sequence[str]
    seen: list[Seen] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _going: bool = True
    _random: random.Random = field(default_factory=lambda: random.Random(7))
    _http: aiohttp.ClientSession | None = None

    def add(self, habit: Habit, count: int = 1, *, pause_s: float = 0.0) -> None:
        """`count` more clients of this habit, each with a pause after each request."""
        for _ in range(count):
            url = self.urls[len(self._tasks) % len(self.urls)]
            self._tasks.append(asyncio.create_task(self._client(habit, url, pause_s)))

    async def stop(self, within_s: float = REQUEST_S_MAX) -> None:
        """No new requests; those under way go on to their end."""
        self._going = False
        async with asyncio.timeout(within_s):
            await asyncio.gather(*self._tasks)
        if self._http is not None:
            await self._http.close()

    async def leave(self) -> None:
        """Drop everything under way, as clients do that lost patience."""
        self._going = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    async def _client(self, habit: Habit, url: str, pause_s: float) -> None:
        while self._going:
            one = Seen(habit, time.time())
            self.seen.append(one)
            try:
                await self._send(one, url)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                one.reason = one.reason or "broken"
            one.ended_s = time.time()
            await asyncio.sleep(PAUSE_S if one.reason else pause_s)

    async def _send(self, one: Seen, url: str) -> None:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=REQUEST_S_MAX), connector=aiohttp.TCPConnector(limit=0)
            )
        headers = {
            "authorization": f"Bearer {one.habit.key}",
            "x-sim-output-tokens": str(one.habit.output_tokens),
        }
        async with self._http.post(
            url + one.habit.path, json=self._body(one.habit), headers=headers
        ) as answer:
            if answer.status != 200:
                one.reason = answer.headers.get("x-kvgate-reason", f"status {answer.status}")
                await answer.read()
                return
            async for line in answer.content:
                one.first_s = one.first_s or time.time()
                _note(one, line)

    def _body(self, habit: Habit) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": habit.pool,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if habit.chat:
            text = " ".join(self._random.choices(["one", "two", "six", "ten"], k=habit.prompt_tokens))
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = self._random.choices(range(16, 999), k=habit.prompt_tokens)
        return body if habit.max_tokens is None else body | {"max_tokens": habit.max_tokens}


def _note(one: Seen, line: bytes) -> None:
    data = line.removeprefix(b"data:").strip()
    if data == b"[DONE]":
        one.whole = True
    elif data.startswith(b"{"):
        event = json.loads(data)
        if "error" in event:
            one.reason = "broken"
        usage = event.get("usage") or {}
        one.prompt_tokens = usage.get("prompt_tokens", one.prompt_tokens)
        one.completion_tokens = usage.get("completion_tokens", one.completion_tokens)
