"""Reading an OpenAI-style event stream: bytes in, tokens counted out.

Chunks are not tokens: under load vLLM puts several tokens into one chunk, and an unfinished UTF-8 character
gives a chunk without text. So tokens are counted by the running `usage` where the server sends it on every
chunk, and one for each chunk with text where it does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

_EVENT_BYTES_MAX = 1024 * 1024
"""One event: a token with its log probabilities is some KB; a megabyte without an end is no event stream."""


class EventSplitter:
    """Splits bytes into the `data` of events, wherever the reads happened to cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The events that are complete now. Raises ValueError for an event above 1 MiB."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        if len(self._rest) > _EVENT_BYTES_MAX:
            msg = f"an event of more than {_EVENT_BYTES_MAX} bytes"
            raise ValueError(msg)
        return [event for line in lines if (event := self._line(line.removesuffix(b"\r"))) is not None]

    def _line(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        if line or not self._data:
            return None
        event, self._data = b"\n".join(self._data), []
        return event


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(frozen=True, slots=True)
class Progress:
    """What one event said."""

    tokens: int = 0
    """Output tokens that came with it."""
    done: bool = False
    """`[DONE]`."""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None


def read_event(data: bytes, tokens_before: int) -> Progress:
    """Read one event of a stream that brought `tokens_before` tokens so far.

    The last usage chunk has no choices: it corrects the total, but no token arrives with it. Raises
    `msgspec.MsgspecError` for data that is no such chunk.
    """
    if data == b"[DONE]":
        return Progress(done=True)
    try:
        chunk = _decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    if chunk.error is not None:
        return Progress(error=_error_text(chunk.error))
    usage = chunk.usage
    return Progress(
        tokens=_new_tokens(chunk, tokens_before),
        finish_reason=next((c.finish_reason for c in chunk.choices if c.finish_reason), None),
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
    )


def _new_tokens(chunk: _Chunk, tokens_before: int) -> int:
    if not chunk.choices:
        return 0
    if chunk.usage is not None:
        return max(chunk.usage.completion_tokens - tokens_before, 0)
    return 1 if any(c.text or (c.delta and c.delta.content) for c in chunk.choices) else 0


def _error_text(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
