"""What is kept of a request log, or of a public trace, which is taken for a log without waits.

Kept of each request are some numbers in arrays, 100 bytes in all, so that millions fit. A line that is none,
because the disk was full or the process was killed, is skipped and counted.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvgate.errors import ConfigError
from kvgate.traffic.formats import Reading
from kvgate.traffic.requests import is_trace, read_requests

if TYPE_CHECKING:
    from pathlib import Path

    from kvgate.telemetry.request_line import LoggedRequest

REQUESTS_MAX = 2_000_000
"""Some 200 MB of arrays: a whole log of the default size."""


def _ints() -> array[int]:
    return array("q")


def _floats() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Tally:
    """What is kept. The arrays go together: an entry for each request that ran to its end."""

    source: str
    prompt: array[int] = field(default_factory=_ints)
    """Tokens of one prompt, those of several in one request on average."""
    output: array[int] = field(default_factory=_ints)
    """Tokens of one sequence, those of several on average."""
    sequences: array[int] = field(default_factory=_ints)
    asked: array[int] = field(default_factory=_ints)
    """The client's limit; 0 for none."""
    charged: array[int] = field(default_factory=_ints)
    """The limit that was reserved; 0 where that is not known."""
    reserved: array[int] = field(default_factory=_ints)
    """Tokens of the whole request; 0 where nothing was."""
    used: array[int] = field(default_factory=_ints)
    """Tokens of the whole request."""
    started: array[float] = field(default_factory=_floats)
    """Unix time of the grant."""
    ended: array[float] = field(default_factory=_floats)
    waited_s: array[float] = field(default_factory=_floats)
    """In the queue."""
    tenants: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    """Of all requests, also those that did not run."""
    first: float = math.inf
    """Unix time of the first arrival of all."""
    last: float = -math.inf
    """Unix time of the last end of all."""
    skipped: int = 0
    """Lines that could not be read."""
    failed: int = 0
    """Requests of a trace that had no answer; they are in no other number."""
    timed: bool = True
    """Whether it is known when requests began and ended; of a trace it is not."""
    beyond: bool = False
    """More requests than are kept; the newest were left out."""

    def add(self, one: LoggedRequest) -> None:
        """Count it, and keep its lengths if they are those of a whole answer."""
        self.outcomes[one.outcome] += 1
        self.first = min(self.first, one.arrived)
        self.last = max(self.last, one.arrived + one.total_s)
        prompt = one.prompt_tokens if one.prompt_tokens is not None else one.prompt_tokens_counted
        if one.outcome != "served" or prompt is None or one.queue_s is None:
            return
        sequences, completion = max(one.prompts * one.n, 1), one.completion_tokens or 0
        self.prompt.append(-(-prompt // max(one.prompts, 1)))
        self.output.append(-(-completion // sequences))
        self.sequences.append(sequences)
        self.asked.append(one.max_tokens_asked or 0)
        self.charged.append(one.max_tokens_charged or 0)
        self.reserved.append(one.tokens_reserved or 0)
        self.used.append(prompt + completion)
        self.started.append(one.arrived + one.queue_s)
        self.ended.append(one.arrived + one.total_s)
        self.waited_s.append(one.queue_s)
        self.tenants.append(one.tenant)

    @property
    def whole(self) -> int:
        """Requests that ran to their end."""
        return len(self.prompt)


def read_log(path: Path, *, pool: str | None = None, tenant: str | None = None) -> Tally:
    """Read a log and what was put aside of it, or a public trace. Raises ConfigError when there is no request in it."""
    tally, reading = Tally(str(path), timed=not is_trace(path)), Reading()
    for one in read_requests(path, reading):
        if (pool is None or one.pool == pool) and (tenant is None or one.tenant == tenant):
            if tally.outcomes.total() >= REQUESTS_MAX:
                tally.beyond = True
                break
            tally.add(one)
    tally.skipped, tally.failed = reading.bad, reading.failed
    if not tally.outcomes:
        raise ConfigError(_nothing(path, tally, pool, tenant))
    return tally


def _nothing(path: Path, tally: Tally, pool: str | None, tenant: str | None) -> str:
    named = " and ".join(f"{what} {name!r}" for what, name in (("pool", pool), ("tenant", tenant)) if name)
    if named:
        return f"{path}: no request of {named} in it"
    if tally.skipped:
        return (
            f"{path}: none of its {tally.skipped:,} lines is a request. A log of `kvgate serve --request-log FILE` "
            "has a JSON object with `arrived`, `outcome` and more in each line"
        )
    if tally.failed:
        return f"{path}: none of its {tally.failed:,} requests had an answer, so no length is known"
    if not tally.timed:
        return f"{path}: it has the names of its columns, and no request"
    return f"{path}: it is empty. kvgate writes a line when a request ends"
