"""How fast does an engine write? For answers that come in one piece, and show nothing of how far they are.

An engine's own counter of generated tokens, over the time between two scrapes and the sequences it ran meanwhile. Where
an engine tells no such numbers, the streams that this process relays from it are what can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

TOKENS_PER_S_UNKNOWN = 25.0
"""Of a sequence, where nothing was seen yet: 40 ms a step is what a card in use takes for a large batch."""
NEWEST_WEIGHT = 0.3
"""Of a new reading: scrapes come every second, and a batch changes in a few of them."""
LOOK_EVERY_S = 0.5
"""Engines are scraped every second."""
SPAN_S_MIN = 0.2
"""Between two readings of a counter: the shorter, the more it matters when in between a step was counted."""


class EngineCounters(Protocol):
    """An engine's numbers at its last scrape; None where it did not export one."""

    @property
    def running(self) -> float | None: ...

    @property
    def generation_tokens(self) -> float | None: ...


class EngineState(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def gauges(self) -> EngineCounters | None: ...


@dataclass(slots=True)
class _Reading:
    tokens: float
    running: float
    at_s: float
    per_s: float | None = None


class Rates:
    """From what engines export, and from streams. `look` at each beat."""

    def __init__(self, statuses: Callable[[], Sequence[EngineState]] = tuple) -> None:
        self._statuses = statuses
        self._readings: dict[str, _Reading] = {}
        """By engine; of those that are gone the entry goes with the next look."""
        self._streams: dict[str, float] = {}
        self._looked_s = float("-inf")

    def tokens_per_s(self, engine_id: str) -> float | None:
        """Output tokens of one running sequence there; None while nothing is known."""
        reading = self._readings.get(engine_id)
        if reading is not None and reading.per_s is not None:
            return reading.per_s
        return self._streams.get(engine_id)

    def fastest_per_s(self, engine_id: str | None = None) -> float | None:
        """As `tokens_per_s`, but the largest that is known, of any engine for None: for what must not be too little."""
        ids = {*self._readings, *self._streams} if engine_id is None else (engine_id,)
        known = [self.tokens_per_s(each) for each in ids] + [self._streams.get(each) for each in ids]
        return max((rate for rate in known if rate is not None), default=None)

    def look(self, now_s: float) -> None:
        """Read what the engines said last, if that may be something new."""
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        known, self._readings = self._readings, {}
        known_now: set[str] = set()
        for engine in self._statuses():
            known_now.add(engine.id)
            gauges = engine.gauges
            if gauges is None or gauges.generation_tokens is None or gauges.running is None:
                continue
            now = _Reading(gauges.generation_tokens, gauges.running, now_s)
            self._readings[engine.id] = _next(known.get(engine.id), now)
        self._streams = {name: rate for name, rate in self._streams.items() if name in known_now}

    def streamed(self, engine_id: str, tokens: float, sequence_s: float) -> None:
        """The streams from an engine brought so many tokens, in so many seconds of running of all of them."""
        if sequence_s > 0.0 and tokens > 0.0:
            self._streams[engine_id] = _mixed(self._streams.get(engine_id), tokens / sequence_s)


def _next(before: _Reading | None, now: _Reading) -> _Reading:
    """While the counter stands and something runs, it is the same scrape as before, or one right after it."""
    if before is None or now.tokens < before.tokens:
        return now
    if now.tokens == before.tokens and now.running == 0.0:  # an idle engine says nothing of its pace
        now.per_s = before.per_s
        return now
    if now.tokens == before.tokens or now.at_s - before.at_s < SPAN_S_MIN:
        before.running = max(before.running, now.running)
        return before
    sequences = max((before.running + now.running) / 2, 1.0)
    now.per_s = _mixed(before.per_s, (now.tokens - before.tokens) / (now.at_s - before.at_s) / sequences)
    return now


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + NEWEST_WEIGHT * (new - known)
