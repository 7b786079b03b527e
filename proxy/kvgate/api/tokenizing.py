"""Bodies for the engine's `POST /tokenize` that count a request's prompts exactly, one for each prompt.

None where /tokenize would count something else: media (it sees placeholders only), documents and reasoning
effort (it doesn't take them), tools of other APIs, and whatever vLLM rewrites before its template.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.api.prompts import conversations
from kvgate_policies.types import Endpoint, PromptSize

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvgate.api.fields import Fields

Body = dict[str, object]

_CHAT_FIELDS = (
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "mm_processor_kwargs",
)
_REWRITTEN = "x-anthropic-billing-header"
"""vLLM drops system texts that begin so."""


def tokenize_bodies(endpoint: Endpoint, fields: Fields, prompts: tuple[PromptSize, ...]) -> tuple[Body, ...]:
    """The bodies, in the order of the prompts; empty where they can't be had."""
    if any(prompt.media_tokens for prompt in prompts):
        return ()
    make = _MADE_BY.get(endpoint)
    return make(fields) if make is not None else ()


def _chat(fields: Fields) -> tuple[Body, ...]:
    return _chats(fields, [fields.messages])


def _batch(fields: Fields) -> tuple[Body, ...]:
    return _chats(fields, conversations(fields.messages))


def _completions(fields: Fields) -> tuple[Body, ...]:
    return _texts(fields, fields.prompt)


def _chats(fields: Fields, chats: list[Any]) -> tuple[Body, ...]:
    if fields.documents is not None or fields.reasoning_effort is not None:
        return ()
    if not all(isinstance(chat, list) and chat for chat in chats):
        return ()
    shared = {name: value for name in _CHAT_FIELDS if (value := getattr(fields, name)) is not None}
    return tuple(_body(fields, messages=chat, **shared) for chat in chats)


def _texts(fields: Fields, prompt: Any) -> tuple[Body, ...]:
    texts = prompt if isinstance(prompt, list) else [prompt]
    if not all(isinstance(text, str) for text in texts) or fields.prompt_embeds is not None:
        return ()
    if fields.add_special_tokens is None:
        return tuple(_body(fields, prompt=text) for text in texts)
    return tuple(_body(fields, prompt=text, add_special_tokens=fields.add_special_tokens) for text in texts)


def _pooling(fields: Fields) -> tuple[Body, ...]:
    """Texts only: pairs are joined in ways that depend on the model."""
    others = (fields.messages, fields.query, fields.queries, fields.text_1, fields.data_1, fields.data)
    return _texts(fields, fields.input) if all(other is None for other in others) else ()


def _responses(fields: Fields) -> tuple[Body, ...]:
    """A plain string input: a system and a user message, to which vLLM adds special tokens (measured)."""
    unlike = (fields.tools, fields.previous_response_id, fields.previous_input_messages, fields.reasoning)
    if not isinstance(fields.input, str) or any(unlike):
        return ()
    messages = [{"role": "user", "content": fields.input}]
    if isinstance(fields.instructions, str):
        messages.insert(0, {"role": "system", "content": fields.instructions})
    elif fields.instructions is not None:
        return ()
    return (_body(fields, messages=messages, add_special_tokens=True, **_kwargs(fields)),)


def _messages(fields: Fields) -> tuple[Body, ...]:
    """Only texts; of blocks, vLLM makes several things, and it reorders system messages by the template."""
    if fields.tools or fields.thinking is not None or fields.output_config is not None:
        return ()
    system = [] if fields.system is None else [{"role": "system", "content": fields.system}]
    given = fields.messages if isinstance(fields.messages, list) else []
    if not given or not all(_is_plain(message) for message in [*system, *given]):
        return ()
    if any(message["role"] == "system" for message in given):
        return ()
    return (_body(fields, messages=[*system, *given], **_kwargs(fields)),)


def _is_plain(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.keys() == {"role", "content"}
        and isinstance(message["content"], str)
        and not message["content"].startswith(_REWRITTEN)
    )


def _kwargs(fields: Fields) -> Body:
    return (
        {} if fields.chat_template_kwargs is None else {"chat_template_kwargs": fields.chat_template_kwargs}
    )


def _body(fields: Fields, **rest: object) -> Body:
    return rest if fields.model is None else {"model": fields.model, **rest}


_MADE_BY: dict[Endpoint, Callable[[Fields], tuple[Body, ...]]] = {
    Endpoint.CHAT: _chat,
    Endpoint.CHAT_BATCH: _batch,
    Endpoint.COMPLETIONS: _completions,
    Endpoint.POOLING: _pooling,
    Endpoint.RESPONSES: _responses,
    Endpoint.MESSAGES: _messages,
}
"""Token ids need no counting; audio has none."""
