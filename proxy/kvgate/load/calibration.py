"""Measuring how long the steps of an engine take, from outside and within bounds, for `fit`.

Two kinds of probe, on an engine that has nothing else to do:

- *decode*: so many sessions at once, with short and with long prompts. While all of them generate, the time
  between two tokens of a stream is a step; the median over a stretch of it is one observation, the shorter one of
  two runs.
- *prefill*: one session with a prompt of a certain length and one token of output. The time to that token is a
  step with that many prompt tokens, and what a request takes beside it. The shortest of a few counts: whatever
  disturbs makes it longer.

Prompts are random, so that no prefix cache helps, and never longer than `PREFILL_TOKENS_MAX`: a longer one is
computed in several steps, and how many is not known from outside. At most half of the KV cache is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import httpx

from kvgate.engines.metrics import read_metrics
from kvgate.errors import ConfigError
from kvgate.load.client import LoadRun, Patience
from kvgate.load.fit import Observation
from kvgate.load.lengths import Fixed, Independent
from kvgate.load.mix import drawn, fresh_salt
from kvgate.load.records import StreamEnd
from kvgate.load.target import ANSWER_S_MAX, look_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvgate.load.records import StreamRecord

BATCHES = (1, 2, 4, 8, 16, 32)
OUTPUT_TOKENS = 48
"""Of a session of a decode probe."""
STRETCHES = 2
"""Observations of one decode probe: the KV cache grows from one to the other."""
PROMPT_SHORT = 16
PREFILL_TOKENS_MAX = 1024
"""vLLM computes at least 2,048 tokens in a step unless it is told otherwise."""
PREFILLS = 5
"""Lengths of prefill probes, evenly spread."""
REPEATS = 5
DECODE_REPEATS = 2
SESSION_S_MAX = 120.0
"""For a session of a probe: 48 tokens at two seconds each."""
SPARE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine has."""

    url: str
    model: str
    max_model_len: int
    tokens: int
    """Of its KV cache."""


@dataclass(frozen=True, slots=True)
class Probing:
    """What is sent, one after the other."""

    decodes: tuple[tuple[int, int], ...]
    """Sessions at once, and tokens of each prompt."""
    prefills: tuple[int, ...]
    """Tokens of the prompt."""

    @property
    def count(self) -> int:
        return len(self.decodes) * DECODE_REPEATS + len(self.prefills) * REPEATS


