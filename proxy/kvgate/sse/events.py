"""The stream events of each API, as far as the meter reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from kvgate.sse.fields import Choice, Usage


class Chunk(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class Message(msgspec.Struct):
    usage: Usage | None = None


class AnthropicEvent(msgspec.Struct):
    type: str = ""
    message: Message | None = None
    usage: Usage | None = None
    delta: Any = None
    error: Any = None


class Response(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    usage: Usage | None = None
    error: Any = None


class ResponsesEvent(msgspec.Struct):
    type: str = ""
    response: Response | None = None
    error: Any = None
    message: str | None = None
    sequence_number: int | None = None


CHUNK = msgspec.json.Decoder(Chunk)
ANTHROPIC = msgspec.json.Decoder(AnthropicEvent)
RESPONSES = msgspec.json.Decoder(ResponsesEvent)
