"""The fields of a request body that pricing needs, decoded from the bytes; the rest is skipped unread.

Each field is `Any`: what vLLM would refuse is for vLLM to refuse. Like Python's own JSON reader, which vLLM
uses, this one takes the last of several equal keys and reads escapes in keys; unlike it, it refuses NaN, lone
surrogates, a byte order mark and encodings other than UTF-8, none of which a client sends on purpose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

CONTAINERS_MAX = 200_000
"""Lists and objects of a body. While one is read no stream moves, for a third of a microsecond or more: a body of
nothing else would stop all of them for five seconds. Conversations with tools have some thousands."""
WORDS_MAX = 1_000_000
"""`null`, `true` and `false`; and commas, unless they are found to be between numbers or in texts."""
QUOTES_MAX = 2_000_000
"""Of a body with more brackets or commas than that, those with a backslash aside. Each text has two, or one."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""Matches from every quote on, closed or not: no second look at any byte."""


@dataclass(frozen=True, slots=True)
class BadRequest:
    """The body can't be priced. A value, since clients send such things every day."""

    message: str
    """What is wrong, where, and what to do."""
    param: str | None = None
    """The field it is about."""


class Fields(msgspec.Struct):
    """All fields of all endpoints."""

    model: Any = None
    stream: Any = None
    n: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    truncate_prompt_tokens: Any = None
    truncation: Any = None
    sampling_params: Any = None

    prompt: Any = None
    prompt_embeds: Any = None
    add_special_tokens: Any = None

    messages: Any = None
    tools: Any = None
    functions: Any = None
    documents: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    reasoning_effort: Any = None
    mm_processor_kwargs: Any = None
    system: Any = None
    thinking: Any = None
    output_config: Any = None

    input: Any = None
    instructions: Any = None
    instruction: Any = None
    previous_response_id: Any = None
    previous_input_messages: Any = None
    background: Any = None
    reasoning: Any = None

    token_ids: Any = None
    content_parts: Any = None

    data: Any = None
    query: Any = None
    queries: Any = None
    items: Any = None
    text_1: Any = None
    text_2: Any = None
    data_1: Any = None
    data_2: Any = None


_DECODER = msgspec.json.Decoder(Fields)


def decode(body: bytes) -> Fields | BadRequest:
    """Read the fields; never raises."""
    if not body.strip():
        return BadRequest("The request body is empty. Send a JSON object.")
    if not _is_utf8(body):
        return BadRequest("The request body is not valid UTF-8. Send a JSON object encoded in UTF-8.")
    if _too_many_values(body):
        return BadRequest(
            "The request body has too many values to be read while others wait: at most "
            f"{CONTAINERS_MAX} lists and objects, and {QUOTES_MAX // 2} texts."
        )
    try:
        return _DECODER.decode(body)
    except RecursionError:
        return BadRequest("The request body is nested too deeply to be read. Send a flatter JSON object.")
    except msgspec.MsgspecError as error:
        return BadRequest(f"The request body is not a JSON object that can be read: {error}.")


def _is_utf8(body: bytes) -> bool:
    """Of the whole body: the decoder would not look into the fields that it skips."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _too_many_values(body: bytes) -> bool:
    """Numbers are free: a prompt of token ids has millions, and they take next to no time.

    What stands in texts counts only where that is cheaper than to find out: a text of code has many brackets.
    """
    if _brackets(body) <= CONTAINERS_MAX and body.count(b",") <= WORDS_MAX:
        return False
    if body.count(b'"') - body.count(b'\\"') > QUOTES_MAX:
        return True
    bare = _STRING.sub(b"", body)
    return _brackets(bare) > CONTAINERS_MAX or bare.count(b"u") + bare.count(b"s") > WORDS_MAX


def _brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")