def plan(room: Room, batch_max: int) -> Probing:
    """The probes that fit. Raises ConfigError when the window or the cache is too small for any."""
    half = min(room.tokens // 2, room.max_model_len * batch_max)
    longest = min(room.max_model_len - OUTPUT_TOKENS - SPARE_TOKENS, PREFILL_TOKENS_MAX)
    batches = [b for b in BATCHES if b <= batch_max and b * (PROMPT_SHORT + OUTPUT_TOKENS) <= half]
    if longest < 4 * PROMPT_SHORT or len(batches) < 2:
        raise ConfigError(
            f"{room.url} is too small to be measured: its window is {room.max_model_len} tokens and its KV cache "
            f"{room.tokens}; needed are some {PROMPT_SHORT * 4 + OUTPUT_TOKENS + SPARE_TOKENS}, and twice that much"
        )
    decodes = []
    for batch in batches:
        long = min(longest, half // batch - OUTPUT_TOKENS)
        decodes += [(batch, PROMPT_SHORT), *([(batch, long)] if long >= 2 * PROMPT_SHORT else [])]
    steps = range(1, PREFILLS + 1)
    return Probing(tuple(decodes), tuple(longest * step // PREFILLS for step in steps))


async def room_of(url: str, model: str | None) -> Room:
    """Look at the engine. Raises ConfigError when it gives no answer, tells too little, or is at work."""
    target = await look_at(url, model, None)
    try:
        async with httpx.AsyncClient(timeout=ANSWER_S_MAX, trust_env=False) as http:
            page = (await http.get(f"{url}/metrics")).raise_for_status().text
        found = read_metrics(page)
    except (httpx.HTTPError, ValueError) as error:
        raise ConfigError(f"{url}/metrics cannot be read: {type(error).__name__}: {error}") from error
    cache = found.cache
    if cache is None or cache.num_gpu_blocks is None or cache.block_size is None:
        raise ConfigError(f"{url} does not tell its KV cache in /metrics: is this a vLLM server?")
    if len(cache.ranks) > 1:
        raise ConfigError(f"{url} is {len(cache.ranks)} engines at once (data parallel): start it with one")
    if any(gauges.running or gauges.waiting for gauges in found.gauges.values()):
        raise ConfigError(f"{url} is at work: an engine is measured while nobody else uses it")
    tokens = (cache.num_gpu_blocks - 1) * cache.block_size
    return Room(url, target.model, target.max_model_len or tokens, tokens)


async def measure(room: Room, probing: Probing, progress: Callable[[], None]) -> list[Observation]:
    """Send all probes. Raises ConfigError when one of them fails."""
    await _send(room, 1, PROMPT_SHORT, OUTPUT_TOKENS)  # the first request of an engine is slower
    seen: list[Observation] = []
    for batch, prompt_tokens in probing.decodes:
        runs = []
        for _ in range(DECODE_REPEATS):
            runs.append([*steps_of(await _send(room, batch, prompt_tokens, OUTPUT_TOKENS), prompt_tokens)])
            progress()
        seen += undisturbed(runs)
    for prompt_tokens in probing.prefills:
        ttfts = []
        for _ in range(REPEATS):
            [record] = await _send(room, 1, prompt_tokens, 1)
            ttfts.append(record.token_times_s[0] - record.sent_s)
            progress()
        seen.append(
            Observation(f"prompt of {prompt_tokens}", 0, prompt_tokens, prompt_tokens, min(ttfts), requests=1)
        )
    return seen


async def _send(room: Room, count: int, prompt_tokens: int, output_tokens: int) -> list[StreamRecord]:
    sizes = Independent(Fixed(prompt_tokens), Fixed(output_tokens))
    workload = drawn(room.model, count, sizes, seed=0, salt=fresh_salt())
    records = await LoadRun(
        room.url, workload, patience=Patience(stream_s_max=SESSION_S_MAX, retries_max=0)
    ).run()
    for record in records:
        if record.end is not StreamEnd.COMPLETED:
            why = (record.error or str(record.end)).strip()[:300]
            raise ConfigError(
                f"{room.url}: a probe of {prompt_tokens} + {output_tokens} tokens failed: {why}"
            )
    return records


def steps_of(records: Sequence[StreamRecord], prompt_tokens: int) -> Iterator[Observation]:
    """The steps in which all streams generated, in stretches. Nothing where they hardly overlapped."""
    begun_s = max(record.token_times_s[0] for record in records)
    over_s = min(record.token_times_s[-1] for record in records)
    gaps = [gap for record in records for gap in _gaps(record, begun_s, over_s)]
    batch, last = len(records), max((number for number, _ in gaps), default=0)
    for stretch in range(STRETCHES):
        low, high = last * stretch / STRETCHES, last * (stretch + 1) / STRETCHES
        mine = [(number, gap_s) for number, gap_s in gaps if low < number <= high]
        if mine:
            kv_tokens = batch * (prompt_tokens + sum(number for number, _ in mine) / len(mine))
            what = f"{batch} at once, {kv_tokens:,.0f} tokens in the cache"
            yield Observation(what, batch, kv_tokens, 0, median(gap_s for _, gap_s in mine))


def undisturbed(runs: Sequence[Sequence[Observation]]) -> list[Observation]:
    """Of repeated runs, for each stretch the shortest step: whatever disturbs makes it longer."""
    return [min(alike, key=lambda seen: seen.seconds) for alike in zip(*runs, strict=False)]


def _gaps(record: StreamRecord, begun_s: float, over_s: float) -> Iterator[tuple[int, float]]:
    """Each gap within the time, with the number of tokens before it; those that came together share their time."""
    times = record.token_times_s
    start = 0
    for number in range(1, len(times)):
        if times[number] > times[start]:
            if times[start] >= begun_s and times[number] <= over_s:
                yield number, (times[number] - times[start]) / (number - start)
            start = number
