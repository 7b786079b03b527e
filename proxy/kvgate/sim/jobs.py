"""What connects an HTTP request with the step loop: sequences go in, tokens and the end come out.

Tokens are counted, not carried: a reader that is slow finds several at once, as vLLM's streams do under load.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto


class Fate(Enum):
    """What became of a job apart from its tokens."""

    RUNNING = auto()
    LEFT = auto()
    """The client hung up."""
    ABORTED = auto()
    """The server is stopping: the answer ends with finish_reason `abort`."""
    CUT = auto()
    """The engine is gone: the connection breaks."""


@dataclass(slots=True)
class Progress:
    """New tokens of one choice, and why it ended if it did."""

    index: int
    tokens: int
    finish: str | None = None


class Job:
    """The sequences of one request. Bounded: it holds one counter for each sequence, whoever reads or not."""

    def __init__(self, sequences: int) -> None:
        self.fate = Fate.RUNNING
        self.unfinished = set(range(sequences))
        self._news: dict[int, Progress] = {}
        self._wake = asyncio.Event()

    def push(self, index: int, tokens: int, finish: str | None) -> None:
        progress = self._news.setdefault(index, Progress(index, 0))
        progress.tokens += tokens
        progress.finish = finish
        if finish:
            self.unfinished.discard(index)
        self._wake.set()

    def end(self, fate: Fate) -> None:
        """Only the first end counts."""
        if self.fate is Fate.RUNNING:
            self.fate = fate
            self._wake.set()

    async def news(self) -> list[Progress]:
        """What is new, in order of choices; empty only when the fate is sealed and all is told."""
        if not self._news and self.fate is Fate.RUNNING:
            self._wake.clear()
            await self._wake.wait()
        news = sorted(self._news.values(), key=lambda progress: progress.index)
        self._news = {}
        return news
