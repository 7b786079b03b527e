"""The few fields of an engine's answers that matter, read leniently, and vLLM's ways of saying "busy"."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

BUSY_TEXTS = (
    b"engine is currently busy",
    b"prefill token backlog limit",
    b"model is currently scaling",
)
"""What vLLM 0.32 says when it takes no new work: the two admission limits and elastic scaling. The engine is
healthy, only full. It has no error type of its own for them, so the text is what there is."""

BUSY_BYTES_READ_MAX = 64 * 1024
"""How far into a 503's body the texts are looked for; vLLM's are 200 bytes."""

ABORT_REASONS = ("abort", "error")
"""Finish reasons under which an engine ends requests it did not complete (shutdown, internal error)."""

ABORTED_STATUSES = ("cancelled", "failed")
"""The same for the Responses API."""

LIMIT_REASONS = ("length", "max_tokens", "incomplete")
"""What OpenAI's APIs, Anthropic's and the Responses API call an end by the limit."""

S = TypeVar("S", bound=msgspec.Struct)


class Finish(StrEnum):
    """How a whole answer ended."""

    STOP = "stop"
    """By itself: the end-of-sequence token, a stop string, a tool call."""
    LIMIT = "limit"
    """It was cut at its limit, and would have gone on."""


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error that came inside a 200."""

    code: int | None
    message: str
    busy: bool
    """The engine is full, not broken."""


class Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None


class Choice(msgspec.Struct):
    finish_reason: Any = None
    text: Any = None
    token_ids: Any = None
    delta: Any = None
    message: Any = None


def is_busy(status: int, body: bytes) -> bool:
    """Whether this answer is vLLM's "no room at the moment", which is no failure."""
    return status == 503 and says_busy(body[:BUSY_BYTES_READ_MAX])


def is_unknown_model(body: bytes) -> bool:
    """Whether a 404 is vLLM's "The model `x` does not exist.", in either of its dialects."""
    head = body[:BUSY_BYTES_READ_MAX]
    return b"The model `" in head and b"does not exist" in head


def says_busy(text: bytes) -> bool:
    return any(busy in text for busy in BUSY_TEXTS)


def read(data: bytes, decoder: msgspec.json.Decoder[S]) -> S | None:
    """Decode what is needed; None for anything else than an object of that form."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def larger(known: int | None, value: Any) -> int | None:
    """Counters only grow: with n > 1, running totals of single choices come before the sum."""
    new = count(value)
    if new is None or (known is not None and known >= new):
        return known
    return new


def error_of(error: Any) -> StreamError:
    """Any of the forms an `error` field takes: an object (OpenAI, Anthropic, Responses) or a string."""
    if not isinstance(error, dict):
        return _error(None, error)
    return _error(count(error.get("code")), error.get("message"))


def _error(code: int | None, message: Any) -> StreamError:
    text = message if isinstance(message, str) else ""
    return StreamError(code, text, says_busy(text.encode()))


def finish_of(reason: Any) -> Finish | None:
    """What a finish reason, stop reason or status says; None where the answer is not whole."""
    if not isinstance(reason, str) or reason in (*ABORT_REASONS, *ABORTED_STATUSES):
        return None
    return Finish.LIMIT if reason in LIMIT_REASONS else Finish.STOP


def aborted(choice: Choice) -> bool:
    return choice.finish_reason in ABORT_REASONS


def has_output(choice: Choice) -> bool:
    """Whether the choice carries any text, token, tool call or reasoning."""
    if choice.text or choice.token_ids:
        return True
    part = choice.delta if choice.delta is not None else choice.message
    if not isinstance(part, dict):
        return False
    return bool(part.get("content")) or any(value for key, value in part.items() if key != "role")
