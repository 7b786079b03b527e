"""The official OpenAI client gets the same answers through kvgate as from the engine, however it asks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai
import pytest

from vllm import server

if TYPE_CHECKING:
    from collections.abc import Iterable

    from openai.types import Completion
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

VIAS = ("engine", "gateway")
CLIENT: dict[str, Any] = {"api_key": "unused", "max_retries": 0, "timeout": 120}

COMMON: dict[str, Any] = {"model": server.MODEL, "max_tokens": 24, "temperature": 0}
CHAT: dict[str, Any] = COMMON | {
    "messages": [{"role": "system", "content": "hold"}, {"role": "user", "content": "a client asks é 好"}]
}
# Shorter than a block: nothing of it is ever in the prefix cache, so each time the same is computed.
TEXT: dict[str, Any] = COMMON | {"prompt": "a queue so that no engine"}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Result:
    """What a client cares about, however it came."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


def of_chat(answer: ChatCompletion) -> Result:
    [choice] = answer.choices
    assert answer.usage
    assert choice.message.role == "assistant"
    text = choice.message.content or ""
    return Result(text, choice.finish_reason, answer.usage.prompt_tokens, answer.usage.completion_tokens)


def of_completion(answer: Completion) -> Result:
    [choice] = answer.choices
    assert answer.usage
    return Result(
        choice.text, choice.finish_reason, answer.usage.prompt_tokens, answer.usage.completion_tokens
    )


def of_chunks(chunks: Iterable[ChatCompletionChunk | Completion]) -> Result:
    """Put a stream's pieces together. How a text is cut into chunks is chance."""
    text, reason, usage = "", None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
            reason = choice.finish_reason or reason
    assert usage, "the last chunk but [DONE] has the usage"
    return Result(text, reason, usage.prompt_tokens, usage.completion_tokens)


def url_of(request: pytest.FixtureRequest, via: str) -> str:
    running: server.Engine | server.Gateway = request.getfixturevalue(via)
    return running.url + "/v1"


@pytest.fixture(scope="module")
def chat_direct(engine: server.Engine) -> Result:
    with openai.OpenAI(base_url=engine.url + "/v1", **CLIENT) as client:
        return of_chat(client.chat.completions.create(**CHAT))


@pytest.fixture(scope="module")
def text_direct(engine: server.Engine) -> Result:
    with openai.OpenAI(base_url=engine.url + "/v1", **CLIENT) as client:
        return of_completion(client.completions.create(**TEXT))


def test_the_direct_answers_are_worth_comparing(chat_direct: Result, text_direct: Result) -> None:
    for result in (chat_direct, text_direct):
        assert result.completion_tokens == 24
        assert result.text
        assert result.finish_reason == "length"
    assert chat_direct.text != text_direct.text


@pytest.mark.parametrize("via", VIAS)
def test_sync(request: pytest.FixtureRequest, chat_direct: Result, text_direct: Result, via: str) -> None:
    with openai.OpenAI(base_url=url_of(request, via), **CLIENT) as client:
        assert of_chat(client.chat.completions.create(**CHAT)) == chat_direct
        assert of_completion(client.completions.create(**TEXT)) == text_direct
        with client.chat.completions.create(**CHAT, **STREAM) as chunks:
            assert of_chunks(chunks) == chat_direct
        with client.completions.create(**TEXT, **STREAM) as chunks:
            assert of_chunks(chunks) == text_direct


@pytest.mark.parametrize("via", VIAS)
def test_async(request: pytest.FixtureRequest, chat_direct: Result, text_direct: Result, via: str) -> None:
    url = url_of(request, via)

    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=url, **CLIENT) as client:
            assert of_chat(await client.chat.completions.create(**CHAT)) == chat_direct
            assert of_completion(await client.completions.create(**TEXT)) == text_direct
            async with await client.chat.completions.create(**CHAT, **STREAM) as chunks:
                assert of_chunks([chunk async for chunk in chunks]) == chat_direct
            async with await client.completions.create(**TEXT, **STREAM) as chunks:
                assert of_chunks([chunk async for chunk in chunks]) == text_direct

    asyncio.run(ask())


def test_every_other_field_of_an_answer_is_the_engines(
    engine: server.Engine, gateway: server.Gateway
) -> None:
    dumps = []
    for url in (engine.url, gateway.url):
        with openai.OpenAI(base_url=url + "/v1", **CLIENT) as client:
            chat = client.chat.completions.create(**CHAT).model_dump()
            text = client.completions.create(**TEXT).model_dump()
            dumps.append([_without_chance(chat), _without_chance(text)])
    assert dumps[0] == dumps[1]


def _without_chance(dump: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in dump.items() if key not in {"id", "created", "system_fingerprint"}}


@pytest.mark.parametrize("via", VIAS)
def test_the_models_are_listed(request: pytest.FixtureRequest, via: str) -> None:
    with openai.OpenAI(base_url=url_of(request, via), **CLIENT) as client:
        assert [card.id for card in client.models.list()] == [server.MODEL]


@pytest.mark.parametrize("via", VIAS)
def test_the_engines_own_refusal_is_passed_on(request: pytest.FixtureRequest, via: str) -> None:
    asked = {"max_tokens": server.MAX_MODEL_LEN * 2}
    with openai.OpenAI(base_url=url_of(request, via), **CLIENT) as client:
        with pytest.raises(openai.BadRequestError, match="cannot be greater than max_model_len"):
            client.chat.completions.create(**CHAT | asked)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**CHAT | {"model": "another"})
