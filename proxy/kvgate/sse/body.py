"""What a whole JSON answer with status 200 says: usage, and whether it is an answer at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kvgate.sse.fields import (
    ABORTED_STATUSES,
    Choice,
    Finish,
    StreamError,
    Usage,
    aborted,
    error_of,
    finish_of,
    has_output,
    larger,
    read,
)
from kvgate_policies.types import Endpoint


@dataclass(frozen=True, slots=True)
class JSONVerdict:
    prompt_tokens: int | None
    completion_tokens: int | None
    empty: bool
    """Not one output token, where there should be some: an engine on its way out answers so."""
    aborted: bool
    """The engine gave up before the end."""
    error: StreamError | None
    finish: Finish | None = None
    """How it ended, by its first choice."""


_NOT_GENERATING = (Endpoint.POOLING, Endpoint.AUDIO)
"""Their answers have no output tokens to count (a transcription's usage is in seconds)."""

_UNREADABLE = JSONVerdict(None, None, empty=False, aborted=False, error=None)


class _Body(msgspec.Struct):
    type: Any = None
    object: Any = None
    status: Any = None
    stop_reason: Any = msgspec.UNSET
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_BODY = msgspec.json.Decoder(_Body)


def inspect_json(endpoint: Endpoint, body: bytes) -> JSONVerdict:
    """Judge the body of a 200. Never raises: of a body it can't read it says nothing, and nothing bad."""
    seen = read(body, _BODY)
    if seen is None:
        return _UNREADABLE
    usage = seen.usage if seen.usage is not None else Usage()
    prompt_tokens = larger(larger(None, usage.prompt_tokens), usage.input_tokens)
    completion_tokens = larger(larger(None, usage.completion_tokens), usage.output_tokens)
    gave_up = _gave_up(seen)
    return JSONVerdict(
        prompt_tokens,
        completion_tokens,
        empty=endpoint not in _NOT_GENERATING and _is_empty(seen, completion_tokens, gave_up=gave_up),
        aborted=gave_up,
        error=error_of(seen.error) if seen.error is not None else None,
        finish=_finish(seen),
    )


def _gave_up(seen: _Body) -> bool:
    if seen.choices is not None:
        return any(map(aborted, seen.choices))
    if seen.type == "message":
        return seen.stop_reason is None
    return seen.object == "response" and seen.status in ABORTED_STATUSES


def _finish(seen: _Body) -> Finish | None:
    if seen.choices:
        return finish_of(seen.choices[0].finish_reason)
    return finish_of(seen.stop_reason if seen.type == "message" else seen.status)


def _is_empty(seen: _Body, completion_tokens: int | None, *, gave_up: bool) -> bool:
    """A served request has at least one token, if only the end-of-sequence token."""
    if completion_tokens is not None:
        return completion_tokens == 0
    if seen.choices is None:
        return False
    return not seen.choices or (gave_up and not any(map(has_output, seen.choices)))
