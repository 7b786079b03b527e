"""Reads a stream beside the relay: where it stands, how much came, and whether its end was a real one.

Promises: the same findings however the bytes are cut into chunks (`first` aside, see there); constant memory
(`EVENT_BYTES_MAX`); about two microseconds for an event. OpenAI's chunks are decoded, a few fields of each:
that takes as long as two searches for a key. Anthropic's and the Responses API's events have names, and most
of them need no decoding.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from kvgate.sse.events import (
    ANTHROPIC,
    CHUNK,
    RESPONSES,
    AnthropicEvent,
    Chunk,
    Response,
    ResponsesEvent,
)
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
from kvgate.sse.framing import CR, LF, Framing, name_and_data
from kvgate_policies.types import Endpoint


class FirstEvent(StrEnum):
    """What a stream began with: decides whether another engine may still be asked."""

    TOKEN = "token"  # noqa: S105  (a model's token)
    """The engine is at work."""
    ERROR = "error"
    DONE_ONLY = "done_only"
    """The end, with nothing before it: so answers an engine that is shutting down."""
    ABORTED_EMPTY = "aborted_empty"
    """The engine gave the request up before its first token."""


class SSEMeter:
    """One stream's meter. Feed it every chunk, then `end()`."""

    __slots__ = (
        "_framing",
        "_last_data",
        "_opened",
        "_read",
        "_withheld",
        "aborted",
        "completion_tokens",
        "done",
        "error",
        "events",
        "finish",
        "first",
        "prompt_tokens",
        "response_id",
        "response_model",
        "tokens_seen",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.events = 0
        """Events with data, the final one included."""
        self.tokens_seen = 0
        """Events that carry output: a lower bound of the output tokens, as one may carry several."""
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        """From usage, where the stream has it: all choices together, so far."""
        self.done = False
        """The stream's own end was seen: [DONE], message_stop, response.completed and its kin."""
        self.error: StreamError | None = None
        self.aborted = False
        """The engine gave up (a finish reason of abort or error): not a success even when `done`."""
        self.finish: Finish | None = None
        """How the answer ended, once the engine has said so; of several choices, the last one."""
        self.first: FirstEvent | None = None
        """None until it is known. An event that only opens the answer (chat's role chunk, `message_start`)
        counts as TOKEN at the end of its chunk, as vLLM sends it with the first token; if the end of the
        stream is in the same chunk, that decides. The Responses API's `created` and `in_progress`, which
        come before any work, decide nothing."""
        self.response_id: str | None = None
        self.response_model: str | None = None
        """Responses API only, for a terminal event that fits."""
        self._framing = Framing()
        self._last_data = b""
        self._opened = False
        self._withheld = False
        self._read = _READERS.get(endpoint, SSEMeter._openai)  # no bound method: that would be a cycle

    @property
    def blind(self) -> bool:
        """An event was too large to look at; nothing after it was read."""
        return self._framing.blind

    @property
    def cut_off(self) -> bool:
        """The engine gave up without a word of error: what follows would pass for the end of a whole answer."""
        return self.aborted and self.error is None

    def withhold(self) -> None:
        """The last chunk was not passed on: nobody knows any more where in an event the client's bytes end."""
        self._withheld = True

    @property
    def at_boundary(self) -> bool:
        """Whether an event of ours could start right here."""
        return self._framing.at_boundary and not self._withheld

    @property
    def sequence_number(self) -> int | None:
        """That of the last event (Responses API)."""
        event = read(self._last_data, RESPONSES)
        return event.sequence_number if event is not None else None

    def feed(self, chunk: bytes) -> None:
        for event in self._framing.feed(chunk):
            self._see(event)
        if self._opened and self.first is None:
            self.first = FirstEvent.TOKEN

    def end(self) -> None:
        """The stream is over; an event without its empty line still counts."""
        self._see(self._framing.end())

    def _see(self, event: bytes) -> None:
        if event[:6] == b"data: " and LF not in event and CR not in event:  # the usual event
            name, data = b"", event[6:]
        else:
            name, whole = name_and_data(event)
            if whole is None:
                return
            data = whole
        self.events += 1
        self._last_data = data
        self._read(self, name, data)

    # OpenAI chat, completions, transcriptions; token-in/token-out

    def _openai(self, _name: bytes, data: bytes) -> None:
        if data == b"[DONE]":
            self._finish()
            return
        chunk = read(data, CHUNK)
        if chunk is None:
            return
        if _is_plain_token(chunk):
            self.tokens_seen += 1
            if self.first is None:
                self.first = FirstEvent.TOKEN
            return
        if chunk.error is not None:
            self._fail(error_of(chunk.error))
        if chunk.usage is not None:
            self._count(chunk.usage)
        if chunk.choices:
            self._openai_choices(chunk.choices)

    def _openai_choices(self, choices: list[Choice]) -> None:
        if len(choices) == 1 and choices[0].finish_reason is None and has_output(choices[0]):
            self._token()
            return
        gave_up = any(map(aborted, choices))
        self.aborted |= gave_up
        for choice in choices:
            self.finish = finish_of(choice.finish_reason) or self.finish
        if any(map(has_output, choices)) or not (gave_up or all(map(_is_opening, choices))):
            self._token()
        elif gave_up:
            self._first(FirstEvent.ABORTED_EMPTY)
        else:
            self._opened = True

    # Anthropic

    def _anthropic(self, name: bytes, data: bytes) -> None:
        if name == b"content_block_delta":
            if b'"signature_delta"' not in data:
                self._token()
        elif name == b"message_stop" or data == b"[DONE]":
            self._finish()
        elif name in _ANTHROPIC_SILENT:
            pass
        else:
            self._anthropic_event(name.decode("latin-1"), read(data, ANTHROPIC))

    def _anthropic_event(self, name: str, event: AnthropicEvent | None) -> None:
        if event is None:
            return
        kind = name or event.type
        if event.error is not None or kind == "error":
            self._fail(error_of(event.error))
        elif kind == "message_start":
            self._opened = True
            self._count(event.message.usage if event.message is not None else None)
        elif kind == "message_delta":
            self._count(event.usage)
            self._anthropic_stop(event.delta)
        elif not name:
            self._anthropic(kind.encode(), b"")

    def _anthropic_stop(self, delta: Any) -> None:
        """Anthropic has no word for an abort: vLLM sends a null `stop_reason` then."""
        if isinstance(delta, dict):
            self.finish = finish_of(delta.get("stop_reason")) or self.finish
        if isinstance(delta, dict) and "stop_reason" in delta and delta["stop_reason"] is None:
            self.aborted = True
            if not self.tokens_seen and not self.completion_tokens:
                self._first(FirstEvent.ABORTED_EMPTY)

    # Responses

    def _responses(self, name: bytes, data: bytes) -> None:
        if name.endswith(b".delta"):
            self._token()
        elif not name or name in _RESPONSES_READ:
            self._responses_event(name.decode("latin-1"), read(data, RESPONSES))
        elif name not in _RESPONSES_SILENT:
            self._opened = True

    def _responses_event(self, name: str, event: ResponsesEvent | None) -> None:
        if event is None:
            return
        kind = name or event.type
        if kind == "error" or (event.error is not None and event.response is None):
            self._fail(error_of(event.error if event.error is not None else event.message))
        elif kind == "response.created":
            self._responses_created(event.response)
        elif kind.encode() in _RESPONSES_END:
            self._responses_end(event.response, failed=kind == "response.failed")
        elif not name:
            self._responses(kind.encode(), b"")

    def _responses_created(self, response: Response | None) -> None:
        if response is not None:
            self.response_id = response.id
            self.response_model = response.model

    def _responses_end(self, response: Response | None, *, failed: bool) -> None:
        if response is not None:
            self._count(response.usage)
            self.aborted |= response.status in ABORTED_STATUSES
            self.finish = finish_of(response.status)
        if failed:
            self.aborted = True
            self._fail(error_of(response.error if response is not None else None))
        self._finish()

    # What they have in common

    def _count(self, usage: Usage | None) -> None:
        if usage is None:
            return
        self.prompt_tokens = larger(larger(self.prompt_tokens, usage.prompt_tokens), usage.input_tokens)
        self.completion_tokens = larger(
            larger(self.completion_tokens, usage.completion_tokens), usage.output_tokens
        )

    def _first(self, first: FirstEvent) -> None:
        if self.first is None:
            self.first = first

    def _token(self) -> None:
        self.tokens_seen += 1
        self._first(FirstEvent.TOKEN)

    def _fail(self, error: StreamError) -> None:
        if self.error is None:
            self.error = error
        self._first(FirstEvent.ERROR)

    def _finish(self) -> None:
        self.done = True
        self._first(FirstEvent.TOKEN if self.completion_tokens else FirstEvent.DONE_ONLY)


_READERS = {Endpoint.MESSAGES: SSEMeter._anthropic, Endpoint.RESPONSES: SSEMeter._responses}  # noqa: SLF001
_ANTHROPIC_SILENT = (b"ping", b"content_block_start", b"content_block_stop")
_RESPONSES_END = (
    b"response.completed",
    b"response.incomplete",
    b"response.failed",
    b"response.cancelled",
)
_RESPONSES_SILENT = (b"response.in_progress", b"response.queued")
_RESPONSES_READ = (*_RESPONSES_END, b"response.created", b"error", b"unknown")


def _is_plain_token(chunk: Chunk) -> bool:
    """Whether there is some text of one unfinished choice and nothing else: nine in ten chunks."""
    choices = chunk.choices
    if choices is None or len(choices) != 1 or chunk.usage is not None or chunk.error is not None:
        return False
    choice = choices[0]
    if choice.finish_reason is not None:
        return False
    delta = choice.delta
    return bool(choice.text or (type(delta) is dict and delta.get("content")))


def _is_opening(choice: Choice) -> bool:
    """A chunk that only names the role: no token was sampled for it."""
    return isinstance(choice.delta, dict) and "role" in choice.delta and choice.finish_reason is None
