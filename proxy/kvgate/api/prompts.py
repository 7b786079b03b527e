"""The prompts of a request: how many, and how large each is.

Every prompt is a sequence of its own in the engine, so a list costs their sum. There is always at least one:
what vLLM will refuse for having none still passes, at the price of nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.api.fields import BadRequest
from kvgate.api.scalars import as_bool
from kvgate.api.sizes import Scale
from kvgate_policies.types import Endpoint, PromptSize

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvgate.api.fields import Fields

PROMPTS_MAX = 1024
"""vLLM's `VLLM_MAX_COMPLETION_PROMPTS`; conversations of a batch are held to it too."""
POOLED_MAX = 8192
"""Inputs of one pooling request: four times what OpenAI takes. vLLM has no bound; each costs memory here."""
EMBED_BYTES_PER_TOKEN_MIN = 512
"""Of `prompt_embeds`: a row of 256 numbers at 2 bytes, narrower than any model served; never too few."""
PREVIOUS_RESPONSE_TOKENS = 4096
"""Charge for what `previous_response_id` brings back, which only the engine knows."""

Prompts = tuple[PromptSize, ...]

_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


def prompts_of(endpoint: Endpoint, fields: Fields, media_tokens: int) -> Prompts | BadRequest:
    """Measure every prompt of a JSON body (audio comes as a form)."""
    return _MEASURED_BY[endpoint](fields, media_tokens)


def text_size(text: str) -> PromptSize:
    scale = Scale(0)
    scale.text(text)
    return scale.size()


def is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and type(value[0]) is int


def conversations(messages: Any) -> list[Any]:
    """A batch: a list of conversations, each a list of messages."""
    return messages if isinstance(messages, list) else [messages]


def _chat(fields: Fields, media_tokens: int) -> Prompts:
    return (_conversation(fields.messages, _template(fields), media_tokens),)


def _conversation(messages: Any, template: PromptSize, media_tokens: int) -> PromptSize:
    scale = Scale(media_tokens)
    scale.conversation(messages)
    scale.add(template)
    return scale.size()


def _template(fields: Fields) -> PromptSize:
    """What else a chat template prints, in each conversation of a batch: measured once for all of them."""
    scale = Scale(0)
    for value in (
        fields.tools,
        fields.functions,
        fields.documents,
        fields.chat_template,
        fields.chat_template_kwargs,
    ):
        scale.value(value)
    return scale.size()


def _batch(fields: Fields, media_tokens: int) -> Prompts | BadRequest:
    batch = conversations(fields.messages)
    if len(batch) > PROMPTS_MAX:
        return _too_many("messages", len(batch), PROMPTS_MAX)
    template = _template(fields)
    return tuple(_conversation(messages, template, media_tokens) for messages in batch) or (PromptSize(),)


def _completions(fields: Fields, media_tokens: int) -> Prompts | BadRequest:
    texts = _listed(fields.prompt, "prompt", PROMPTS_MAX, media_tokens)
    if isinstance(texts, BadRequest):
        return texts
    embeds = fields.prompt_embeds if isinstance(fields.prompt_embeds, list) else [fields.prompt_embeds]
    if len(embeds) > PROMPTS_MAX:
        return _too_many("prompt_embeds", len(embeds), PROMPTS_MAX)
    return texts + tuple(_embedded(embed) for embed in embeds if embed is not None) or (PromptSize(),)


