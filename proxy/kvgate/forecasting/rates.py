"""How fast does an engine write? For answers that come in one piece, and show nothing of how far they are.

An engine's own counter of steps, over the time between two scrapes: each gives every running sequence one token. Where
the generated tokens show that it is not so, they are gone by, over the sequences that ran meanwhile. Where an engine
tells no such numbers, the streams that this process relays from it are what can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

TOKENS_PER_S_UNKNOWN = 25.0
"""Of a sequence, where nothing was seen yet: 40 ms a step is what a card in use takes for a large batch."""
NEWEST_WEIGHT = 0.3
"""Of a new reading: scrapes come every second, and a batch changes in a few of them."""
LOOK_EVERY_S = 0.5
"""Engines are scraped every second."""
SPAN_S_MIN = 0.2
"""Between two readings of a counter: the shorter, the more it matters when in between a step was counted."""
STEPS_ERROR = 0.05
"""By which a pace by steps may be off, for each second since it was read and in which it was measured: batches change.
Of 55,296 mixed requests of known length that fill an engine, none or half of which stream, one was preempted. Placed by
tokens over sequences, and without a margin, it was one in thirty."""
ERROR_MAX = 0.3
"""The most of it, and what tokens over sequences may be off by: how many ran is known for two moments only."""
TOKENS_PER_STEP = (0.6, 1.5)
"""Of a sequence, for an engine whose steps give one token each. With less, several front ends count each step, or many
prompts are being read; with more it speculates."""


class EngineCounters(Protocol):
    """An engine's numbers at its last scrape; None where it did not export one."""

    @property
    def running(self) -> float | None: ...

    @property
    def generation_tokens(self) -> float | None: ...

    @property
    def steps(self) -> float | None: ...


class EngineState(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def gauges(self) -> EngineCounters | None: ...

    @property
    def gauges_age_s(self) -> float | None:
        """Since they were last new."""
        ...


@dataclass(frozen=True, slots=True)
class Speed:
    """Output tokens per second of one running sequence."""

    slowest: float
    likely: float
    fastest: float


@dataclass(slots=True)
class _Reading:
    tokens: float
    running: float
    steps: float | None
    at_s: float
    per_s: float | None = None
    """Tokens of a sequence, smoothed."""
    steps_per_s: float | None = None
    """In the last second alone: added up over time, what comes late is only ever late."""
    tokens_per_step: float | None = None
    span_s: float = 1.0
    """In which they were measured."""


class Rates:
    """From what engines export, and from streams. `look` at each beat."""

    def __init__(self, statuses: Callable[[], Sequence[EngineState]] = tuple) -> None:
        self._statuses = statuses
        self._readings: dict[str, _Reading] = {}
        """By engine; of those that are gone the entry goes with the next look."""
        self._streams: dict[str, float] = {}
        self._looked_s = float("-inf")

    def speed(self, engine_id: str) -> Speed | None:
        """Of a sequence there, while it runs; None while nothing is known."""
        reading = self._readings.get(engine_id)
        if reading is None or reading.per_s is None:
            streamed = self._streams.get(engine_id)
            return None if streamed is None else _about(streamed, ERROR_MAX)
        by_steps = reading.steps_per_s
        if by_steps is None:
            return _about(reading.per_s, ERROR_MAX)
        least, most = TOKENS_PER_STEP
        if reading.tokens_per_step is not None and not least <= reading.tokens_per_step <= most:
            return Speed(min(by_steps, reading.per_s), reading.per_s, max(by_steps, reading.per_s))
        age_s = max(self._looked_s - reading.at_s, reading.span_s)
        return _about(by_steps, min(STEPS_ERROR * max(age_s, 1.0), ERROR_MAX))

    def fastest_per_s(self, engine_id: str | None = None) -> float | None:
        """The largest likely speed that is known, of any engine for None: for what must not be too little."""
        ids = {*self._readings, *self._streams} if engine_id is None else (engine_id,)
        speeds = [speed.likely for each in ids if (speed := self.speed(each)) is not None]
        return max([*speeds, *(self._streams[each] for each in ids if each in self._streams)], default=None)

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
            at_s = now_s - (engine.gauges_age_s or 0.0)
            now = _Reading(gauges.generation_tokens, gauges.running, gauges.steps, at_s)
            self._readings[engine.id] = _next(known.get(engine.id), now)
        self._streams = {name: rate for name, rate in self._streams.items() if name in known_now}

    def streamed(self, engine_id: str, tokens: float, sequence_s: float) -> None:
        """The streams from an engine brought so many tokens, in so many seconds of running of all of them."""
        if sequence_s > 0.0 and tokens > 0.0:
            self._streams[engine_id] = _mixed(self._streams.get(engine_id), tokens / sequence_s)


def _about(per_s: float, error: float) -> Speed:
    return Speed(per_s * (1.0 - error), per_s, per_s * (1.0 + error))


def _next(before: _Reading | None, now: _Reading) -> _Reading:
    """While the counter stands and something runs, it is the same scrape as before, or one right after it."""
    if before is None or now.tokens < before.tokens:
        return now
    span_s = now.at_s - before.at_s
    worked = before.running and now.running
    if not worked:  # all the time, as far as is seen: else the counters say nothing of its pace
        return replace(before, tokens=now.tokens, running=now.running, steps=now.steps, at_s=now.at_s)
    if now.tokens == before.tokens or span_s < SPAN_S_MIN:
        before.running = max(before.running, now.running)
        return before
    sequences = max((before.running + now.running) / 2, 1.0)
    made = now.tokens - before.tokens
    now.per_s, now.span_s = _mixed(before.per_s, made / span_s / sequences), span_s
    if now.steps is not None and before.steps is not None and now.steps > before.steps:
        steps = now.steps - before.steps
        now.steps_per_s = steps / span_s
        now.tokens_per_step = _mixed(before.tokens_per_step, made / steps / sequences)
    return now


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + NEWEST_WEIGHT * (new - known)
