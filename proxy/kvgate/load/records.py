"""What happened to each stream, in the order in which it was seen.

A record is written while its stream runs, so that a view can read it live; everything derived is computed
from the arrival times afterwards (`report`). Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.load.heartbeat import Stall


class StreamEnd(StrEnum):
    """How a stream ended."""

    COMPLETED = "completed"
    """All tokens that were asked for, and a finish reason that says so."""
    WRONG_LENGTH = "wrong_length"
    """It ended well by its own word, with fewer or more tokens than asked for."""
    ABORTED = "aborted"
    """Cut off by the engine: `finish_reason` abort, or `[DONE]` without any finish reason."""
    REFUSED = "refused"
    """An HTTP status other than 200, after all retries."""
    FAILED = "failed"
    """The connection broke, the answer was no event stream, or an error event came."""
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    """The run ended before it did: Ctrl-C, or its time was over."""


@dataclass(slots=True)
class StreamRecord:
    """One session, from the first attempt to send it to its end."""

    index: int
    """Place in the workload."""
    url: str
    tokens_wanted: int | None
    """None where any number is right."""
    sent_s: float
    """The first attempt: waiting to be allowed to retry counts as waiting for the first token."""
    token_times_s: list[float] = field(default_factory=list)
    """Arrival of every token; tokens of one chunk share its time."""
    end: StreamEnd | None = None
    """None while it runs."""
    ended_s: float | None = None
    status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    reason: str | None = None
    """Of a refusal, `x-kvgate-reason`; None where kvgate did not give one."""
    tenant: str = ""
    retries: int = 0
    bytes_received: int = 0
    prompt_tokens: int | None = None
    """By the engine's usage."""
    completion_tokens: int | None = None

    @property
    def ttft_s(self) -> float | None:
        return self.token_times_s[0] - self.sent_s if self.token_times_s else None

    def gaps_s(self, stalls: Sequence[Stall] = ()) -> list[float]:
        """Seconds between one token and the next, less those in which the client itself stood still."""
        return [_gap_s(earlier, later, stalls) for earlier, later in pairwise(self.token_times_s)]


def _gap_s(start_s: float, end_s: float, stalls: Sequence[Stall]) -> float:
    overlaps = (min(end_s, stall.end_s) - max(start_s, stall.start_s) for stall in stalls)
    return end_s - start_s - sum(overlap for overlap in overlaps if overlap > 0)


def end_of(record: StreamRecord, *, saw_done: bool) -> StreamEnd:
    """How a 200 stream ended whose body is over; an error event is not judged here.

    vLLM ends streams "well" in bad cases: a shutdown sends a finish reason `abort` and `[DONE]`, a draining
    engine just `[DONE]`. So HTTP 200 and `[DONE]` alone prove nothing.
    """
    if record.finish_reason is None:
        return StreamEnd.ABORTED if saw_done else StreamEnd.FAILED
    if record.finish_reason == "abort":
        return StreamEnd.ABORTED
    return StreamEnd.COMPLETED if _has_all_tokens(record) else StreamEnd.WRONG_LENGTH


def _has_all_tokens(record: StreamRecord) -> bool:
    counted = record.completion_tokens if record.completion_tokens is not None else len(record.token_times_s)
    return record.tokens_wanted is None or counted == record.tokens_wanted
