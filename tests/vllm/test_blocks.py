"""The price of a request is what the engine takes, to the block."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kvgate_policies.kv_cost import price
from kvgate_policies.types import EngineShape
from vllm import server, traffic

if TYPE_CHECKING:
    from vllm.measured import Accounted

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SHAPE = EngineShape(server.BLOCK_SIZE, server.MAX_MODEL_LEN, prefix_caching=True)


def priced(call: traffic.Call) -> int:
    return price(SHAPE, [len(call.prompt)], call.max_tokens, n=1).blocks


def test_the_requests_reach_both_sides_of_a_block_edge() -> None:
    ends = {(len(call.prompt) + call.max_tokens - 1) % server.BLOCK_SIZE for call in traffic.one_by_one()}
    assert {0, 1} <= ends
    assert any(call.max_tokens == 1 for call in traffic.one_by_one())


def test_each_request_took_exactly_its_price(accounted: list[Accounted]) -> None:
    assert len(accounted) == 30
    wrong = [
        (len(one.call.prompt), one.call.max_tokens, priced(one.call), one.kv_max)
        for one in accounted
        if priced(one.call) != one.kv_max
    ]
    assert wrong == [], "(prompt, max_tokens, priced, taken)"


def test_each_request_got_all_its_tokens(accounted: list[Accounted]) -> None:
    assert [one.tokens for one in accounted] == [one.call.max_tokens for one in accounted]


@pytest.mark.parametrize(("prompt", "max_tokens", "n"), [(200, 60, 4), (256, 33, 3), (20, 40, 5)])
def test_sequences_of_one_prompt_share_its_full_blocks(
    engine: server.Engine, prompt: int, max_tokens: int, n: int
) -> None:
    call = traffic.Call(traffic.random_prompt(random.Random(n), prompt), max_tokens)
    # vLLM refuses several sequences of the same words: n > 1 asks for a temperature.
    taken = kv_max(engine, call.body() | {"n": n, "temperature": 1})
    assert taken == price(SHAPE, [prompt], max_tokens, n).blocks


def test_a_list_of_prompts_takes_the_sum(engine: server.Engine) -> None:
    rng = random.Random(7)
    prompts = [list(traffic.random_prompt(rng, tokens)) for tokens in (40, 97, 250)]
    call = traffic.Call((), max_tokens=50)
    taken = kv_max(engine, call.body() | {"prompt": prompts})
    assert taken == price(SHAPE, [len(prompt) for prompt in prompts], 50, n=1).blocks


def kv_max(engine: server.Engine, body: dict[str, Any]) -> int:
    mark = engine.steps.mark()
    httpx.post(engine.url + "/v1/completions", json=body, timeout=traffic.REQUEST_S_MAX).raise_for_status()
    return max(step.kv for step in engine.steps.since(mark))