def _embedded(embeds: Any) -> PromptSize:
    size = len(embeds) * 3 // 4 if isinstance(embeds, str) else 0
    return PromptSize(media_tokens=-(-size // EMBED_BYTES_PER_TOKEN_MIN))


def _listed(value: Any, param: str, most: int, media_tokens: int) -> Prompts | BadRequest:
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    if value is None:
        return ()
    if not isinstance(value, list) or is_token_ids(value):
        return (_one(value, media_tokens),)
    if len(value) > most:
        return _too_many(param, len(value), most)
    return tuple(_one(item, media_tokens) for item in value)


def _one(prompt: Any, media_tokens: int) -> PromptSize:
    if isinstance(prompt, str):
        return text_size(prompt)
    if is_token_ids(prompt):
        return PromptSize(tokens=len(prompt))
    scale = Scale(media_tokens)
    scale.content(prompt)
    return scale.size()


def _responses(fields: Fields, media_tokens: int) -> Prompts | BadRequest:
    if as_bool(fields.background):
        return BadRequest(
            "background responses are not served here: they go on after the answer, outside of any "
            "reservation. Send the request without background.",
            "background",
        )
    scale = Scale(media_tokens)
    scale.content(fields.instructions)
    scale.message_count(2)
    if isinstance(fields.input, list):
        scale.conversation(fields.input)
    else:
        scale.content(fields.input)
    scale.conversation(fields.previous_input_messages)
    scale.value(fields.tools)
    scale.value(fields.chat_template_kwargs)
    if fields.previous_response_id is not None:
        scale.tokens(PREVIOUS_RESPONSE_TOKENS)
    return (scale.size(),)


def _messages(fields: Fields, media_tokens: int) -> Prompts:
    scale = Scale(media_tokens)
    if fields.system is not None:
        scale.message_count(1)
        scale.content(fields.system)
    scale.conversation(fields.messages)
    scale.value(fields.tools)
    scale.value(fields.chat_template_kwargs)
    return (scale.size(),)


def _generate(fields: Fields, media_tokens: int) -> Prompts:
    """Token ids; media in `content_parts` are put in their place by the engine."""
    ids = fields.token_ids
    scale = Scale(media_tokens)
    scale.content(fields.content_parts)
    if not isinstance(ids, list):
        scale.value(ids)
        return (scale.size(),)
    if fields.content_parts:
        scale.tokens(len(ids))
        return (scale.size(),)
    return (PromptSize(tokens=len(ids)),)


def _pooling(fields: Fields, media_tokens: int) -> Prompts | BadRequest:
    for first, second in _PAIRS:
        if getattr(fields, first) is not None and getattr(fields, second) is not None:
            return _paired(getattr(fields, first), getattr(fields, second), second, fields, media_tokens)
    if fields.query is not None:
        return _paired(fields.query, fields.documents, "documents", fields, media_tokens)
    if fields.messages is not None:
        return _pooled_chats(fields, fields.messages, media_tokens)
    if _is_chat(fields.input):
        return _pooled_chats(fields, fields.input, media_tokens)
    given = fields.input if fields.input is not None else fields.data
    return _listed(given, "input", POOLED_MAX, media_tokens) or (PromptSize(),)


def _is_chat(value: Any) -> bool:
    """Messages, or a batch of them, where texts would do."""
    head = value[0] if isinstance(value, list) and value else None
    if isinstance(head, list) and head:
        head = head[0]
    return isinstance(head, dict)


def _pooled_chats(fields: Fields, messages: Any, media_tokens: int) -> Prompts | BadRequest:
    batched = isinstance(messages, list) and bool(messages) and isinstance(messages[0], list)
    chats = messages if batched else [messages]
    if len(chats) > POOLED_MAX:
        return _too_many("messages", len(chats), POOLED_MAX)
    template = _template(fields)
    return tuple(_conversation(chat, template, media_tokens) for chat in chats)


def _paired(first: Any, second: Any, param: str, fields: Fields, media_tokens: int) -> Prompts | BadRequest:
    """Scores: each of the second list with its partner, or with the one there is of the first.

    Each text is measured once, however many pairs it is in: a long query and thousands of documents would
    hold up everyone for minutes.
    """
    lefts = first if isinstance(first, list) and first else [first]
    rights = second if isinstance(second, list) and second else [second]
    if max(len(lefts), len(rights)) > POOLED_MAX:
        return _too_many(param, max(len(lefts), len(rights)), POOLED_MAX)
    shared = _contents((fields.instruction, fields.chat_template_kwargs), media_tokens)
    left_sizes = [_contents((left,), media_tokens) for left in lefts]
    right_sizes = [_contents((right,), media_tokens) for right in rights]
    return tuple(
        _sum((left_sizes[min(i, len(lefts) - 1)], right_sizes[min(i, len(rights) - 1)], shared))
        for i in range(max(len(lefts), len(rights)))
    )


def _contents(parts: tuple[Any, ...], media_tokens: int) -> PromptSize:
    scale = Scale(media_tokens)
    for part in parts:
        scale.content(part)
    return scale.size()


def _sum(sizes: tuple[PromptSize, ...]) -> PromptSize:
    scale = Scale(0)
    for size in sizes:
        scale.add(size)
    return scale.size()


def _too_many(param: str, count: int, most: int) -> BadRequest:
    return BadRequest(f"{param} has {count} entries; at most {most} are taken. Send several requests.", param)


_MEASURED_BY: dict[Endpoint, Callable[[Fields, int], Prompts | BadRequest]] = {
    Endpoint.CHAT: _chat,
    Endpoint.CHAT_BATCH: _batch,
    Endpoint.COMPLETIONS: _completions,
    Endpoint.RESPONSES: _responses,
    Endpoint.MESSAGES: _messages,
    Endpoint.GENERATE: _generate,
    Endpoint.POOLING: _pooling,
}
