"""The unmodified OpenAI SDK, sync and async, stream and not: through kvgate the same as direct."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI, RateLimitError

from kvgate.sim import SimServer
from kvgate_policies.types import TenantPolicy
from support.gateway import gateway

pytestmark = pytest.mark.e2e

MESSAGES: Any = [{"role": "user", "content": "hello the proxy"}]
ASK: Any = {"model": "sim", "temperature": 0, "max_tokens": 12}


def client(url: str, **more: Any) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="sk-test", **more)


def async_client(url: str, **more: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test", **more)


def sync_results(url: str) -> list[Any]:
    with client(url) as api:
        chat = api.chat.completions.create(messages=MESSAGES, **ASK)
        text = api.completions.create(prompt="hello the proxy", **ASK)
        usage: Any = {"stream_options": {"include_usage": True}}
        chunks = list(api.chat.completions.create(messages=MESSAGES, stream=True, **usage, **ASK))
        pieces = list(api.completions.create(prompt="hello the proxy", stream=True, **ASK))
        models = [model.id for model in api.models.list()]
    return [
        (chat.choices[0].message.content, chat.choices[0].finish_reason, chat.usage),
        (text.choices[0].text, text.choices[0].finish_reason, text.usage),
        [(c.choices[0].delta.content, c.choices[0].finish_reason) for c in chunks if c.choices],
        chunks[-1].usage,
        [(p.choices[0].text, p.choices[0].finish_reason) for p in pieces],
        models,
    ]


async def async_results(url: str) -> list[Any]:
    async with async_client(url) as api:
        chat = await api.chat.completions.create(messages=MESSAGES, **ASK)
        text = await api.completions.create(prompt="hello the proxy", **ASK)
        stream = await api.chat.completions.create(messages=MESSAGES, stream=True, **ASK)
        chunks = [chunk async for chunk in stream]
    return [
        (chat.choices[0].message.content, chat.choices[0].finish_reason, chat.usage),
        (text.choices[0].text, text.choices[0].finish_reason, text.usage),
        [(c.choices[0].delta.content, c.choices[0].finish_reason) for c in chunks if c.choices],
    ]


async def test_the_same_through_kvgate_as_direct():
    async with SimServer(model="sim", profile="fast") as sim, gateway([sim.url]) as gate:
        direct = await asyncio.to_thread(sync_results, sim.url)
        gated = await asyncio.to_thread(sync_results, gate.url)
        assert gated == direct
        assert await async_results(gate.url) == await async_results(sim.url)
        await gate.at_zero()


async def test_the_sdk_waits_out_a_full_queue_and_does_not_repeat_what_never_fits():
    tenant = TenantPolicy(queue_depth_max=0)
    async with SimServer(model="sim", profile="fast") as sim, gateway([sim.url], tenant=tenant) as gate:
        async with async_client(gate.url, max_retries=0) as api:
            with pytest.raises(BadRequestError) as refused:
                await api.completions.create(model="sim", prompt=[1] * 3000, max_tokens=5)
            assert refused.value.code == "context_length_exceeded"
            arrivals = gate.view.totals["arrivals"]
            full = [
                api.completions.create(
                    model="sim", prompt=[1] * 192, max_tokens=129, extra_body={"ignore_eos": True}
                )
                for _ in range(13)
            ]
            results = await asyncio.gather(*full, return_exceptions=True)
            assert sum(isinstance(result, RateLimitError) for result in results) == 1
            assert gate.view.totals["arrivals"] == arrivals + 13
        async with async_client(gate.url, max_retries=2) as api:
            with pytest.raises(BadRequestError):
                await api.completions.create(model="sim", prompt=[1] * 3000, max_tokens=5)
        await gate.at_zero()
