"""From a request body to the token ids of its prompts, for every form a prompt can have.

Images, audio and other parts that are no text count `MEDIA_TOKENS` each: how they look is not simulated.
"""

from __future__ import annotations

import json
from typing import Any

from kvgate.sim import tokenizer
from kvgate.sim.errors import bad_request, schema_error
from kvgate.sim.fields import Body, integer, listing

MEDIA_TOKENS = 64
"""Placeholder tokens of one image: a small one in most vision models."""

TokenIds = tuple[int, ...]


def completion_prompts(body: Body, field: str, max_model_len: int) -> tuple[TokenIds, ...]:
    """`prompt` (or `input`): a text, token ids, or a list of either. Raises `RequestRefused`."""
    prompt = body.get(field)
    if not prompt:
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", field)
    if isinstance(prompt, str):
        return (_from_text(prompt, max_model_len),)
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return (_from_ids(prompt),)
    if isinstance(prompt, list) and all(isinstance(item, str | list) and item for item in prompt):
        return tuple(
            _from_text(item, max_model_len) if isinstance(item, str) else _from_ids(item) for item in prompt
        )
    raise bad_request("A prompt is a string, a list of strings, or lists of token ids.", field)


def _from_text(text: str, max_model_len: int) -> TokenIds:
    check_characters(len(text), max_model_len)
    return tokenizer.encode_prompt(text)


def _from_ids(ids: list[Any]) -> TokenIds:
    for token in ids:
        if not isinstance(token, int) or not 0 <= token < tokenizer.VOCABULARY:
            raise bad_request(f"Token id {token} is out of vocabulary")
    return tuple(ids)


def check_characters(count: int, max_model_len: int) -> None:
    """A text that can't fit whatever its tokens are is refused before it is tokenized."""
    bound = max_model_len * tokenizer.BYTES_PER_TOKEN
    if count > bound:
        message = (
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{count} characters (more than {bound} characters, which is the upper bound for {max_model_len} "
            "input tokens). Please reduce the length of the input prompt."
        )
        raise bad_request(message, "input_text", count)


def chat_prompt(body: Body, max_model_len: int | None) -> TokenIds:
    """`messages` (and Anthropic's `system`), `tools` included. Raises `RequestRefused`."""
    messages = _messages(body, "messages")
    if system := body.get("system"):
        messages = [{"role": "system", "content": system}, *messages]
    return _chat(messages, body, max_model_len)


def response_prompt(body: Body, max_model_len: int) -> TokenIds:
    """`input` of the Responses API: a text, or a list of messages; `instructions` before it."""
    given = body.get("input")
    is_text = isinstance(given, str)
    messages = [{"role": "user", "content": given}] if is_text else _messages(body, "input")
    if instructions := body.get("instructions"):
        messages = [{"role": "system", "content": instructions}, *messages]
    return _chat(messages, body, max_model_len)


def _messages(body: Body, field: str) -> list[dict[str, Any]]:
    messages = listing(body, field)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            location = f"body.{field}.{index}"
            raise schema_error("dict_type", location, "Input should be a valid dictionary", str(message)[:40])
    return messages


def _chat(messages: list[dict[str, Any]], body: Body, max_model_len: int | None) -> TokenIds:
    media = 0
    texts: list[tuple[str, str]] = []
    if tools := body.get("tools"):
        texts.append(("system", json.dumps(tools)))
    for message in messages:
        text, parts = _content(message.get("content"))
        if calls := message.get("tool_calls"):
            text += json.dumps(calls)
        texts.append((str(message.get("role")), text))
        media += parts * MEDIA_TOKENS
    if max_model_len is not None:
        check_characters(sum(len(text) for _, text in texts), max_model_len)
    generate = body.get("add_generation_prompt") is not False
    return tokenizer.apply_chat_template(texts, media=media, add_generation_prompt=generate)


def _content(content: Any) -> tuple[str, int]:
    """The text of a message's content and how many parts of it are media."""
    if isinstance(content, str):
        return content, 0
    parts = [part for part in content or () if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "".join(texts), len(parts) - len(texts)


def truncate(body: Body, prompt: TokenIds, max_model_len: int) -> TokenIds:
    """`truncate_prompt_tokens`: the last k tokens; −1 means all that leave room for one of output."""
    keep = integer(body, "truncate_prompt_tokens")
    if keep is None:
        return prompt
    if keep < 1 and keep != -1:
        raise bad_request(f"truncate_prompt_tokens must be -1 or at least 1, got {keep}.")
    return prompt[-(max_model_len - 1 if keep == -1 else keep) :]
